"""Formulas as Python source, with bounds of integers: a value that cannot leave its dtype is not wrapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import LoopError, nearest
from weft.expr import nodes as e
from weft.expr.nodes import Expr, Var
from weft.loop.grids import WHOLE_WARP
from weft.loop.nodes import TRUE, IntrinsicCall, Load, Program, Stmt
from weft_interpreter.calls import first_lane, int_range
from weft_interpreter.source import Code, Source, deepest, items, number

_NATIVE_FLOATS = ("float16", "float32", "float64")
_COMPARE = {e.Lt: "<", e.Le: "<=", e.Eq: "==", e.Ne: "!="}
_ARITHMETIC = {e.Add: "+", e.Sub: "-", e.Mul: "*", e.Div: "/"}
_BITS = {e.BitAnd: "&", e.BitOr: "|", e.BitXor: "^", e.And: "&", e.Or: "|"}


class Formulas(Source):
    """Formulas of one statement after the other."""

    def __init__(self, program: Program, intrinsics: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(program, intrinsics)
        self.memo: list[dict[Expr, Code]] = [{}]
        self.counts: Counter[Expr] = Counter()
        self.mask: str | None = None  # the lanes that are wanted, inside a choice per lane

    def formulas(self, *exprs: Expr) -> list[Code]:
        """Source of the formulas of one statement; subformulas that occur twice are computed once."""
        self.statement_of(*exprs)
        return [self.formula(x) for x in exprs]

    def statement_of(self, *exprs: Expr) -> None:
        """A statement with these formulas begins: nothing is computed yet that they may share."""
        self.counts = Counter()
        stack = list(exprs)
        while stack:
            node = stack.pop()
            self.counts[node] += 1
            if self.counts[node] == 1:
                stack.extend(node.children())
        self.memo = [{}]

    def formula(self, x: Expr) -> Code:
        if isinstance(x, e.Const):
            return self.literal(x)
        if isinstance(x, Var):
            return self.variable(x)
        for scope in self.memo:
            if x in scope:
                return scope[x]
        code = self.node(x)
        if self.counts[x] > 1 or code.depth > 25 or len(code.text) > 2000:
            code = self.temporary(code)
        if self.counts[x] > 1:
            self.memo[-1][x] = code
        return code

    def temporary(self, code: Code) -> Code:
        name = self.name("_t")
        self.put(f"{name} = {code.text}")
        return Code(name, code.lo, code.hi)

    def literal(self, x: e.Const) -> Code:
        if x.dtype.lanes > 1:
            value = np.full(x.dtype.lanes, x.value, x.dtype.numpy)
            return Code(self.constant(value, (repr(x.value), str(x.dtype))))
        if x.dtype.is_bool:
            return Code(str(x.value), int(x.value), int(x.value))
        if x.dtype.is_integer:
            return number(x.value)
        return Code(self.constant(x.dtype.numpy.type(x.value), (repr(x.value), str(x.dtype))))

    def variable(self, x: Var) -> Code:
        found = self.variables.get(x.name)
        if found is None:
            self.fail(f"interpret: variable '{x.name}' is not defined here")
        if found[0].dtype != x.dtype:
            self.fail(f"interpret: variable '{x.name}' is {found[0].dtype}, used as {x.dtype}")
        return found[1]

    def node(self, x: Expr) -> Code:
        if isinstance(x, Load):
            return self.load(x)
        if isinstance(x, IntrinsicCall):
            return self.intrinsic(x)
        if isinstance(x, e.Select):
            return self.select(x) if x.cond.dtype.lanes == 1 else self.blend(x)
        args = [self.formula(c) for c in x.children()]
        code = self.vector(x, args) if x.dtype.lanes > 1 else self.scalar(x, args)
        if code is None:
            code = self.general(x, args)
        code.depth = max((a.depth for a in args), default=0) + 1
        return code

    def general(self, x: Expr, args: Sequence[Code]) -> Code:
        """One node by `evaluate`, its children given as variables."""
        children = x.children()
        if self.mask is not None and isinstance(x, (e.FloorDiv, e.FloorMod, e.TruncDiv, e.TruncMod)):
            # A lane that nobody asks for may divide by zero.
            one = self.constant(x.dtype.numpy.type(1), ("1", x.dtype.name))
            args = (args[0], Code(f"np.where({self.mask}, {args[1].text}, {one})"))
        leaf = self.rebuild(x, tuple(Var(f"a{k}", c.dtype) for k, c in enumerate(children)))
        env = ", ".join(f"'a{k}': {self.as_numpy(a, c.dtype)}" for k, (a, c) in enumerate(zip(args, children)))
        return self.from_numpy(f"evaluate({self.bound(leaf)}, {{{env}}})", x.dtype)

    @staticmethod
    def rebuild(x: Expr, children: tuple[Expr, ...]) -> Expr:
        # Not `with_children`: builders may fold two equal variables away, or refuse them.
        match x:
            case e.Binary():
                return type(x)(*children)
            case e.Select():
                return e.Select(*children)
            case e.Cast():
                return e.Cast(children[0], x.dtype)
            case e.Not():
                return e.Not(children[0])
        return x.with_children(children)

    def as_numpy(self, code: Code, dtype: DType) -> str:
        if dtype.lanes > 1 or not (dtype.is_integer or dtype.is_bool):
            return code.text
        return f"{self.constant(dtype.numpy.type, ('type', dtype.name))}({code.text})"

    @staticmethod
    def from_numpy(text: str, dtype: DType) -> Code:
        if dtype.lanes == 1 and dtype.is_bool:
            return Code(f"bool({text})", 0, 1)
        if dtype.lanes == 1 and dtype.is_integer:
            return Code(f"int({text})", *int_range(dtype))
        return Code(text)

    def scalar(self, x: Expr, args: list[Code]) -> Code | None:
        """Source of a scalar node, None if it has no direct form."""
        kind = x.children()[0].dtype if x.children() else x.dtype
        match x:
            case e.Not():
                return Code(f"(not {args[0].text})", 0, 1)
            case e.Binary():
                a, b = args
                if type(x) in _COMPARE:
                    return Code(f"({a.text} {_COMPARE[type(x)]} {b.text})", 0, 1)
                if isinstance(x, (e.And, e.Or)):
                    return Code(f"({a.text} {_BITS[type(x)]} {b.text})", 0, 1)
                if kind.is_integer:
                    return _integer(x, a, b)
                if kind.is_float and type(x) in _ARITHMETIC:
                    return Code(f"({a.text} {_ARITHMETIC[type(x)]} {b.text})")
                if kind.is_float and isinstance(x, (e.Min, e.Max)):
                    return Code(f"{'_fmin' if isinstance(x, e.Min) else '_fmax'}({a.text}, {b.text})")
            case e.Cast():
                a = args[0]
                if x.dtype.is_bool:
                    return Code(f"({a.text} != 0)", 0, 1)
                if kind.is_bool and x.dtype.is_integer:
                    return _wrapped(f"int({a.text})", 0, 1, x.dtype)
                if kind.is_integer and x.dtype.is_integer:
                    return _wrapped(a.text, a.lo, a.hi, x.dtype)
                small = (
                    kind.is_bool
                    or (kind.is_integer and a.lo >= -(1 << 53) and a.hi <= 1 << 53)
                    or kind.name in _NATIVE_FLOATS
                )
                if small and x.dtype.name in _NATIVE_FLOATS:
                    return Code(f"np.{x.dtype.name}({a.text})")
        return None

    def vector(self, x: Expr, args: list[Code]) -> Code | None:
        match x:
            case e.Broadcast() if x.value.dtype.lanes == 1:
                return Code(
                    f"np.full({x.lanes}, {args[0].text}, {self.constant(x.dtype.numpy, ('dtype', x.dtype.name))})"
                )
            case e.Ramp() if x.dtype.scalar == dt.int64:
                lanes = self.constant(np.arange(x.lanes, dtype=np.int64), ("arange", str(x.lanes)))
                return Code(f"({args[0].text} + {args[1].text} * {lanes})")
            case e.Add() | e.Sub() | e.Mul() if x.dtype.is_float or (x.dtype.is_integer and x.dtype.bits >= 8):
                return Code(f"({args[0].text} {_ARITHMETIC[type(x)]} {args[1].text})")
        return None

    def select(self, x: e.Select) -> Code:
        """Only the chosen side is computed: a Load on the other side must not fault."""
        cond = self.formula(x.cond)
        if cond.depth > 10:
            cond = self.temporary(cond)
        sides: list[tuple[Code, list[str], list[Stmt | None]]] = []
        for side in (x.a, x.b):
            lines, self.lines, sources, self.sources = self.lines, [], self.sources, []
            self.indent += 1
            self.memo.append({})
            code = self.formula(side) if self.indent <= 60 else self.outlined_formula(side)
            self.memo.pop()
            self.indent -= 1
            sides.append((code, self.lines, self.sources))
            self.lines, self.sources = lines, sources
        (a, a_lines, a_sources), (b, b_lines, b_sources) = sides
        lo, hi = min(a.lo, b.lo), max(a.hi, b.hi)
        if not a_lines and not b_lines:
            return Code(f"({a.text} if {cond.text} else {b.text})", lo, hi, max(a.depth, b.depth, cond.depth) + 1)
        name = self.name("_t")
        for head, code, lines, sources in (
            (f"if {cond.text}:", a, a_lines, a_sources),
            ("else:", b, b_lines, b_sources),
        ):
            self.put(head)
            self.lines += lines
            self.sources += sources
            self.indent += 1
            self.put(f"{name} = {code.text}")
            self.indent -= 1
        return Code(name, lo, hi)

    def blend(self, x: e.Select) -> Code:
        """A choice per lane: a side's loads touch its own lanes only."""
        cond, outer = self.temporary(self.formula(x.cond)).text, self.mask
        sides = []
        for side, own in ((x.a, cond), (x.b, f"np.logical_not({cond})")):
            self.mask = self.temporary(Code(own if outer is None else f"np.logical_and({outer}, {own})")).text
            self.memo.append({})
            sides.append(self.formula(side).text)
            self.memo.pop()
        self.mask = outer
        return Code(f"np.where({cond}, {sides[0]}, {sides[1]})", depth=1)

    def outlined_formula(self, x: Expr) -> Code:
        bounds = Code("")

        def emit() -> Code:
            code = self.formula(x)
            bounds.lo, bounds.hi = code.lo, code.hi
            return code

        return Code(self.outlined(emit), bounds.lo, bounds.hi)

    def load(self, x: Load) -> Code:
        storage, outer = self.find(x.buffer), self.mask
        lanes = max((i.dtype.lanes for i in x.indices), default=1)
        indices = [self.formula(i) for i in x.indices]
        if lanes > 1 or (x.predicate is not None and x.predicate.dtype.lanes > 1):
            if x.buffer.dtype.lanes > 1:
                self.fail(f"interpret: buffer '{x.buffer.name}' holds vectors and is indexed by a vector")
            masks = ([] if self.mask is None else [self.mask]) + (
                [] if x.predicate is None else [self.formula(x.predicate).text]
            )
            mask = "None" if not masks else masks[0] if len(masks) == 1 else f"np.logical_and({masks[0]}, {masks[1]})"
            return Code(
                f"_vector_load({x.buffer.name!r}, {storage.array}, {x.dtype.lanes}, ({items(indices)}), {mask})",
                depth=deepest(indices),
            )
        if x.predicate is not None and x.predicate != TRUE:
            return self.select(e.Select(x.predicate, Load(x.buffer, x.indices), e.Const(0, x.dtype)))
        if self.mask is not None:
            wanted, self.mask = Var(" any lane", dt.bool_), None
            self.variables[wanted.name] = (wanted, Code(f"{outer}.any()", 0, 1))
            code = self.select(e.Select(wanted, x, e.Const(0, x.dtype)))
            self.mask = outer
            return code
        indices = [self.temporary(i) if i.depth > 2 else i for i in indices]
        self.check("load of", storage, indices)
        code = self.from_numpy(f"{storage.array}[{items(indices) or '()'}]", x.dtype)
        if x.dtype.lanes > 1:
            code.text += ".copy()"
        code.depth = deepest(indices)
        return code

    def address(self, x: Load) -> str:
        storage = self.find(x.buffer)
        indices = [self.formula(i) for i in x.indices]
        self.check("address in", storage, indices)
        offset = "0"
        for i, d in zip(indices, storage.shape):
            offset = f"(({offset}) * {d.text} + {i.text})"
        return f"Address({self.bound(storage.buffer)}, {storage.array}.reshape(-1), {offset})"

    def intrinsic(self, x: IntrinsicCall) -> Code:
        function = self.intrinsics.get(x.name, first_lane if x.name == WHOLE_WARP else None)
        if function is None:
            close = nearest(x.name, self.intrinsics)
            known = (
                f"did you mean '{close}'?" if close else "pass its meaning: interpret(…, intrinsics={name: function})"
            )
            self.fail(f"interpret: unknown intrinsic '{x.name}'", known)
        texts = []
        for a in x.args:
            if isinstance(a, Load) and a.dtype.lanes == 1 and getattr(function, "addresses", False):
                texts.append(self.address(a))
            else:
                texts.append(self.as_numpy(self.formula(a), a.dtype))
        call = f"{self.bound(function)}({', '.join(texts)})"
        return Code(call) if x.dtype == dt.handle else self.temporary(self.from_numpy(call, x.dtype))


