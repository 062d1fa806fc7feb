"""The old name of `weft_gpu.launches`, of the distribution `weft-gpu`.

Importing from here warns of its deprecation; version 0.3 has it no more.
"""

from weft.aliases import renamed

__getattr__ = renamed(__name__)
