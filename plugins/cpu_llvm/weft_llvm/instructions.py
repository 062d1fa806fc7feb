"""Values in LLVM IR text, and the function that instructions are added to: types, constants, lanes of vectors."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft import dtypes as dt
from weft.dtypes import DType

if TYPE_CHECKING:
    from weft_llvm.target import Isa


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: LLVM text (a name or a constant) of type `value_type(dtype)`. `impure` if a load went into it."""

    text: str
    dtype: DType
    impure: bool = False
    never_nan: bool = False


@dataclass
class Function:
    """Text of a function under construction. Stack slots go to the front of the entry block, where LLVM promotes
    them."""

    header: str
    slots: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    block: str = "entry"

    def text(self) -> str:
        return "\n".join([self.header + " {", "entry:", *self.slots, *self.lines, "}"])


class Instructions:
    """Emits instructions into the current function."""

    isa: Isa
    _fn: Function
    _counter: int
    _declared: dict[str, str]
    _helpers: dict[str, str]
    _metadata: list[str]
    _align_md: dict[int, str]
    _vectors: int

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.soft = frozenset(
            d.name
            for d in dt.all_dtypes()
            if d.is_float and d.bits < 32 and not (d.name == "float16" and "half" in isa.has)
        )
        self.x86 = isa.arch in ("x86_64", "i386")

    # -- text -----------------------------------------------------------------------------------------------------

    def _md(self, text: str) -> str:
        name = f"!{len(self._metadata)}"
        self._metadata.append(text.replace("!self", name))
        return name

    def _name(self, stem: str = "v") -> str:
        self._counter += 1
        return f"%{stem}{self._counter}"

    def _line(self, text: str) -> None:
        self._fn.lines.append("  " + text)

    def _op(self, text: str) -> str:
        name = self._name()
        self._fn.lines.append(f"  {name} = {text}")
        return name

    def _label(self, stem: str) -> str:
        self._counter += 1
        return f"{stem}{self._counter}"

    def _start(self, label: str) -> None:
        self._fn.lines.append(f"{label}:")
        self._fn.block = label

    def _slot(self, type_: str, align: int = 0) -> str:
        name = self._name("slot")
        self._fn.slots.append(f"  {name} = alloca {type_}" + (f", align {align}" if align else ""))
        return name

    def _gep(self, type_: str, pointer: str, index: str, inbounds: bool = True, nuw: bool = False) -> str:
        if index == "0":
            return pointer
        flags = "inbounds nuw " if nuw else "inbounds " if inbounds else ""
        return self._op(f"getelementptr {flags}{type_}, ptr {pointer}, i64 {index}")

    def _align(self, align: int) -> str:
        if align not in self._align_md:
            self._align_md[align] = self._md(f"!{{i64 {align}}}")
        return self._align_md[align]

    def _load_pointer(self, array: str, index: int, align: int) -> str:
        md = f", !align {self._align(align)}" if align > 1 else ""
        return self._op(f"load ptr, ptr {self._gep('ptr', array, str(index))}, align {self.isa.pointer}{md}")

    def intrinsic(self, result: str, name: str, *args: tuple[str, str]) -> str:
        """A call of an LLVM intrinsic, declared on first use; the name of its result, or "" if void."""
        types = ", ".join(t for t, _ in args)
        self._declared.setdefault(name, f"declare {result} @{name}({types})")
        text = f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result == "void":
            self._line(text)
            return ""
        return self._op(text)

    def op(self, text: str, dtype: DType, *parts: Value, never_nan: bool = False) -> Value:
        """An instruction whose purity follows from the operands it was made of."""
        return Value(self._op(text), dtype, any(p.impure for p in parts), never_nan)

    # -- types ----------------------------------------------------------------------------------------------------

    def scalar_type(self, d: DType) -> str:
        if d.name in self.soft:
            return f"i{max(8, d.bits)}"
        match d.kind:
            case "bool":
                return "i1"
            case "int" | "uint":
                return f"i{d.bits}"
            case "handle":
                return "ptr"
        return {"float16": "half", "float32": "float", "float64": "double"}[d.name]

    def value_type(self, d: DType) -> str:
        if d.kind == "complex":
            part = self.value_type(part_of(d))
            return f"{{ {part}, {part} }}"
        base = self.scalar_type(d)
        return base if d.lanes == 1 else f"<{d.lanes} x {base}>"

    def memory_type(self, d: DType) -> str:
        base = "i8" if d.bits < 8 else self.scalar_type(d)
        return base if d.lanes == 1 else f"<{d.lanes} x {base}>"

    def llvm_suffix(self, d: DType) -> str:
        """The type as intrinsics' names spell it."""
        base = {"half": "f16", "float": "f32", "double": "f64"}.get(self.scalar_type(d), self.scalar_type(d))
        return base if d.lanes == 1 else f"v{d.lanes}{base}"

    # -- constants ------------------------------------------------------------------------------------------------

    def const(self, value: Any, d: DType) -> Value:
        if d.kind == "complex":
            part = part_of(d)
            re, im = (self.const(x, part) for x in (complex(value).real, complex(value).imag))
            t = self.value_type(part)
            return Value(f"{{ {t} {re.text}, {t} {im.text} }}", d)
        text = self._scalar_const(value, d.scalar)
        never_nan = d.is_float and value == value
        if d.lanes > 1:
            text = (
                "zeroinitializer"
                if text in ("0", "false", "0x0000000000000000")
                else f"splat ({self.scalar_type(d.scalar)} {text})"
            )
        return Value(text, d, never_nan=never_nan)

    def _scalar_const(self, value: Any, d: DType) -> str:
        if d.is_bool:
            return "true" if value else "false"
        if d.is_integer:
            return str(int(value))
        if d.name in self.soft or d.name == "float16":
            bits = int.from_bytes(d.numpy.type(value).tobytes(), "little")
            return str(bits) if d.name in self.soft else f"0xH{bits:04X}"
        if d.name == "float32":
            import numpy as np

            with np.errstate(all="ignore"):
                value = float(np.float32(value))
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"

    def zero(self, d: DType) -> Value:
        return self.const(0, d)

    # -- vectors --------------------------------------------------------------------------------------------------

    def splat(self, v: Value, lanes: int) -> Value:
        d = v.dtype.with_lanes(lanes)
        if lanes == 1 or v.dtype.lanes == lanes:
            return v
        if d.kind == "complex":
            re, im = self.parts(v)
            return self.join(self.splat(re, lanes), self.splat(im, lanes), d)
        self._vectors += 1
        if not v.text.startswith("%"):
            text = "zeroinitializer" if v.text in ("0", "false") else f"splat ({self.scalar_type(v.dtype)} {v.text})"
            return Value(text, d, v.impure, v.never_nan)
        t = self.value_type(d)
        one = self._op(f"insertelement {t} poison, {self.scalar_type(v.dtype)} {v.text}, i64 0")
        return self.op(
            f"shufflevector {t} {one}, {t} poison, <{lanes} x i32> zeroinitializer", d, v, never_nan=v.never_nan
        )

    def element(self, v: Value, lane: int) -> Value:
        d = v.dtype.scalar
        if v.dtype.lanes == 1:
            return v
        if d.kind == "complex":
            re, im = self.parts(v)
            return self.join(self.element(re, lane), self.element(im, lane), d)
        return self.op(f"extractelement {self.value_type(v.dtype)} {v.text}, i64 {lane}", d, v)

    def assemble(self, elements: list[Value]) -> Value:
        d = elements[0].dtype.with_lanes(len(elements))
        if d.kind == "complex":
            pairs = [self.parts(e) for e in elements]
            return self.join(self.assemble([p[0] for p in pairs]), self.assemble([p[1] for p in pairs]), d)
        self._vectors += 1
        t, text = self.value_type(d), "poison"
        for i, e in enumerate(elements):
            text = self._op(f"insertelement {t} {text}, {self.scalar_type(e.dtype)} {e.text}, i64 {i}")
        return Value(text, d, any(e.impure for e in elements))

    def each_lane(self, f: Callable[..., Value], *args: Value) -> Value:
        """`f` on scalars, lane by lane."""
        lanes = args[0].dtype.lanes
        return self.assemble([f(*(self.element(a, i) for a in args)) for i in range(lanes)]) if lanes > 1 else f(*args)

    def parts(self, v: Value) -> tuple[Value, Value]:
        """Real and imaginary part of a complex value."""
        t, part = self.value_type(v.dtype), part_of(v.dtype)
        return self.op(f"extractvalue {t} {v.text}, 0", part, v), self.op(f"extractvalue {t} {v.text}, 1", part, v)

    def join(self, re: Value, im: Value, d: DType) -> Value:
        t, part = self.value_type(d), self.value_type(re.dtype)
        first = self._op(f"insertvalue {t} poison, {part} {re.text}, 0")
        return self.op(f"insertvalue {t} {first}, {part} {im.text}, 1", d, re, im)


def part_of(d: DType) -> DType:
    return (dt.float32 if d.bits == 64 else dt.float64).with_lanes(d.lanes)
