"""The old name of `weft_runtime`. Importing it, or a module in it, gives that of `weft_runtime` with a
DeprecationWarning; version 0.3 has it no more."""

from weft.aliases import renamed

__getattr__ = renamed(__name__)
