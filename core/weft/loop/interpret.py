"""The meaning of loop programs: any Program, at any stage, run one statement at a time on numpy, every access checked.

A Program is first written out as Python source, for speed: integers and booleans become Python numbers, wrapped to their dtype where
they may leave its range; floats are numpy scalars; vectors are numpy arrays of lanes. A node without a direct Python form
is handed to `weft.expr.evaluate`, one node at a time, so formulas have one meaning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import ExprError, LoopError, nearest
from weft.expr import nodes as e
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Expr, Var
from weft.loop.grids import AWAIT_COPIES, COPY_ASYNC, COPY_BOX, SHUFFLE, WHOLE_WARP, is_shuffle
from weft.loop.nodes import (
    PREFETCH,
    TRUE,
    Allocate,
    AtomicUpdate,
    Block,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    While,
    walk_stmts,
)  # fmt: skip
from weft.loop.passes.start_empty_reductions import start_empty_reductions
from weft.loop.printer import excerpt
from weft.loop.queues import Await, Begin, Pending

BARRIER = "barrier"


@dataclass(frozen=True)
class Address:
    """Where an intrinsic with `addresses = True` receives a Load: `array` is the whole buffer, flat; `offset` the element."""

    buffer: Buffer
    array: np.ndarray[Any, Any]
    offset: int


def interpret(
    program: Program,
    arrays: Mapping[str, Any] | Sequence[Any],
    dims: Mapping[str, int] | None = None,
    *,
    intrinsics: Mapping[str, Callable[..., Any]] | None = None,
    shuffle_seed: int | None = None,
    in_place: bool = False,
) -> dict[str, np.ndarray[Any, Any]]:
    """Runs `program` and returns its outputs by name.

    Args:
        arrays: the inputs by name, or in order.
        dims: values of the program's dims; those that are a whole dimension of an input need not be given.
        intrinsics: functions for IntrinsicCalls by name, called with the arguments' values; a function whose attribute `addresses`
            is true gets an `Address` for each argument that is a Load of one element.
        shuffle_seed: run the iterations of parallel, block and thread loops in a random order, which exposes races.
        in_place: let the pairs of `program.aliases` share memory.

    Elements never stored read as NaN, or as a far-off number (integers). Threads of threadIdx loops meet at `barrier()`.

    Raises:
        LoopError: an access outside its buffer (with the statement marked), a division by zero, inputs that do not fit, an unknown
            intrinsic, or a barrier that only some threads reach.
    """
    return _Run(program, arrays, dims or {}, intrinsics or {}, shuffle_seed, in_place).outputs()


def sentinel(dtype: DType) -> Any:
    """What an element of `dtype` reads as before the first store: NaN if it has one."""
    scalar = dtype.scalar
    if scalar.kind in ("float", "complex"):
        return np.float64(np.nan).astype(scalar.numpy)
    if scalar.is_integer:
        return int(e.wrap_integer(-0x5A5A5A5A5A5A5A5B, scalar))
    return True if scalar.is_bool else None


def int_range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer or boolean dtype."""
    if dtype.is_bool:
        return 0, 1
    return (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.kind == "int" else (0, (1 << dtype.bits) - 1)


# -- what generated code calls ----------------------------------------------------------------------------------------


class _Fault(Exception):
    """Raised by generated code; becomes a LoopError with the statement that was running."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


def _outside(access: str, name: str, shape: Sequence[int], indices: Sequence[Any]) -> NoReturn:
    lists = [int(i) if np.ndim(i) == 0 else [int(x) for x in i] for i in indices]
    raise _Fault(f"{access} '{name}' is out of bounds: indices {lists}, shape {[int(d) for d in shape]}")


def _off_iterator(block: str, name: str, value: int, extent: int) -> NoReturn:
    raise _Fault(f"block '{block}': iterator '{name}' is {value}, its extent is {extent}", "bind it inside its extent, or exclude the step by the predicate")


def _lanes_inside(access: str, name: str, shape: Sequence[int], indices: Sequence[Any], mask: Any) -> None:
    for i, d in zip(indices, shape):
        bad = (np.asarray(i) < 0) | (np.asarray(i) >= d)
        if np.any(bad & mask):
            _outside(access, name, shape, indices)


def _vector_load(name: str, array: Any, lanes: int, indices: tuple[Any, ...], mask: Any) -> Any:
    if mask is None:
        _lanes_inside("load of", name, array.shape, indices, True)
        return np.array(np.broadcast_to(array[indices], (lanes,)))
    mask = np.broadcast_to(np.asarray(mask, bool), (lanes,))
    _lanes_inside("load of", name, array.shape, indices, mask)
    result = np.zeros(lanes, array.dtype)
    if mask.any():
        result[mask] = array[tuple(np.broadcast_to(np.asarray(i), (lanes,))[mask] for i in indices)]
    return result


def _vector_store(name: str, array: Any, lanes: int, indices: tuple[Any, ...], value: Any, mask: Any) -> None:
    mask = np.broadcast_to(np.asarray(mask, bool), (lanes,))
    _lanes_inside("store to", name, array.shape, indices, mask)
    value = np.broadcast_to(np.asarray(value, array.dtype), (lanes,))
    columns = [np.broadcast_to(np.asarray(i), (lanes,)) for i in indices]
    for lane in np.flatnonzero(mask):
        array[tuple(c[lane] for c in columns)] = value[lane]


_ATOMIC: dict[str, Callable[[Any, Any], Any]] = {"add": lambda a, b: a + b, "min": np.minimum, "max": np.maximum}


def _vector_atomic(name: str, array: Any, lanes: int, indices: tuple[Any, ...], op: str, value: Any) -> None:
    _lanes_inside("atomic update of", name, array.shape, indices, True)
    value = np.broadcast_to(np.asarray(value, array.dtype), (lanes,))
    columns = [np.broadcast_to(np.asarray(i), (lanes,)) for i in indices]
    for lane in range(lanes):
        at = tuple(c[lane] for c in columns)
        array[at] = _ATOMIC[op](array[at], value[lane])


def _fmin(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


def _fmax(a: Any, b: Any) -> Any:
    return a if b < a or a != a else b


def _truncdiv(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _truncmod(a: int, b: int) -> int:
    return a - _truncdiv(a, b) * b


def _shift_left(a: int, b: int, bits: int) -> int:
    return a << b if 0 <= b < bits else 0


def _shift_right(a: int, b: int, bits: int) -> int:
    return a >> (b if 0 <= b < bits else bits)


def _lockstep(numbers: Sequence[int], thread: Callable[[int], Generator[Any, Any, None]]) -> Iterator[None]:
    """Runs threads from barrier to barrier; yields at each. In between they hand each other values, where both come to the same shuffle."""
    threads = {n: thread(n) for n in numbers}
    while True:
        at = {n: next(t, _DONE) for n, t in threads.items()}
        while shown := {n: a for n, a in at.items() if type(a) is tuple}:  # (which shuffle, bit, value)
            for n, (site, bit, _) in shown.items():
                if shown.get(n ^ bit, (None,))[0] != site:
                    raise _Fault(f"thread {n} wants a value of thread {n ^ bit}, which does not come to the same shuffle", "let all threads of a warp shuffle")
            at |= {n: _given(threads[n], shown[n ^ bit][2]) for n, (_, bit, _) in shown.items()}
        waiting = [a is None for a in at.values()]
        if not any(waiting):
            return
        if not all(waiting):
            raise _Fault(f"{sum(waiting)} of {len(waiting)} threads wait at a barrier that the others never reach", "move the barrier out of the condition")
        yield None


class _Copies(Pending):
    """Copies that threads of a group have begun are one queue of each thread."""

    def copy(self, thread: tuple[int, ...], to: Address, source: Address, size: int) -> None:
        count = size // to.buffer.dtype.bytes
        if to.offset + count > to.array.size or source.offset + count > source.array.size:
            raise _Fault(f"a copy of {count} elements from '{source.buffer.name}' to '{to.buffer.name}' leaves its buffer")
        self._later(thread, to, count, lambda: source.array[source.offset : source.offset + count].copy())

    def box(self, thread: tuple[int, ...], to: Address, source: Address, *numbers: int) -> None:
        n = len(numbers) // 4
        start, extents, strides, sizes = (numbers[k * n : k * n + n] for k in range(4))
        if any(thread):
            raise _Fault(f"thread {thread} begins to copy a box: the first of a group does")
        if to.offset + prod(sizes) > to.array.size or sum((k - 1) * s for k, s in zip(extents, strides)) >= source.array.size:
            raise _Fault(f"a box of {list(sizes)} elements of '{source.buffer.name}' leaves its buffer, or '{to.buffer.name}'")
        at, inside = np.zeros((1,) * n, np.int64), np.ones((1,) * n, bool)
        for k in range(n):  # the first dim is the fastest
            here = (start[k] + np.arange(sizes[k])).reshape([-1 if j == n - 1 - k else 1 for j in range(n)])
            at, inside = at + here * strides[k], inside & (here >= 0) & (here < extents[k])
        outside, where = ~inside.reshape(-1), np.where(inside, at, 0).reshape(-1)
        self._later(thread, to, prod(sizes), lambda: np.where(outside, source.array.dtype.type(0), source.array[where]))

    def _later(self, thread: tuple[int, ...], to: Address, count: int, values: Callable[[], Any]) -> None:
        self.later(thread, "", to.array[to.offset : to.offset + count], values, sentinel(to.buffer.dtype))

    def arrive(self, thread: tuple[int, ...]) -> None:
        self.wait(thread, "")


def _given(thread: Generator[Any, Any, None], value: Any) -> Any:
    try:
        return thread.send(value)
    except StopIteration:
        return _DONE


_DONE = object()


def _drain(steps: Iterator[None]) -> None:
    for _ in steps:
        raise _Fault("a barrier outside every threadIdx loop")


# -- source -----------------------------------------------------------------------------------------------------------


@dataclass
class _Code:
    """Python source of a formula; `lo`, `hi` bound an integer; `depth` counts nested parentheses."""

    text: str
    lo: int = 0
    hi: int = 0
    depth: int = 0


@dataclass
class _Storage:
    """A buffer in generated code: the array's variable, and its shape as source with bounds."""

    buffer: Buffer
    array: str
    shape: list[_Code]
    writable: bool


_LOCAL = re.compile(r"\b_[vbtd](\d+)(?:_\w+)?\b")
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
_NATIVE_FLOATS = ("float16", "float32", "float64")
_COMPARE = {e.Lt: "<", e.Le: "<=", e.Eq: "==", e.Ne: "!="}
_ARITHMETIC = {e.Add: "+", e.Sub: "-", e.Mul: "*", e.Div: "/"}
_BITS = {e.BitAnd: "&", e.BitOr: "|", e.BitXor: "^", e.And: "&", e.Or: "|"}


class _Run:
    def __init__(
        self,
        program: Program,
        arrays: Mapping[str, Any] | Sequence[Any],
        dims: Mapping[str, int],
        intrinsics: Mapping[str, Callable[..., Any]],
        shuffle_seed: int | None,
        in_place: bool,
    ) -> None:
        # A block's init is what its result starts from, also where there is no step.
        self.program = program = start_empty_reductions(program)
        self.intrinsics, self.shuffle = intrinsics, shuffle_seed is not None
        rng = np.random.default_rng(shuffle_seed)
        self.globals: dict[str, Any] = {
            "np": np, "evaluate": evaluate, "_outside": _outside, "_off_iterator": _off_iterator, "_vector_load": _vector_load,
            "_vector_store": _vector_store, "_vector_atomic": _vector_atomic, "_fmin": _fmin, "_fmax": _fmax, "_truncdiv": _truncdiv,
            "_truncmod": _truncmod, "_shift_left": _shift_left, "_shift_right": _shift_right, "_lockstep": _lockstep, "_drain": _drain,
            "_alloc": self.allocate, "Address": Address, "_order": lambda n: rng.permutation(n).tolist() if n > 0 else (),
        }  # fmt: skip
        copies = _Copies()
        self.globals |= {f"_{COPY_ASYNC}": copies.copy, f"_{COPY_BOX}": copies.box, f"_{AWAIT_COPIES}": copies.arrive}
        self.globals |= {"_begin": copies.begin, "_await": copies.awaited}
        self.thread: list[_Code] = []  # the numbers of a thread, axis by axis
        self.unit: list[_Code] = []  # those of all loops around whose iterations run at once
        self.lines: list[str] = []
        self.sources: list[Stmt | None] = []  # the statement that each line came from
        self.functions: list[str] = []  # lines of functions beside the kernel
        self.function_sources: list[Stmt | None] = []
        self.indent, self.nested, self.names = 1, 0, 0
        self.variables: dict[str, tuple[Var, _Code]] = {}
        self.python_names: dict[str, str] = {}  # generated name → name in the program
        self.storage: dict[str, _Storage] = {}
        self.constants: dict[tuple[str, str], str] = {}
        self.memo: list[dict[Expr, _Code]] = [{}]
        self.counts: Counter[Expr] = Counter()
        self.stmt: Stmt | None = None
        self.threads = 0
        self.mask: str | None = None  # the lanes that are wanted, inside a choice per lane
        self.bind(arrays, dims, in_place)

    # -- inputs and outputs
    def bind(self, arrays: Mapping[str, Any] | Sequence[Any], dims: Mapping[str, int], in_place: bool) -> None:
        p = self.program
        where = f"program {p.name}"
        if isinstance(arrays, Mapping):
            unknown = sorted(set(arrays) - {b.name for b in p.inputs})
            if unknown:
                raise LoopError(f"interpret: no input is named '{unknown[0]}'", where=where, hint="the inputs are " + ", ".join(b.name for b in p.inputs))
            missing = [b.name for b in p.inputs if b.name not in arrays]
            if missing:
                raise LoopError(f"interpret: no array for input '{missing[0]}'", where=where)
            given = [np.asarray(arrays[b.name]) for b in p.inputs]
        else:
            if len(arrays) != len(p.inputs):
                raise LoopError(f"interpret: got {len(arrays)} array(s) for {len(p.inputs)} input(s)", where=where)
            given = [np.asarray(a) for a in arrays]
        values: dict[str, int] = {k: int(v) for k, v in dims.items()}
        for b, a in zip(p.inputs, given):
            rank = len(b.shape) + (b.dtype.lanes > 1)
            if a.dtype != b.dtype.numpy or a.ndim != rank:
                raise LoopError(f"interpret: input '{b.name}' is {b.dtype} of rank {rank}, got {a.dtype} of rank {a.ndim}", where=where)
            for d, n in zip(b.shape, a.shape):
                if isinstance(d, Var):
                    values.setdefault(d.name, n)
        for d in p.dims:
            if d.name not in values:
                raise LoopError(f"interpret: no value for dim '{d.name}'", where=where, hint="pass dims={...}")
            self.variables[d.name] = (d, _number(values[d.name]))
        self.inputs: list[Any] = []
        for b, a in zip(p.inputs, given):
            shape = self.parameter_shape(b)
            if tuple(a.shape) != shape:
                raise LoopError(f"interpret: input '{b.name}' has shape {list(shape)}, got {list(a.shape)}", where=where)
            view = a.copy() if in_place else a.view()
            view.flags.writeable = in_place
            self.inputs.append(view)
            self.storage[b.name] = _Storage(b, self.name("_b", b.name), [_number(n) for n in shape[: len(b.shape)]], False)
        shared = {out: self.inputs[into] for out, into in p.aliases} if in_place else {}
        self.results: list[Any] = []
        for q, b in enumerate(p.outputs):
            shape = self.parameter_shape(b)
            if q in shared and (shared[q].shape != shape or shared[q].dtype != b.dtype.numpy):
                raise LoopError(f"interpret: output '{b.name}' cannot share the memory of its alias: {list(shape)} and {list(shared[q].shape)}", where=where)
            self.results.append(shared[q] if q in shared else self.allocate(shape, b.dtype))
            self.storage[b.name] = _Storage(b, self.name("_b", b.name), [_number(n) for n in shape[: len(b.shape)]], True)

    def parameter_shape(self, b: Buffer) -> tuple[int, ...]:
        env = {name: np.dtype(v.dtype.numpy).type(code.lo) for name, (v, code) in self.variables.items()}
        for d in b.shape:
            for name in e.free_vars(d):
                if name not in env:
                    raise LoopError(f"interpret: the shape of '{b.name}' uses '{name}', which is no dim", where=f"program {self.program.name}")
        shape = tuple(int(evaluate(d, env)) for d in b.shape)
        return (*shape, b.dtype.lanes) if b.dtype.lanes > 1 else shape

    @staticmethod
    def allocate(shape: tuple[int, ...], dtype: DType) -> Any:
        if any(d < 0 for d in shape):
            raise _Fault(f"a buffer of negative size {list(shape)} is allocated")
        return np.full(shape, sentinel(dtype), dtype.numpy)

    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        p = self.program
        self.statement(p.body)
        parameters = ", ".join(self.storage[b.name].array for b in p.params)
        tail = " return\n yield" if _has_meeting(p.body) else " return"  # a yield anywhere makes it a generator
        source = "\n".join([*self.functions, f"def kernel({parameters}):", *self.lines, tail])
        self.sources = [*self.function_sources, None, *self.sources]
        exec(compile(source, "<interpret>", "exec"), self.globals)
        with np.errstate(all="ignore"):
            try:
                steps = self.globals["kernel"](*self.inputs, *self.results)
                if steps is not None:
                    _drain(steps)
            except (_Fault, ZeroDivisionError, ExprError) as fault:
                raise self.error(fault) from None
        return {b.name: a for b, a in zip(p.outputs, self.results)}

    def error(self, fault: Exception) -> LoopError:
        """The fault with the statement that was running and the values of the variables around it."""
        stmt, values = None, {}
        tb = fault.__traceback__
        while tb is not None:
            if tb.tb_frame.f_code.co_filename == "<interpret>":
                if tb.tb_lineno <= len(self.sources):
                    stmt = self.sources[tb.tb_lineno - 1] or stmt
                for k, v in tb.tb_frame.f_locals.items():
                    if k in self.python_names and not isinstance(v, np.ndarray):
                        values[self.python_names[k]] = v
            tb = tb.tb_next
        what = str(fault) if isinstance(fault, _Fault) else fault.what if isinstance(fault, ExprError) else "integer division by zero"
        why = "here " + ", ".join(f"{k} = {v}" for k, v in values.items()) if values else None
        return LoopError(what, where=excerpt(self.program, at=stmt), why=why, hint=getattr(fault, "hint", None))

    def fail(self, what: str, hint: str | None = None) -> NoReturn:
        raise LoopError(what, where=excerpt(self.program, at=self.stmt), hint=hint)

    # -- lines
    def put(self, line: str) -> None:
        self.lines.append(" " * self.indent + line)
        self.sources.append(self.stmt)

    def name(self, prefix: str, original: str | None = None) -> str:
        self.names += 1
        result = f"{prefix}{self.names}"
        if original is not None:
            result += "_" + re.sub(r"\W", "_", original)
            if prefix == "_v":
                self.python_names[result] = original
        return result

    def constant(self, value: Any, key: tuple[str, str]) -> str:
        if key not in self.constants:
            self.constants[key] = self.name("_k")
            self.globals[self.constants[key]] = value
        return self.constants[key]

    def bound(self, value: Any) -> str:
        name = self.name("_g")
        self.globals[name] = value
        return name

    # -- statements
    def statement(self, s: Stmt) -> None:
        outer, self.stmt = self.stmt, s
        match s:
            case Seq():
                for inner in s.stmts:
                    self.statement(inner)
            case For():
                self.loop(s)
            case While():
                self.put("while True:")
                self.indent += 1
                self.nested += 1
                (cond,) = self.formulas(s.cond)
                self.put(f"if not {cond.text}: break")
                self.statement(s.body)
                self.indent -= 1
                self.nested -= 1
            case If():
                (cond,) = self.formulas(s.cond)
                self.put(f"if {cond.text}:")
                self.suite(s.then)
                if s.orelse is not None:
                    self.put("else:")
                    self.suite(s.orelse)
            case Let() if is_shuffle(s) and SHUFFLE not in self.intrinsics:
                assert isinstance(s.value, IntrinsicCall)
                if not self.threads:
                    self.fail("a shuffle outside every threadIdx loop")
                value, bit = self.formulas(*s.value.args)
                name = self.name("_v", s.var.name)
                self.put(f"{name} = yield ({self.names}, {bit.text}, {value.text})")
                bounds = int_range(s.var.dtype) if s.var.dtype.is_integer or s.var.dtype.is_bool else (0, 0)
                self.scoped(s.var, _Code(name, *bounds), lambda: self.statement(s.body))
            case Let():
                (value,) = self.formulas(s.value)
                name = self.name("_v", s.var.name)
                self.put(f"{name} = {value.text}")
                self.scoped(s.var, _Code(name, value.lo, value.hi), lambda: self.statement(s.body))
            case Allocate():
                self.allocation(s)
            case Store():
                self.store(s)
            case AtomicUpdate():
                self.atomic(s)
            case Evaluate():
                if s.call.name == BARRIER and BARRIER not in self.intrinsics:
                    if not self.threads:
                        self.fail("a barrier outside every threadIdx loop")
                    self.put("yield")
                elif s.call.name == PREFETCH and PREFETCH not in self.intrinsics:
                    self.statement_of(*s.call.args)
                    for a in s.call.args:
                        if isinstance(a, Load):
                            self.check("prefetch of", self.find(a.buffer), [self.formula(i) for i in a.indices])
                elif s.call.name in (COPY_ASYNC, COPY_BOX, AWAIT_COPIES) and s.call.name not in self.intrinsics:
                    self.statement_of(*s.call.args)
                    places = [self.address(a) if isinstance(a, Load) else self.formula(a).text for a in s.call.args]
                    self.put(f"_{s.call.name}({', '.join([f'({_items(self.thread)})', *places])})")
                elif isinstance(meaning := self.intrinsics.get(s.call.name), (Begin, Await)):
                    self.statement_of(*s.call.args)
                    places = [self.address(a) if isinstance(a, Load) else self.formula(a).text for a in s.call.args]
                    act = "_begin" if isinstance(meaning, Begin) else "_await"
                    self.put(f"{act}({', '.join([f'({_items(self.unit)})', self.bound(meaning), *places])})")
                else:
                    self.put(self.formulas(s.call)[0].text)
            case Block():
                self.block(s)
            case _:
                raise LoopError(f"interpret: no meaning for a {type(s).__name__}", where=f"program {self.program.name}")
        self.stmt = outer

    def suite(self, s: Stmt) -> None:
        self.indent += 1
        if self.indent > 60 and not isinstance(s, (Store, Seq)):
            call = self.outlined(lambda: self.statement(s))
            self.put(f"yield from {call}" if self.threads and _has_meeting(s) else call)
            self.indent -= 1
            return
        start = len(self.lines)
        self.statement(s)
        if len(self.lines) == start:
            self.put("pass")
        self.indent -= 1

    def outlined(self, emit: Callable[[], _Code | None]) -> str:
        """A call of a function of its own with what `emit` puts: Python refuses 100 levels of indentation."""
        lines, sources, indent, nested, names = self.lines, self.sources, self.indent, self.nested, self.names
        self.lines, self.sources, self.indent, self.nested = [], [], 1, 0
        code = emit()
        self.put("pass" if code is None else f"return {code.text}")
        found = {m.group(): int(m.group(1)) for line in self.lines for m in _LOCAL.finditer(_TEXT.sub("", line))}
        # Numbers only grow: what has a smaller one than this function was made outside of it.
        call = f"{self.name('_f')}({', '.join(sorted(name for name, number in found.items() if number <= names))})"
        self.functions += [f"def {call}:", *self.lines]
        self.function_sources += [None, *self.sources]
        self.lines, self.sources, self.indent, self.nested = lines, sources, indent, nested
        return call

    def scoped(self, var: Var, code: _Code, body: Callable[[], None]) -> None:
        before = self.variables.get(var.name)
        self.variables[var.name] = (var, code)
        body()
        if before is None:
            del self.variables[var.name]
        else:
            self.variables[var.name] = before

    def loop(self, s: For) -> None:
        (extent,) = self.formulas(s.extent)
        name = self.name("_v", s.var.name)
        code = _Code(name, 0, max(0, extent.hi - 1))
        concurrent = s.kind not in ("serial", "vectorized", "unrolled")
        steps = f"{'_order' if concurrent and self.shuffle else 'range'}({extent.text})"
        around = [x for x, held in ((self.thread, s.kind.startswith("threadIdx")), (self.unit, concurrent)) if held]
        for numbers in around:
            numbers.append(code)
        self.steps(s, name, code, steps)
        for numbers in around:
            numbers.pop()

    def steps(self, s: For, name: str, code: _Code, steps: str) -> None:
        if s.kind.startswith("threadIdx") and _has_meeting(s.body):
            # Every thread is a generator that yields at barriers; an inner thread loop hands its barriers outwards.
            thread = self.name("thread")
            self.put(f"def {thread}({name}):")
            nested, self.nested = self.nested, 0
            self.threads += 1
            self.scoped(s.var, code, lambda: self.suite(s.body))
            self.threads -= 1
            self.nested = nested
            run = f"_lockstep({steps}, {thread})"
            self.put(f"yield from {run}" if self.threads else f"for _ in {run}: pass")
            return
        if self.nested >= 14:  # Python nests at most 20 loops in one function
            inner = self.name("part")
            self.put(f"def {inner}():")
            nested, self.nested = self.nested, 0
            self.indent += 1
            self.plain_loop(s, name, code, steps)
            self.indent -= 1
            self.nested = nested
            self.put(f"yield from {inner}()" if _has_meeting(s.body) and self.threads else f"{inner}()")
            return
        self.plain_loop(s, name, code, steps)

    def plain_loop(self, s: For, name: str, code: _Code, steps: str) -> None:
        self.put(f"for {name} in {steps}:")
        self.nested += 1
        self.scoped(s.var, code, lambda: self.suite(s.body))
        self.nested -= 1

    def allocation(self, s: Allocate) -> None:
        b = s.buffer
        shape = self.formulas(*b.shape)
        for k, d in enumerate(shape):
            if d.lo != d.hi:
                name = self.name("_d")
                self.put(f"{name} = {d.text}")
                shape[k] = _Code(name, d.lo, d.hi)
        array = self.name("_b", b.name)
        sizes = [d.text for d in shape] + ([str(b.dtype.lanes)] if b.dtype.lanes > 1 else [])
        self.put(f"{array} = _alloc(({''.join(d + ', ' for d in sizes)}), {self.bound(b.dtype)})")
        before = self.storage.get(b.name)
        self.storage[b.name] = _Storage(b, array, shape, True)
        self.statement(s.body)
        if before is None:
            del self.storage[b.name]
        else:
            self.storage[b.name] = before

    def target(self, buffer: Buffer) -> _Storage:
        storage = self.find(buffer)
        if not storage.writable:
            self.fail(f"interpret: the input '{buffer.name}' is stored to")
        return storage

    def store(self, s: Store) -> None:
        storage = self.target(s.buffer)
        lanes = max((i.dtype.lanes for i in s.indices), default=1)
        if lanes > 1:
            *indices, value, mask = self.formulas(*s.indices, s.value, TRUE if s.predicate is None else s.predicate)
            self.put(f"_vector_store({s.buffer.name!r}, {storage.array}, {lanes}, ({_items(indices)}), {value.text}, {mask.text})")
            return
        guarded = s.predicate is not None and s.predicate != TRUE
        if guarded:
            assert s.predicate is not None
            (cond,) = self.formulas(s.predicate)
            self.put(f"if {cond.text}:")
            self.indent += 1
        *indices, value = self.formulas(*s.indices, s.value)
        self.check("store to", storage, indices)
        self.put(f"{storage.array}[{_items(indices) or '()'}] = {value.text}")
        if guarded:
            self.indent -= 1

    def atomic(self, s: AtomicUpdate) -> None:
        storage = self.target(s.buffer)
        lanes = max((i.dtype.lanes for i in s.indices), default=1)
        if lanes > 1:
            *indices, value = self.formulas(*s.indices, s.value)
            self.put(f"_vector_atomic({s.buffer.name!r}, {storage.array}, {lanes}, ({_items(indices)}), {s.op!r}, {value.text})")
            return
        op = {"add": e.Add, "min": e.Min, "max": e.Max}[s.op]
        *indices, value = self.formulas(*s.indices, op(Load(s.buffer, s.indices), s.value))
        self.put(f"{storage.array}[{_items(indices) or '()'}] = {value.text}")

    def block(self, s: Block) -> None:
        bindings = self.formulas(*s.bindings)
        before = {i.var.name: self.variables.get(i.var.name) for i in s.iters}
        for it, binding in zip(s.iters, bindings):
            name = self.name("_v", it.var.name)
            self.put(f"{name} = {binding.text}")
            self.variables[it.var.name] = (it.var, _Code(name, binding.lo, binding.hi))
        indent = self.indent
        if s.predicate != TRUE:
            (cond,) = self.formulas(s.predicate)
            self.put(f"if {cond.text}:")
            self.indent += 1
        first = []
        for it in s.iters:
            var, code = self.variables[it.var.name]
            (extent,) = self.formulas(it.extent)
            if code.lo < 0 or code.hi >= extent.lo:
                self.put(f"if not 0 <= {code.text} < {extent.text}: _off_iterator({s.name!r}, {it.var.name!r}, {code.text}, {extent.text})")
                self.variables[it.var.name] = (var, _Code(code.text, max(0, code.lo), max(0, min(code.hi, extent.hi - 1))))
            if it.kind == "reduce":
                first.append(f"{code.text} == 0")
        if s.init is not None:
            self.put(f"if {' and '.join(first) or 'True'}:")
            self.suite(s.init)
        self.statement(s.body)
        self.put("pass")
        self.indent = indent
        for name, old in before.items():
            if old is None:
                del self.variables[name]
            else:
                self.variables[name] = old

    # -- formulas
    def formulas(self, *exprs: Expr) -> list[_Code]:
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

    def formula(self, x: Expr) -> _Code:
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

    def temporary(self, code: _Code) -> _Code:
        name = self.name("_t")
        self.put(f"{name} = {code.text}")
        return _Code(name, code.lo, code.hi)

    def literal(self, x: e.Const) -> _Code:
        if x.dtype.lanes > 1:
            value = np.full(x.dtype.lanes, x.value, x.dtype.numpy)
            return _Code(self.constant(value, (repr(x.value), str(x.dtype))))
        if x.dtype.is_bool:
            return _Code(str(x.value), int(x.value), int(x.value))
        if x.dtype.is_integer:
            return _number(x.value)
        return _Code(self.constant(x.dtype.numpy.type(x.value), (repr(x.value), str(x.dtype))))

    def variable(self, x: Var) -> _Code:
        found = self.variables.get(x.name)
        if found is None:
            self.fail(f"interpret: variable '{x.name}' is not defined here")
        if found[0].dtype != x.dtype:
            self.fail(f"interpret: variable '{x.name}' is {found[0].dtype}, used as {x.dtype}")
        return found[1]

    def find(self, buffer: Buffer) -> _Storage:
        storage = self.storage.get(buffer.name)
        if storage is None:
            self.fail(f"interpret: buffer '{buffer.name}' does not exist here")
        if len(storage.buffer.shape) != len(buffer.shape) or storage.buffer.dtype != buffer.dtype:
            self.fail(f"interpret: buffer '{buffer.name}' is used as {buffer.dtype} of rank {len(buffer.shape)}, it is defined otherwise")
        return storage

    def check(self, access: str, storage: _Storage, indices: Sequence[_Code]) -> None:
        tests = [f"0 <= {i.text} < {d.text}" for i, d in zip(indices, storage.shape) if i.lo < 0 or i.hi >= d.lo]
        if tests:
            shape = "".join(f"{d.text}, " for d in storage.shape)
            self.put(f"if not ({' and '.join(tests)}): _outside({access!r}, {storage.buffer.name!r}, ({shape}), ({_items(indices)}))")

    def node(self, x: Expr) -> _Code:
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

    def general(self, x: Expr, args: Sequence[_Code]) -> _Code:
        """One node by `evaluate`, its children given as variables."""
        children = x.children()
        if self.mask is not None and isinstance(x, (e.FloorDiv, e.FloorMod, e.TruncDiv, e.TruncMod)):
            # A lane that nobody asks for may divide by zero.
            one = self.constant(x.dtype.numpy.type(1), ("1", x.dtype.name))
            args = (args[0], _Code(f"np.where({self.mask}, {args[1].text}, {one})"))
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

    def as_numpy(self, code: _Code, dtype: DType) -> str:
        if dtype.lanes > 1 or not (dtype.is_integer or dtype.is_bool):
            return code.text
        return f"{self.constant(dtype.numpy.type, ('type', dtype.name))}({code.text})"

    @staticmethod
    def from_numpy(text: str, dtype: DType) -> _Code:
        if dtype.lanes == 1 and dtype.is_bool:
            return _Code(f"bool({text})", 0, 1)
        if dtype.lanes == 1 and dtype.is_integer:
            return _Code(f"int({text})", *int_range(dtype))
        return _Code(text)

    def scalar(self, x: Expr, args: list[_Code]) -> _Code | None:
        """Source of a scalar node, None if it has no direct form."""
        kind = x.children()[0].dtype if x.children() else x.dtype
        match x:
            case e.Not():
                return _Code(f"(not {args[0].text})", 0, 1)
            case e.Binary():
                a, b = args
                if type(x) in _COMPARE:
                    return _Code(f"({a.text} {_COMPARE[type(x)]} {b.text})", 0, 1)
                if isinstance(x, (e.And, e.Or)):
                    return _Code(f"({a.text} {_BITS[type(x)]} {b.text})", 0, 1)
                if kind.is_integer:
                    return _integer(x, a, b)
                if kind.is_float and type(x) in _ARITHMETIC:
                    return _Code(f"({a.text} {_ARITHMETIC[type(x)]} {b.text})")
                if kind.is_float and isinstance(x, (e.Min, e.Max)):
                    return _Code(f"{'_fmin' if isinstance(x, e.Min) else '_fmax'}({a.text}, {b.text})")
            case e.Cast():
                a = args[0]
                if x.dtype.is_bool:
                    return _Code(f"({a.text} != 0)", 0, 1)
                if kind.is_bool and x.dtype.is_integer:
                    return _wrapped(f"int({a.text})", 0, 1, x.dtype)
                if kind.is_integer and x.dtype.is_integer:
                    return _wrapped(a.text, a.lo, a.hi, x.dtype)
                small = kind.is_bool or (kind.is_integer and a.lo >= -(1 << 53) and a.hi <= 1 << 53) or kind.name in _NATIVE_FLOATS
                if small and x.dtype.name in _NATIVE_FLOATS:
                    return _Code(f"np.{x.dtype.name}({a.text})")
        return None

    def vector(self, x: Expr, args: list[_Code]) -> _Code | None:
        match x:
            case e.Broadcast() if x.value.dtype.lanes == 1:
                return _Code(f"np.full({x.lanes}, {args[0].text}, {self.constant(x.dtype.numpy, ('dtype', x.dtype.name))})")
            case e.Ramp() if x.dtype.scalar == dt.int64:
                lanes = self.constant(np.arange(x.lanes, dtype=np.int64), ("arange", str(x.lanes)))
                return _Code(f"({args[0].text} + {args[1].text} * {lanes})")
            case e.Add() | e.Sub() | e.Mul() if x.dtype.is_float or (x.dtype.is_integer and x.dtype.bits >= 8):
                return _Code(f"({args[0].text} {_ARITHMETIC[type(x)]} {args[1].text})")
        return None

    def select(self, x: e.Select) -> _Code:
        """Only the chosen side is computed: a Load on the other side must not fault."""
        cond = self.formula(x.cond)
        if cond.depth > 10:
            cond = self.temporary(cond)
        sides: list[tuple[_Code, list[str], list[Stmt | None]]] = []
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
            return _Code(f"({a.text} if {cond.text} else {b.text})", lo, hi, max(a.depth, b.depth, cond.depth) + 1)
        name = self.name("_t")
        for head, code, lines, sources in ((f"if {cond.text}:", a, a_lines, a_sources), ("else:", b, b_lines, b_sources)):
            self.put(head)
            self.lines += lines
            self.sources += sources
            self.indent += 1
            self.put(f"{name} = {code.text}")
            self.indent -= 1
        return _Code(name, lo, hi)

    def blend(self, x: e.Select) -> _Code:
        """A choice per lane: a side's loads touch its own lanes only."""
        cond, outer = self.temporary(self.formula(x.cond)).text, self.mask
        sides = []
        for side, own in ((x.a, cond), (x.b, f"np.logical_not({cond})")):
            self.mask = self.temporary(_Code(own if outer is None else f"np.logical_and({outer}, {own})")).text
            self.memo.append({})
            sides.append(self.formula(side).text)
            self.memo.pop()
        self.mask = outer
        return _Code(f"np.where({cond}, {sides[0]}, {sides[1]})", depth=1)

    def outlined_formula(self, x: Expr) -> _Code:
        bounds = _Code("")

        def emit() -> _Code:
            code = self.formula(x)
            bounds.lo, bounds.hi = code.lo, code.hi
            return code

        return _Code(self.outlined(emit), bounds.lo, bounds.hi)

    def load(self, x: Load) -> _Code:
        storage, outer = self.find(x.buffer), self.mask
        lanes = max((i.dtype.lanes for i in x.indices), default=1)
        indices = [self.formula(i) for i in x.indices]
        if lanes > 1 or (x.predicate is not None and x.predicate.dtype.lanes > 1):
            if x.buffer.dtype.lanes > 1:
                self.fail(f"interpret: buffer '{x.buffer.name}' holds vectors and is indexed by a vector")
            masks = ([] if self.mask is None else [self.mask]) + ([] if x.predicate is None else [self.formula(x.predicate).text])
            mask = "None" if not masks else masks[0] if len(masks) == 1 else f"np.logical_and({masks[0]}, {masks[1]})"
            return _Code(f"_vector_load({x.buffer.name!r}, {storage.array}, {x.dtype.lanes}, ({_items(indices)}), {mask})", depth=_deepest(indices))
        if x.predicate is not None and x.predicate != TRUE:
            return self.select(e.Select(x.predicate, Load(x.buffer, x.indices), e.Const(0, x.dtype)))
        if self.mask is not None:
            wanted, self.mask = Var(" any lane", dt.bool_), None
            self.variables[wanted.name] = (wanted, _Code(f"{outer}.any()", 0, 1))
            code = self.select(e.Select(wanted, x, e.Const(0, x.dtype)))
            self.mask = outer
            return code
        indices = [self.temporary(i) if i.depth > 2 else i for i in indices]
        self.check("load of", storage, indices)
        code = self.from_numpy(f"{storage.array}[{_items(indices) or '()'}]", x.dtype)
        if x.dtype.lanes > 1:
            code.text += ".copy()"
        code.depth = _deepest(indices)
        return code

    def address(self, x: Load) -> str:
        storage = self.find(x.buffer)
        indices = [self.formula(i) for i in x.indices]
        self.check("address in", storage, indices)
        offset = "0"
        for i, d in zip(indices, storage.shape):
            offset = f"(({offset}) * {d.text} + {i.text})"
        return f"Address({self.bound(storage.buffer)}, {storage.array}.reshape(-1), {offset})"

    def intrinsic(self, x: IntrinsicCall) -> _Code:
        function = self.intrinsics.get(x.name, _first_lane if x.name == WHOLE_WARP else None)
        if function is None:
            close = nearest(x.name, self.intrinsics)
            known = f"did you mean '{close}'?" if close else "pass its meaning: interpret(…, intrinsics={name: function})"
            self.fail(f"interpret: unknown intrinsic '{x.name}'", known)
        texts = []
        for a in x.args:
            if isinstance(a, Load) and a.dtype.lanes == 1 and getattr(function, "addresses", False):
                texts.append(self.address(a))
            else:
                texts.append(self.as_numpy(self.formula(a), a.dtype))
        call = f"{self.bound(function)}({', '.join(texts)})"
        return _Code(call) if x.dtype == dt.handle else self.temporary(self.from_numpy(call, x.dtype))


def _first_lane(x: Any) -> bool:
    """The condition WHOLE_WARP where one thread does the work of its warp."""
    return bool(x == 0)


def _has_meeting(stmt: Stmt) -> bool:
    """Whether threads wait for each other in it."""
    return any((isinstance(s, Evaluate) and s.call.name == BARRIER) or is_shuffle(s) for s in walk_stmts(stmt))


def _number(value: int) -> _Code:
    return _Code(str(value) if value >= 0 else f"({value})", value, value)


def _items(codes: Sequence[_Code]) -> str:
    return "".join(f"{c.text}, " for c in codes)


def _deepest(codes: Sequence[_Code]) -> int:
    return max((c.depth for c in codes), default=0) + 1


def _wrapped(text: str, lo: int, hi: int, dtype: DType) -> _Code:
    """An integer brought back into the range of its dtype, if it may have left it."""
    least, greatest = int_range(dtype)
    if least <= lo and hi <= greatest:
        return _Code(text, lo, hi)
    mask = (1 << dtype.bits) - 1
    if dtype.kind == "uint":
        return _Code(f"(({text}) & {mask})", least, greatest)
    half = 1 << (dtype.bits - 1)
    return _Code(f"(((({text}) + {half}) & {mask}) - {half})", least, greatest)


def _integer(x: e.Binary, a: _Code, b: _Code) -> _Code:
    """Source and bounds of a scalar integer operation."""
    least, greatest = int_range(x.dtype)
    bits = x.dtype.bits
    corners = [f(p, q) for f in ({e.Add: int.__add__, e.Sub: int.__sub__, e.Mul: int.__mul__}.get(type(x)),) if f for p in (a.lo, a.hi) for q in (b.lo, b.hi)]
    match x:
        case e.Add() | e.Sub() | e.Mul():
            return _wrapped(f"({a.text} {_ARITHMETIC[type(x)]} {b.text})", min(corners), max(corners), x.dtype)
        case e.FloorDiv():
            far = max(abs(a.lo), abs(a.hi))
            quotients = [p // q for p in (a.lo, a.hi) for q in (b.lo, b.hi)] if b.lo > 0 else [-far, far]
            return _wrapped(f"({a.text} // {b.text})", min(quotients), max(quotients), x.dtype)
        case e.FloorMod():
            if b.lo > 0:
                return _Code(f"({a.text} % {b.text})", 0, min(b.hi - 1, a.hi) if a.lo >= 0 else b.hi - 1)
            return _Code(f"({a.text} % {b.text})", min(b.lo + 1, 0), max(b.hi - 1, 0))
        case e.TruncDiv():
            far = max(abs(a.lo), abs(a.hi))
            return _wrapped(f"_truncdiv({a.text}, {b.text})", -far, far, x.dtype)
        case e.TruncMod():
            return _Code(f"_truncmod({a.text}, {b.text})", min(a.lo, 0), max(a.hi, 0))
        case e.Min():
            return _Code(f"min({a.text}, {b.text})", min(a.lo, b.lo), min(a.hi, b.hi))
        case e.Max():
            return _Code(f"max({a.text}, {b.text})", max(a.lo, b.lo), max(a.hi, b.hi))
        case e.BitAnd() | e.BitOr() | e.BitXor():
            text = f"({a.text} {_BITS[type(x)]} {b.text})"
            if a.lo >= 0 and b.lo >= 0:
                return _Code(text, 0, (1 << max(a.hi.bit_length(), b.hi.bit_length())) - 1)
            return _Code(text, least, greatest)
        case e.ShiftLeft():
            return _wrapped(f"_shift_left({a.text}, {b.text}, {bits})", 2 * least - 1, 2 * greatest + 1, x.dtype)
        case e.ShiftRight():
            return _Code(f"_shift_right({a.text}, {b.text}, {bits})", min(a.lo, 0), max(a.hi, 0))
    raise LoopError(f"interpret: no meaning for '{x.symbol}' on {x.dtype}", where=str(x))
