"""The old name of `weft_ops`. Importing a module in it gives that of `weft_ops` with a DeprecationWarning; version 0.3
has it no more."""

from weft.aliases import renamed

__getattr__ = renamed(__name__)
