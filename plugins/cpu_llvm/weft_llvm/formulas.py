"""Formulas and addresses → LLVM IR text, one `emit_<Node>` method per node.

A formula is emitted once per place that dominates its uses (names are unique in a Program, so a formula has one value
there); one that loads is kept for one statement only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.linear import Polynomial, polynomial
from weft.expr.nodes import Expr
from weft.expr.ranges import Range, range_of
from weft.loop import nodes as lp
from weft.loop.nodes import Buffer, Load, Program
from weft_llvm.arithmetic import Arithmetic
from weft_llvm.instructions import Value
from weft_llvm.storage import VERIFY, Memory, Registers


class Formulas(Arithmetic):
    """Emits formulas into the current function."""

    program: Program
    _mask: Value | None
    _cache: dict[Expr, Value]
    _trail: list[Expr]
    _impure: list[Expr]
    _env: dict[str, Value]
    _buffers: dict[str, Memory | Registers]
    _ranges: dict[str, Any]

    # -- caching and scopes ---------------------------------------------------------------------------------------

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """What is emitted inside dominates nothing outside: forget it at the end."""
        mark = len(self._trail)
        yield
        for e in self._trail[mark:]:
            self._cache.pop(e, None)
        del self._trail[mark:]

    def _forget_loads(self) -> None:
        for e in self._impure:
            self._cache.pop(e, None)
        self._impure.clear()

    def _range(self, e: Expr) -> Range:
        return range_of(e, self._ranges)

    # -- formulas -------------------------------------------------------------------------------------------------

    def emit_expr(self, e: Expr, index: bool = False) -> Value:
        """The value of `e` here. `index`: a buffer index, whose sums cannot overflow."""
        if isinstance(e, ex.Const):
            return self.emit_Const(e)
        found = self._cache.get(e)
        if found is None:
            if e.dtype.lanes > 1:
                self._vectors += 1
            if index and isinstance(e, (ex.Add, ex.Sub, ex.Mul)) and e.dtype == dt.int64:
                found = self.binary(e.symbol, self.emit_expr(e.a, True), self.emit_expr(e.b, True), nsw=True)
            else:
                found = getattr(self, "emit_" + type(e).__name__)(e)
            # Under a mask a load is not what it is elsewhere.
            if found.impure:
                self._impure.append(e)
            self._cache[e] = found
            self._trail.append(e)
        return found

    def emit_Const(self, e: ex.Const) -> Value:
        return self.const(e.value, e.dtype)

    def emit_Var(self, e: ex.Var) -> Value:
        try:
            return self._env[e.name]
        except KeyError:
            raise CodegenError(
                f"variable '{e.name}' of kernel '{self.program.name}' has no value here", hint=VERIFY
            ) from None

    def _emit_binary(self, e: ex.Binary) -> Value:
        return self.binary(e.symbol, self.emit_expr(e.a), self.emit_expr(e.b))

    emit_Add = emit_Sub = emit_Mul = emit_Div = emit_Min = emit_Max = _emit_binary
    emit_BitAnd = emit_BitOr = emit_BitXor = emit_And = emit_Or = _emit_binary
    emit_Lt = emit_Le = emit_Eq = emit_Ne = _emit_binary

    def _emit_division(self, e: ex.Binary) -> Value:
        a, b = self.emit_expr(e.a), self.emit_expr(e.b)
        if not e.dtype.is_integer:
            return self.binary(e.symbol, a, b)
        divisor = e.b.value if isinstance(e.b, ex.Broadcast) else e.b
        by = int(divisor.value) if isinstance(divisor, ex.Const) else None
        of_a, of_b = self._range(e.a), self._range(e.b)
        nonnegative = e.dtype.kind == "int" and of_a.within(0, None) and of_b.within(0, None)
        safe = of_b.within(1, None) or of_b.within(None, -2)
        return self.divide(e.symbol, a, b, nonnegative, safe, by)

    emit_FloorDiv = emit_FloorMod = emit_TruncDiv = emit_TruncMod = _emit_division

    def _emit_shift(self, e: ex.Binary) -> Value:
        a, b = self.emit_expr(e.a), self.emit_expr(e.b)
        if self._range(e.b).within(0, e.dtype.bits - 1):
            op = "shl" if e.symbol == "<<" else "ashr" if e.dtype.kind == "int" else "lshr"
            return self.op(f"{op} {self.value_type(e.dtype)} {a.text}, {b.text}", e.dtype, a, b)
        return self.binary(e.symbol, a, b)

    emit_ShiftLeft = emit_ShiftRight = _emit_shift

    def emit_Not(self, e: ex.Not) -> Value:
        return self.invert(self.emit_expr(e.a))

    def emit_Cast(self, e: ex.Cast) -> Value:
        if isinstance(e.value, ex.Call) and e.value.name == "round" and e.dtype.scalar == dt.int32:
            return self.nearest_integer(self.emit_expr(e.value.args[0]), e.dtype)
        return self.cast(self.emit_expr(e.value), e.dtype)

    def emit_Bitcast(self, e: ex.Bitcast) -> Value:
        return self.bitcast(self.emit_expr(e.value), e.dtype)

    def emit_Call(self, e: ex.Call) -> Value:
        return self.function(e.name, *(self.emit_expr(a) for a in e.args))

    def emit_Broadcast(self, e: ex.Broadcast) -> Value:
        return self.splat(self.emit_expr(e.value), e.lanes)

    def emit_Ramp(self, e: ex.Ramp) -> Value:
        base, d = self.splat(self.emit_expr(e.base), e.lanes), e.dtype
        t, scalar = self.value_type(d), self.scalar_type(d.scalar)
        steps = Value("<" + ", ".join(f"{scalar} {i}" for i in range(e.lanes)) + ">", d)
        if not (isinstance(e.stride, ex.Const) and e.stride.value == 1):
            stride = self.splat(self.emit_expr(e.stride), e.lanes)
            steps = self.op(f"mul {t} {steps.text}, {stride.text}", d, stride)
        return self.op(f"add {t} {base.text}, {steps.text}", d, base, steps)

    def emit_Select(self, e: ex.Select) -> Value:
        cond = self.emit_expr(e.cond)
        if not (self._may_fault(e.a, e.cond, True) or self._may_fault(e.b, e.cond, False)):
            return self.select(cond, self.emit_expr(e.a), self.emit_expr(e.b))
        if e.cond.dtype.lanes == 1:
            return self._branch(cond, lambda: self.emit_expr(e.a), lambda: self.emit_expr(e.b), e.dtype)
        a = self._masked(cond, e.a)
        b = self._masked(self.invert(cond), e.b)
        return self.select(cond, a, b)

    def _may_fault(self, side: Expr, cond: Expr, holds: bool) -> bool:
        """Whether `side` has a load that is not known to be good where it is not chosen."""
        stack = [side]
        while stack:
            n = stack.pop()
            if n in self._cache:
                continue
            if isinstance(n, Load) and not self._good_load(
                n, cond if holds else ex.not_(cond) if cond.dtype.lanes == 1 else ex.Not(cond)
            ):
                return True
            if isinstance(n, lp.IntrinsicCall):
                return True
            stack.extend(n.children())
        return False

    def _good_load(self, load: Load, cond: Expr) -> bool:
        if isinstance(self._buffers.get(load.buffer.name), Registers):
            return True
        if load.predicate is not None and cond in _conjuncts(load.predicate):
            return True
        return all(
            isinstance(n, ex.Const) and self._range(i).within(0, int(n.value) - 1)
            for i, n in zip(load.indices, load.buffer.shape)
        )

    def _branch(self, cond: Value, then: Callable[[], Value], orelse: Callable[[], Value], d: DType) -> Value:
        yes, no, end = self._label("then"), self._label("else"), self._label("join")
        self._line(f"br i1 {cond.text}, label %{yes}, label %{no}")
        incoming = []
        impure = cond.impure
        for label, side in ((yes, then), (no, orelse)):
            self._start(label)
            with self._scope():
                v = side()
            impure |= v.impure
            incoming.append(f"[ {v.text}, %{self._fn.block} ]")
            self._line(f"br label %{end}")
        self._start(end)
        return Value(self._op(f"phi {self.value_type(d)} " + ", ".join(incoming)), d, impure)

    def _masked(self, mask: Value, e: Expr) -> Value:
        """`e` with its loads done only in the lanes of `mask`."""
        outer = self._mask
        cache = self._cache
        # Loads made under a mask must not be found by others, and those found without one may be used.
        self._cache = dict(cache)
        trail, impure = self._trail, self._impure
        self._trail, self._impure = [], []
        self._mask = mask if outer is None else self.logic("and", outer, mask)
        try:
            return self.emit_expr(e)
        finally:
            self._mask, self._cache, self._trail, self._impure = outer, cache, trail, impure

    # -- addresses ------------------------------------------------------------------------------------------------

    def _find(self, b: Buffer) -> Memory | Registers:
        try:
            return self._buffers[b.name]
        except KeyError:
            raise CodegenError(
                f"buffer '{b.name}' of kernel '{self.program.name}' is not allocated here", hint=VERIFY
            ) from None

    def _flat(self, b: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """One row-major index."""
        if len(indices) == 1:
            return indices[0]
        flat: Expr = lp.int64(0)
        for i, n in zip(indices, b.shape):
            flat = ex.add(ex.mul(flat, n), i)
        return flat

    def _index(self, e: Expr) -> str:
        v = self.emit_expr(e, index=True)
        return v.text if v.dtype.bits == 64 else self.cast(v, dt.int64).text

    def _place(self, type_: str, pointer: str, index: Expr, inbounds: bool = True) -> str:
        """The address of an element.

        Addresses of 32 bits are summed up term by term where none is negative, those of outer loops first and the
        constant last: each sum lies in the buffer, so none wraps. LLVM then computes outside of a loop what it does not
        change, and WebAssembly's loads and stores add the constant themselves. From an index of 64 bits, which is cut,
        it would not know.
        """
        terms = self._terms(index) if inbounds and self.isa.pointer == 4 else None
        if terms is None:
            return self._gep(type_, pointer, self._index(index), inbounds)
        for term in terms:
            pointer = self._gep(type_, pointer, self._index(term), nuw=True)
        return pointer

    def _terms(self, index: Expr) -> list[Expr] | None:
        """The terms of an index from the outermost loop's to the constant; None if one may be negative."""
        if index.dtype != dt.int64:
            return None
        form = polynomial(index)
        found = [(product, Polynomial({product: factor}).expr()) for product, factor in form.terms.items()]
        if form.constant < 0 or not all(self._range(term).within(0, None) for _, term in found):
            return None
        depth = {name: k for k, name in enumerate(self._env, 1)}
        places = [
            max((depth.get(v, 0) for atom in m for v in ex.free_vars(atom)), default=len(depth) + 1) for m, _ in found
        ]
        return [term for _, (_, term) in sorted(zip(places, found), key=lambda pair: pair[0])]

    def address(self, load: Load) -> str:
        """The address of the first element that `load` names, for intrinsics."""
        memory = self._find(load.buffer)
        if isinstance(memory, Registers):
            raise CodegenError(f"buffer '{load.buffer.name}' is in registers and has no address")
        index = self._flat(load.buffer, load.indices)
        if isinstance(index, (ex.Ramp, ex.Broadcast)):
            index = index.children()[0]
        return self._place(self.memory_type(load.buffer.dtype), memory.pointer, index)

    def _from_memory(self, text: str, d: DType) -> Value:
        if d.is_bool:
            return Value(
                self._op(
                    f"icmp ne {self.memory_type(d)} {text}, zeroinitializer" if d.lanes > 1 else f"icmp ne i8 {text}, 0"
                ),
                d,
                True,
            )
        if d.bits < 8 and d.name not in self.soft:
            return Value(self._op(f"trunc {self.memory_type(d)} {text} to {self.value_type(d)}"), d, True)
        return Value(text, d, True)

    def _to_memory(self, v: Value) -> str:
        d = v.dtype
        if d.bits < 8 and d.name not in self.soft:
            return self._op(
                f"{'sext' if d.kind == 'int' else 'zext'} {self.value_type(d)} {v.text} to {self.memory_type(d)}"
            )
        return v.text

    def _predicate(self, predicate: Expr | None, lanes: int) -> tuple[Value | None, Value | None]:
        """(condition on all of it, mask per lane): the given predicate and the mask of the select around."""
        whole: Value | None = None
        mask = self._mask
        if mask is not None and lanes == 1:
            # A scalar under a vector's mask is wanted if any lane is.
            whole, mask = self._any(mask), None
        if predicate is not None:
            p = self.emit_expr(predicate)
            if p.dtype.lanes == 1:
                whole = p if whole is None else self.logic("and", whole, p)
            else:
                mask = p if mask is None else self.logic("and", mask, p)
        if whole is not None and whole.text == "true":
            whole = None
        return whole, mask

    def _any(self, mask: Value) -> Value:
        """Whether any lane of a mask is true."""
        name = f"llvm.vector.reduce.or.{self.llvm_suffix(mask.dtype)}"
        return Value(self.intrinsic("i1", name, (self.value_type(mask.dtype), mask.text)), dt.bool_, mask.impure)


def _conjuncts(e: Expr) -> list[Expr]:
    return [*_conjuncts(e.a), *_conjuncts(e.b)] if isinstance(e, ex.And) else [e]
