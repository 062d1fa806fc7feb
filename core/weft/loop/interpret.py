"""The old name of `weft_interpreter.interpret`, of the distribution `weft-interpreter`.

Importing from here warns of its deprecation; version 0.3 has it no more.
"""

from weft.aliases import renamed

__getattr__ = renamed(__name__)