def _wrapped(text: str, lo: int, hi: int, dtype: DType) -> Code:
    """An integer brought back into the range of its dtype, if it may have left it."""
    least, greatest = int_range(dtype)
    if least <= lo and hi <= greatest:
        return Code(text, lo, hi)
    mask = (1 << dtype.bits) - 1
    if dtype.kind == "uint":
        return Code(f"(({text}) & {mask})", least, greatest)
    half = 1 << (dtype.bits - 1)
    return Code(f"(((({text}) + {half}) & {mask}) - {half})", least, greatest)


def _integer(x: e.Binary, a: Code, b: Code) -> Code:
    """Source and bounds of a scalar integer operation."""
    least, greatest = int_range(x.dtype)
    bits = x.dtype.bits
    corners = [
        f(p, q)
        for f in ({e.Add: int.__add__, e.Sub: int.__sub__, e.Mul: int.__mul__}.get(type(x)),)
        if f
        for p in (a.lo, a.hi)
        for q in (b.lo, b.hi)
    ]
    match x:
        case e.Add() | e.Sub() | e.Mul():
            return _wrapped(f"({a.text} {_ARITHMETIC[type(x)]} {b.text})", min(corners), max(corners), x.dtype)
        case e.FloorDiv():
            far = max(abs(a.lo), abs(a.hi))
            quotients = [p // q for p in (a.lo, a.hi) for q in (b.lo, b.hi)] if b.lo > 0 else [-far, far]
            return _wrapped(f"({a.text} // {b.text})", min(quotients), max(quotients), x.dtype)
        case e.FloorMod():
            if b.lo > 0:
                return Code(f"({a.text} % {b.text})", 0, min(b.hi - 1, a.hi) if a.lo >= 0 else b.hi - 1)
            return Code(f"({a.text} % {b.text})", min(b.lo + 1, 0), max(b.hi - 1, 0))
        case e.TruncDiv():
            far = max(abs(a.lo), abs(a.hi))
            return _wrapped(f"_truncdiv({a.text}, {b.text})", -far, far, x.dtype)
        case e.TruncMod():
            return Code(f"_truncmod({a.text}, {b.text})", min(a.lo, 0), max(a.hi, 0))
        case e.Min():
            return Code(f"min({a.text}, {b.text})", min(a.lo, b.lo), min(a.hi, b.hi))
        case e.Max():
            return Code(f"max({a.text}, {b.text})", max(a.lo, b.lo), max(a.hi, b.hi))
        case e.BitAnd() | e.BitOr() | e.BitXor():
            text = f"({a.text} {_BITS[type(x)]} {b.text})"
            if a.lo >= 0 and b.lo >= 0:
                return Code(text, 0, (1 << max(a.hi.bit_length(), b.hi.bit_length())) - 1)
            return Code(text, least, greatest)
        case e.ShiftLeft():
            return _wrapped(f"_shift_left({a.text}, {b.text}, {bits})", 2 * least - 1, 2 * greatest + 1, x.dtype)
        case e.ShiftRight():
            return Code(f"_shift_right({a.text}, {b.text}, {bits})", min(a.lo, 0), max(a.hi, 0))
    raise LoopError(f"interpret: no meaning for '{x.symbol}' on {x.dtype}", where=str(x))
