"""Tensor intrinsics: an instruction as its meaning, the requirements of its operands, and its code.

    A, B, k = placeholder((8, 8), name="A"), placeholder((8, 8), name="B"), reduce_axis(8, "k")
    C = compute((8, 8), lambda i, j: sum(A[i, k] * B[k, j], axis=k), name="C")
    gemm8x8 = Intrinsic(
        "gemm8x8", C, (Operand("A"), Operand("B"), Operand("C")),
        compute=Call("gemm8x8"), reset=Call("fill_zero"), update=Call("fuse_gemm8x8_add"),
    )

The primitive `tensorize` finds blocks with this meaning and replaces them by the code. The form follows Chen et al.,
"TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 4.3. Since the meaning can be
evaluated, a tensorized Program can be interpreted (`meanings`), and code can be checked against its meaning
(`weft_testing.intrinsics`). `weft.scheduling.views` has what code gets, `weft.scheduling.execution` how
code is interpreted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from weft import dtypes as dt
from weft.errors import LoopError, ScheduleError, WeftError, from_signal, nearest
from weft.expr.nodes import (
    Const,
    Eq,
    Expr,
    FloorMod,
    Var,
    const,
    free_vars,
    substitute,
    transform,
    wrap,
)
from weft.expr.simplify import simplify
from weft.forks import cached_property
from weft.loop.meanings import OfAddresses, sentinel
from weft.loop.nodes import Block, BlockIter, Buffer, For, IterKind, Load, Program, Stmt, Store
from weft.loop.queues import Queue
from weft.scheduling.execution import meanings as meanings
from weft.scheduling.execution import prepare, size
from weft.scheduling.execution import queued as queued
from weft.scheduling.views import Call as Call
from weft.scheduling.views import Code
from weft.scheduling.views import Operand as Operand
from weft.scheduling.views import OperandView as OperandView
from weft.tensor.language import Compute, Dim, Placeholder, Read, Reduce, Tensor, placeholder

Form = Literal["compute", "reset", "update"]
_TRIED = (1, 2, 3, 5, 8, 16, 37, 64, 100, 256)
"""Lengths that examples are made of."""


@dataclass(frozen=True, eq=False)
class Intrinsic:
    """An instruction, or a few, that compute a small tensor.

    Args:
        name: what `tensorize` and traces call it.
        meaning: a `compute` over placeholders; every index is a sum of axes times constants. The start of a reduction
            is its reducer's. Shapes are constants, or variables (`weft.var`) where the instruction takes its length as
            an operand: each is the extent of an axis, too.
        operands: in the order in which code gets them: one per placeholder, by its name, then the result.
        compute: the whole.
        reset: stores the start of the reduction.
        update: adds the reduction to what the result holds.
        requires: words that `Machine.features` must have.
        instructions: what instructions in the code mean, where they are not a `Call`: name → function, as `interpret`
            takes them.
        limits: conditions that the lengths meet, as `m * n <= 1024` (`weft.expr.nodes.le`). A length is a multiple of 8
            if a limit says `eq(n % 8, 0)`. The least lengths, 1 or those multiples, are allowed.
        dynamic: lengths that the instruction takes from a register, so that they may be formulas which only a run
            knows. Others are constants in the code.
        warps: of an instruction that works in fragments: how many warps hold these together and execute it.
        queue: of an instruction that a chip begins and does not wait for, such as a copy: its code is one `Call`, named
            NAME, for `compute` alone. Before code is made it becomes `begin_NAME` and waits of the queue
            (`weft.loop.queues`).

    Raises:
        ScheduleError: the declaration contradicts itself.
    """

    name: str
    meaning: Tensor
    operands: tuple[Operand, ...]
    compute: Code
    reset: Code | None = None
    update: Code | None = None
    requires: tuple[str, ...] = ()
    instructions: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: MappingProxyType({}))
    limits: tuple[Expr, ...] = ()
    dynamic: tuple[str, ...] = ()
    warps: int = 1
    queue: Queue | None = None
    given: tuple[int, ...] = field(default=(), repr=False)
    """Of an intrinsic that `at` gave: the lengths."""

    def __post_init__(self) -> None:
        source = self.meaning.source
        if not isinstance(source, Compute) or len(source.bodies) != 1:
            self._fail("its meaning is no single compute", "give what weft.compute returned")
        outside = [t.name for t in source.inputs if not isinstance(t.source, Placeholder)]
        if outside:
            self._fail(f"its meaning computes '{outside[0]}' on the way", "write one formula over placeholders")
        names = [o.name for o in self.operands]
        wanted = [t.name for t in source.inputs]
        if sorted(names[:-1]) != sorted(wanted) or len(set(names)) != len(names):
            self._fail(
                f"its operands are {', '.join(names) or 'none'}",
                f"one for each of {', '.join(wanted) or 'no placeholder'}, then the result",
            )
        for operand, tensor in zip(self.operands, self.tensors):
            self._check_operand(operand, tensor)
        if self.reduction is not None and not all(isinstance(a.extent, (int, Var)) for a in self.reduction.axes):
            self._fail("its reduction has no constant extent", "instructions have constant shapes, or lengths")
        self._check_lengths()
        if self.reduction is not None and not self.reduction.reducer.commutative:
            self._fail(
                f"its code may not reduce by '{self.reduction.reducer.name}' in any order, and tensorize does not keep"
                " the order of loops"
            )
        if self.reduction is None and (self.reset is not None or self.update is not None):
            self._fail("it has code to reset or update and its meaning reduces nothing")

        if self.queue is not None and (not isinstance(self.compute, Call) or self.reduction is not None):
            self._fail(
                "it is begun in a queue, and is no single Call, or reduces",
                "give compute=Call(NAME), and a meaning without a reduction",
            )

    def _check_operand(self, operand: Operand, tensor: Tensor) -> None:
        if not all(
            (isinstance(d, int) and d > 0) or (isinstance(d, Var) and d.name in self.lengths) for d in tensor.shape
        ):
            why = f"the shape of '{operand.name}' is {list(map(str, tensor.shape))}"
            self._fail(why, "instructions have constant shapes, or lengths that are extents of axes of the meaning")
        if operand.strides is not None and len(operand.strides) != tensor.rank:
            self._fail(f"operand '{operand.name}' has {tensor.rank} dimension(s) and {len(operand.strides)} stride(s)")
        if operand.align < 1 or operand.align & (operand.align - 1):
            self._fail(f"operand '{operand.name}' is aligned to {operand.align} bytes", "alignments are powers of two")

    def _check_lengths(self) -> None:
        unknown = sorted({v for x in self.limits for v in free_vars(x)} - set(self.lengths))
        if unknown:
            self._fail(
                f"a limit speaks of '{unknown[0]}', which is no length",
                "lengths are variables in the shape of the meaning",
            )
        if not self.allows(self.least):
            least = (
                "lengths of 1"
                if set(self.least.values()) == {1}
                else ", ".join(f"{v} = {n}" for v, n in self.least.items())
            )
            self._fail(
                f"its limits forbid {least}",
                "the least lengths are 1, or what limits say that they are multiples of, and are allowed",
            )
        foreign = [v for v in self.dynamic if v not in self.lengths]
        if foreign:
            self._fail(f"'{foreign[0]}' is dynamic and no length", "lengths are variables in the shape of the meaning")

    def _fail(self, why: str, hint: str | None = None) -> None:
        raise ScheduleError(f"the intrinsic '{self.name}' is ill declared", why=why, hint=hint)

    # -- the meaning
    @property
    def source(self) -> Compute:
        assert isinstance(self.meaning.source, Compute)
        return self.meaning.source

    @property
    def reduction(self) -> Reduce | None:
        return self.source.reduce

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensor of each operand."""
        by_name = {t.name: t for t in self.source.inputs}
        return (*(by_name[o.name] for o in self.operands[:-1]), self.meaning)

    # -- lengths
    @cached_property
    def lengths(self) -> tuple[str, ...]:
        """The variables that stand for extents of axes, in the order of the axes; none: all shapes are constants."""
        extents = [*self.source.shape, *(() if self.reduction is None else (a.extent for a in self.reduction.axes))]
        return tuple(dict.fromkeys(d.name for d in extents if isinstance(d, Var)))

    @cached_property
    def extents(self) -> tuple[tuple[Var, Dim, IterKind], ...]:
        """Variable, extent (a number, or a length) and kind ("spatial" or "reduce") of each axis, those of the result
        first."""
        found: list[tuple[Var, Dim, IterKind]] = [
            (v, n, "spatial") for v, n in zip(self.source.axes, self.source.shape)
        ]
        if self.reduction is not None:
            found += [(a.var, a.extent, "reduce") for a in self.reduction.axes]
        return tuple(found)

    @cached_property
    def spoken(self) -> frozenset[str]:
        """The lengths that the formula itself speaks of."""
        (body,) = self.source.bodies
        parts = (*body.values, *body.init) if isinstance(body, Reduce) else (body,)
        names = frozenset(v for e in parts for v in free_vars(e)) - {
            v.name for v, _, _ in self.extents
        }  # an axis may be named as its length is
        return names & frozenset(self.lengths)

    @cached_property
    def multiples(self) -> dict[str, int]:
        """What each length is a multiple of, by the limits that say `n % c == 0`."""
        found = dict.fromkeys(self.lengths, 1)
        for limit in self.limits:
            for rest, zero in ((limit.a, limit.b), (limit.b, limit.a)) if isinstance(limit, Eq) else ():
                if (
                    isinstance(rest, FloorMod)
                    and isinstance(rest.a, Var)
                    and isinstance(rest.b, Const)
                    and zero == const(0)
                ):
                    found[rest.a.name] = math.lcm(found[rest.a.name], int(rest.b.value))
        return found

    @property
    def least(self) -> dict[str, int]:
        """The least value of each length."""
        return dict(self.multiples)

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether lengths meet the limits."""
        return self.broken(sizes) is None

    def broken(self, sizes: Mapping[str, int]) -> Expr | None:
        """The first limit that lengths do not meet."""
        values = {v: const(n) for v, n in sizes.items()}
        return next((x for x in self.limits if simplify(substitute(x, values)) != Const(True, dt.bool_)), None)

    def at(self, sizes: Mapping[str, int]) -> Intrinsic:
        """The same instruction with its lengths given: an intrinsic of constant shapes, whose code gets them."""
        if not self.lengths:
            return self
        key = tuple(sizes[v] for v in self.lengths)
        if key not in self._fixed:
            self._fixed[key] = self._at(dict(zip(self.lengths, key)), key)
        return self._fixed[key]

    @cached_property
    def _fixed(self) -> dict[tuple[int, ...], Intrinsic]:
        return {}

    def _at(self, sizes: Mapping[str, int], given: tuple[int, ...]) -> Intrinsic:
        def fixed(dims: Iterable[Dim]) -> tuple[Dim, ...]:
            return tuple(sizes[d.name] if isinstance(d, Var) else d for d in dims)

        tensors = {id(t): placeholder(fixed(t.shape), t.dtype, t.name) for t in self.source.inputs}

        def rule(n: Expr) -> Expr | None:
            return Read(tensors[id(n.tensor)], n.indices) if isinstance(n, Read) else None

        spoken = {v: sizes[v] for v in self.spoken}

        def known(e: Expr) -> Expr:
            return transform(substitute(e, spoken), rule)

        (body,) = self.source.bodies
        if isinstance(body, Reduce):
            axes = tuple(replace(a, extent=fixed([a.extent])[0]) for a in body.axes)
            body = Reduce(
                body.reducer, tuple(known(v) for v in body.values), axes, body.index, tuple(known(v) for v in body.init)
            )
        else:
            body = known(body)
        shape = fixed(self.source.shape)
        meaning = Tensor(self.meaning.name, shape, self.meaning.dtype, Compute(self.source.axes, shape, (body,)))
        return replace(self, meaning=meaning, limits=(), dynamic=(), given=given)

    def examples(self) -> tuple[Intrinsic, ...]:
        """The intrinsic at some of the lengths that it allows, the least and great ones among them; itself, if it has
        none."""
        if not self.lengths:
            return (self,)
        unit = self.multiples
        found = [self.least]
        for v in self.lengths:
            found.append(
                {
                    **found[0],
                    v: max(
                        (n for n in (k * unit[v] for k in _TRIED) if self.allows({**found[0], v: n})), default=unit[v]
                    ),
                }
            )
        found += [s for k in (3, 2) if self.allows(s := {v: (k + d) * unit[v] for d, v in enumerate(self.lengths)})][:1]
        return tuple(self.at(s) for s in {tuple(s.values()): s for s in found}.values())

    @cached_property
    def axes(self) -> tuple[tuple[Var, int, IterKind], ...]:
        """As `extents`, of an intrinsic without lengths."""
        return tuple((v, size(n), kind) for v, n, kind in self.extents)

    @cached_property
    def held(self) -> Tensor:
        """Stands for what the result holds before an update."""
        return placeholder(self.meaning.shape, self.meaning.dtype, self.operands[-1].name)

    def form(self, form: Form) -> Tensor:
        """The meaning of one of the codes; an update reads `held`."""
        reduce, source = self.reduction, self.source
        if form == "compute" or reduce is None:
            return self.meaning
        body: Expr = reduce.init[0]
        if form == "update":
            body = Reduce(reduce.reducer, reduce.values, reduce.axes, 0, (Read(self.held, source.axes),))
        return Tensor(self.meaning.name, source.shape, self.meaning.dtype, Compute(source.axes, source.shape, (body,)))

    def code(self, form: Form) -> Code | None:
        return {"compute": self.compute, "reset": self.reset, "update": self.update}[form]

    def emit(self, form: Form, *views: OperandView | Const, lengths: Sequence[Expr] | None = None) -> Stmt:
        """The code of a form, which must be there, for operands in their places.

        Args:
            lengths: what the code gets for lengths; without it, those that `at` was given.

        Raises:
            ScheduleError: it fails, or gives no statement.
        """
        code = self.code(form)
        assert code is not None
        try:
            stmt = code(*views, *(map(const, self.given) if lengths is None else lengths))
        except WeftError:
            raise
        except Exception as error:  # foreign code
            if from_signal(error):
                raise
            raise ScheduleError(
                f"the {form} code of intrinsic '{self.name}' failed", why=f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(stmt, Stmt):
            raise ScheduleError(
                f"the {form} code of intrinsic '{self.name}' gives {stmt!r}, which is no statement",
                hint="return a weft.loop.nodes.Stmt",
            )
        return stmt

    def dense(self, operand: int) -> tuple[int, ...]:
        """Row-major strides of an operand."""
        shape = [size(d) for d in self.tensors[operand].shape]
        return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))

    def program(self) -> Program:
        """The meaning as a naive Program, one block under its nest."""
        buffers = {
            id(t): Buffer(
                o.name,
                tuple(wrap(d, dt.int64) for d in t.shape),
                t.dtype,
                (*o.scopes, "global")[0],
                o.align if o.align > 1 else 64,
            )
            for o, t in zip(self.operands, self.tensors)
        }
        inner = {v.name: Var(f"v_{v.name}", dt.int64) for v, _, _ in self.axes}
        out = buffers[id(self.meaning)]
        place = tuple(inner[v.name] for v in self.source.axes)

        def loads(e: Expr) -> Expr:
            def rule(n: Expr) -> Expr | None:
                return Load(buffers[id(n.tensor)], n.indices) if isinstance(n, Read) else None

            return substitute(transform(e, rule), inner)

        init: Stmt | None = None
        if self.reduction is None:
            value = loads(self.source.bodies[0])
        else:
            (value,) = self.reduction.reducer.combine([Load(out, place)], [loads(v) for v in self.reduction.values])
            init = Store(out, place, loads(self.reduction.init[0]))
        iters = tuple(BlockIter(inner[v.name], const(n), kind) for v, n, kind in self.axes)
        nest: Stmt = Block(
            self.operands[-1].name, iters, tuple(v for v, _, _ in self.axes), Store(out, place, value), init
        )
        for v, n, _ in reversed(self.axes):
            nest = For(v, const(n), nest)
        inputs = tuple(buffers[id(t)] for t in self.tensors[:-1])
        return Program(self.name, inputs, (out,), (), nest)

    # -- interpretation
    def means(self, form: Form) -> Callable[..., None]:
        """The form as a function for `interpret`: takes what a `Call` passes, and writes the result."""
        if self.lengths:

            def sized(*args: Any) -> None:
                count = len(args) - len(self.lengths)
                sizes = {v: int(n) for v, n in zip(self.lengths, args[count:])}
                broken = self.broken(sizes)
                if broken is not None:
                    raise LoopError(f"instruction of intrinsic '{self.name}': its lengths {sizes} do not meet {broken}")
                self.at(sizes).means(form)(*args)

            return OfAddresses(sized)
        prepared = prepare(self, form)

        def run(*args: Any) -> None:
            result, values = prepared(*args)
            result[...] = values()

        return OfAddresses(run)

    def begins(self) -> Callable[..., tuple[Any, Callable[[], Any], Any]]:
        """What `weft.loop.queues.Begin` runs: the result's place, a function that computes it, and what it reads as
        meanwhile."""
        nothing = sentinel(self.meaning.dtype)

        def run(*args: Any) -> tuple[Any, Callable[[], Any], Any]:
            at, count = self, len(args) - len(self.lengths)
            if self.lengths:
                at = self.at({v: int(n) for v, n in zip(self.lengths, args[count:])})
            return (*prepare(at, "compute")(*args), nothing)

        return run


def table(intrinsics: Iterable[Intrinsic]) -> dict[str, Intrinsic]:
    """Intrinsics by name.

    Raises:
        ScheduleError: two have one name.
    """
    found: dict[str, Intrinsic] = {}
    for i in intrinsics:
        if found.setdefault(i.name, i) is not i:
            raise ScheduleError(f"two intrinsics are called '{i.name}'", hint="rename one")
    return found


def find(intrinsics: Mapping[str, Intrinsic], name: str) -> Intrinsic:
    """The intrinsic of a name.

    Raises:
        ScheduleError: there is none; says what there is.
    """
    if name not in intrinsics:
        close = nearest(name, intrinsics)
        hint = (
            f"did you mean '{close}'?"
            if close
            else "there are " + (", ".join(intrinsics) or "none: a Schedule takes them as intrinsics={name: Intrinsic}")
        )
        raise ScheduleError(f"there is no intrinsic '{name}'", hint=hint)
    return intrinsics[name]
