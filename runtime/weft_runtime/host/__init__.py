"""What is no numeric work and so no machine code: values that are sequences, optionals or strings, and the decoding of
images.

A plan names these functions; there are no others, and their attributes are plain data. Values are numpy arrays (strings
as arrays of `object` that hold `str`), lists of values for sequences, and None for an optional that holds nothing.
"""

from weft_runtime.host import images, sequences, strings, system  # noqa: F401 - each fills the table
from weft_runtime.host.registry import HostFunction, call, find, names

__all__ = ["HostFunction", "call", "find", "names"]
