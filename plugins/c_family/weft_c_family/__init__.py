"""Languages of C's family: one emitter, and one `Dialect`, a table, per language."""

from weft_c_family.dialect import Dialect
from weft_c_family.emitter import VERSION, Emitted, Emitter
from weft_c_family.extension import Extension
from weft_c_family.language import identifier

__all__ = ["VERSION", "Dialect", "Emitted", "Emitter", "Extension", "identifier"]
