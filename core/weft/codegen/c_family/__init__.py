"""Languages of C's family: one emitter, and one `Dialect`, a table, per language."""

from weft.codegen.c_family.dialect import Dialect
from weft.codegen.c_family.emitter import VERSION, Emitted, Emitter
from weft.codegen.c_family.formulas import Formulas
from weft.codegen.c_family.language import identifier

__all__ = ["VERSION", "Dialect", "Emitted", "Emitter", "Formulas", "identifier"]
