"""Runs models that Weft compiled, by libweft or from a library that `weft export` wrote.

`load("model.so")` loads an export, `load("libweft.so", "model.weft")` an archive; `run` of what they give takes and
gives arrays by name.
"""

from weft_native.errors import Code, WeftError
from weft_native.program import Program, Value, load

__all__ = ["Code", "Program", "Value", "WeftError", "load"]
