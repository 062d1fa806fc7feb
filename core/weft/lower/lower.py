"""`lower_group`: one group → one naive, correct Program.

Every Compute becomes a Block under a perfect nest of its own; a Scan becomes a sequential loop around the blocks of its
step. Only this module depends on both layouts and loops: a buffer has the layout of its value, its block iterates over
stored indices and binds the logical ones, and reads are composed with the layout. Only index formulas are simplified
here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weft import dtypes as dt
from weft.errors import LoweringError
from weft.expr.nodes import (
    Const,
    Expr,
    Select,
    Var,
    all_of,
    const,
    free_vars,
    select,
    substitute,
    transform,
    walk,
    wrap,
)
from weft.expr.ranges import Range, range_of
from weft.expr.simplify import simplify
from weft.graph.layout import Layout
from weft.graph.nodes import Graph
from weft.loop.nodes import (
    TRUE,
    Allocate,
    Block,
    BlockIter,
    Buffer,
    For,
    If,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    buffer,
    seq,
)
from weft.lower.collapse import collapse
from weft.lower.expressions import Expressions, Stage, choose_algorithm, group_expressions
from weft.lower.loop_programs import loop_program, stored_shape, symbols_of
from weft.lower.nests import Names, Nest
from weft.lower.splits import known_extent, padded_factor, split_factor
from weft.tensor.language import Compute, Placeholder, Read, Reduce, Scan, Tensor, depends_on


def lower_group(body: Graph, name: str = "kernel", algorithms: Mapping[str, str] | None = None) -> Program:
    """The naive Program of a group.

    Args:
        body: the group's graph; its inputs and outputs become the Program's, in order.
        algorithms: operator class → algorithm to use instead of the default.

    Raises:
        LoweringError: an operator has no algorithm that applies.
    """
    if (
        len(body.nodes) == 1
        and body.nodes[0].op.algorithms()
        and choose_algorithm(body.nodes[0], algorithms or {}).form == "program"
    ):
        return loop_program(body, name, algorithms or {})
    return collapse(_Lowering(group_expressions(body, algorithms), body, name).run())


def lower_tensors(inputs: Sequence[Tensor], outputs: Sequence[Tensor], name: str = "kernel") -> Program:
    """The naive Program of a user's own tensor expressions."""
    return _Lowering(Expressions(list(inputs), list(outputs)), None, name).run()


@dataclass
class _Lowering:
    expressions: Expressions
    graph: Graph | None
    name: str
    names: Names = field(default_factory=Names)  # of buffers and variables
    blocks: Names = field(default_factory=Names)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    layouts: dict[int, Layout | None] = field(default_factory=dict)
    allocated: list[Buffer] = field(default_factory=list)

    def run(self) -> Program:
        x = self.expressions
        # Sizes keep their names: a loop called as one would hide it.
        self.names.taken |= {
            v for t in (*x.inputs, *_order(x.outputs)) for d in t.shape for v in free_vars(wrap(d, dt.int64))
        }
        inputs = []
        for k, t in enumerate(x.inputs):
            inputs.append(self._declare(t, f"in{k}" if self.graph is not None else t.name, allocate=False))
        outputs: list[Buffer] = []
        copies: list[tuple[Buffer, Tensor]] = []
        order = _order(x.outputs)
        for t in x.outputs:
            if id(t) in self.buffers:  # an input returned as it is, or one tensor returned twice
                copy = Tensor("copy", t.shape, t.dtype, Placeholder())
                x.keep.append(copy)
                self.layouts[id(copy)] = self.layouts[id(t)]
                outputs.append(buffer(self.names.fresh("copy"), self.buffers[id(t)].shape, t.dtype))
                copies.append((outputs[-1], t))
            else:
                outputs.append(self._declare(t, None, allocate=False))
        stmts: list[Stmt] = []
        done: set[int] = set()
        for t in order:
            if id(t.source) in done or isinstance(t.source, Placeholder):
                continue
            done.add(id(t.source))
            stmts.append(self._scan(t, order) if isinstance(t.source, Scan) else self._compute(t, order))
        for out, t in copies:
            stmts.append(self._copy(out, self.buffers[id(t)], "copy"))
        body = seq(*stmts)
        for b in reversed(self.allocated):
            body = Allocate(b, body)
        return Program(self.name, tuple(inputs), tuple(outputs), symbols_of(body, (*inputs, *outputs)), body)

    # -- buffers
    def _layout(self, t: Tensor) -> Layout | None:
        value = self.expressions.values.get(id(t))
        if value is not None:
            return value.tensor.layout
        if not isinstance(t.source, Compute):
            return None
        if t.source.reduce is not None:
            # A reduction inside an operator (the sum of a mean) is stored like the result that it leads to.
            stage = self.expressions.stages.get(id(t.source))
            results = [
                s.value
                for s in self.expressions.stages.values()
                if stage is not None and s.node == stage.node and s.value is not None
            ]
            return next((v.tensor.layout for v in results if v.shape == t.shape), None)
        # Another stage (such as padding) is stored like the one value of its rank that it reads.
        read = [i for i in t.inputs if i.rank == t.rank]
        return self.layouts.get(id(read[0])) if len(read) == 1 else None

    def _declare(self, t: Tensor, name: str | None, allocate: bool = True) -> Buffer:
        if id(t) not in self.buffers:
            layout = self._layout(t)
            self.layouts[id(t)] = layout
            b = buffer(self.names.fresh(name or t.name), stored_shape(t.shape, layout), t.dtype)
            self.buffers[id(t)] = b
            if allocate:
                self.allocated.append(b)
        return self.buffers[id(t)]

    def _element(self, t: Tensor, indices: Sequence[Expr]) -> Expr:
        if id(t) in self.expressions.scalars:
            return self.expressions.scalars[id(t)]
        layout = self.layouts[id(t)]
        return Load(self.buffers[id(t)], tuple(layout.map(indices) if layout is not None else indices))

    def _formula(self, e: Expr, ranges: Mapping[str, Range]) -> Expr:
        """Reads become loads through layouts; index formulas simplified."""

        def rule(node: Expr) -> Expr | None:
            return self._element(node.tensor, node.indices) if isinstance(node, Read) else None

        return simplify(transform(e, rule), ranges)

    # -- computes
    def _compute(self, t: Tensor, order: Sequence[Tensor], scan: tuple[Var, Expr, Expr] | None = None) -> Stmt:
        """The nest of a Compute. `scan`: (step variable, its length, its value as a formula of the loop) when inside
        one."""
        source = t.source
        assert isinstance(source, Compute)
        outs = self._outputs(t, source, order)
        layout, stored = self.layouts[id(outs[0])], self.buffers[id(outs[0])].shape
        nest = Nest(self.blocks.fresh(t.name), self.names)
        if scan is not None:
            nest.step(*scan)
        # Unit dimensions get no loop, but a block has at least one.
        unit = [isinstance(n, Const) and n.value == 1 for n in stored]
        keep = len(stored) - 1 if all(unit) else -1
        spatial: list[Expr] = [
            const(0) if u and k != keep else nest.iterate(f"i{k}", n, "spatial")
            for k, (n, u) in enumerate(zip(stored, unit))
        ]
        logical, conditions = (
            layout.joined(spatial, source.shape, nest.within) if layout is not None else (tuple(spatial), [])
        )
        nest.values.update({a.name: i for a, i in zip(source.axes, logical)})
        reduce = source.reduce
        if reduce is not None:
            self._reduction_loops(nest, reduce, source.bodies)

        def formula(e: Expr) -> Expr:
            found = self._formula(substitute(e, nest.values), nest.ranges)
            return simplify(substitute(found, nest.held), nest.ranges) if nest.held else found

        inside = simplify(all_of(conditions), nest.ranges) if conditions else None

        def padded(e: Expr) -> Expr:
            return e if inside is None else simplify(select(inside, e, Const(0, e.dtype)), nest.ranges)

        targets = [Load(self.buffers[id(u)], tuple(spatial)) for u in outs]
        if reduce is None:
            body: Stmt = Store(targets[0].buffer, targets[0].indices, padded(formula(source.bodies[0])))
            return nest.of(body, None, self._annotations(source))
        after: Stmt | None = None
        if (
            inside is not None
            and len(outs) == 1
            and self._whole(inside, [formula(v) for v in reduce.values], nest.ranges)
        ):
            # The sum needs no condition; what lies in the padding is set to zero afterwards.
            whole = buffer(self.names.fresh(f"{t.name}_whole"), stored, t.dtype)
            self.allocated.append(whole)
            after = self._zeroed(
                targets[0].buffer,
                whole,
                f"{t.name}_padded",
                lambda index: all_of(layout.joined(index, source.shape)[1] if layout is not None else ()),
            )
            targets, inside = [Load(whole, tuple(spatial))], None
        init, body = self._accumulation(t.name, nest, source, targets, formula, padded)
        nest.reduce_once()
        result = nest.of(body, init, self._annotations(source))
        return result if after is None else seq(result, after)

    def _outputs(self, t: Tensor, source: Compute, order: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of all results of a Compute, declared; those that nothing reads are made."""
        present = {u.output: u for u in order if u.source is source}
        outs = [
            present.get(q) or Tensor(f"{t.name}_unused", source.shape, b.dtype, source, q)
            for q, b in enumerate(source.bodies)
        ]
        self.expressions.keep.extend(outs)
        for u in outs:
            self._declare(u, None)
        return outs

    def _reduction_loops(self, nest: Nest, reduce: Reduce, bodies: Sequence[Expr]) -> None:
        """The loops of a reduction's axes: two of an axis that a layout stores in blocks."""
        for k, axis in enumerate(reduce.axes):
            extent = wrap(axis.extent, dt.int64)
            if isinstance(extent, Const) and extent.value == 1:
                nest.values[axis.var.name] = const(0)
                continue
            parts = split_factor(self.layouts, axis, bodies)
            padded_to = padded_factor(self.layouts, axis, reduce) if parts is None else None
            parts = padded_to if parts is None else parts
            if parts is None:
                index: Expr = nest.iterate(f"r{k}", extent, "reduce")
            else:
                index = nest.iterate(f"r{k}", const(-(-known_extent(axis) // parts)), "reduce") * parts
                index = index + nest.iterate(f"r{k}i", const(parts), "reduce")
            nest.values[axis.var.name] = index if padded_to is None else nest.within(index, axis.extent)

    def _accumulation(
        self,
        name: str,
        nest: Nest,
        source: Compute,
        targets: Sequence[Load],
        formula: Callable[[Expr], Expr],
        padded: Callable[[Expr], Expr],
    ) -> tuple[Stmt, Stmt]:
        """The start of a reduction, and one step of it. `targets`: the element of each result."""
        reduce = source.reduce
        assert reduce is not None
        used = [b.index for b in source.bodies if isinstance(b, Reduce)]
        new, when = _conditional(reduce, formula)
        new = tuple(map(padded, new))
        starts = tuple(formula(s) for s in reduce.init)
        if len(targets) != reduce.reducer.width:
            why = f"it uses {len(targets)} of {reduce.reducer.width} results of reducer '{reduce.reducer.name}'"
            raise LoweringError(f"compute '{name}' cannot be lowered", why=why, hint="return all of them")
        places = [targets[used.index(q)] for q in range(reduce.reducer.width)]
        combined = reduce.reducer.combine(list[Expr](places), new)
        init = seq(*(Store(p.buffer, p.indices, s) for p, s in zip(places, starts)))
        if len(combined) == 1:
            step: Stmt = Store(targets[0].buffer, targets[0].indices, combined[0])
            return init, step if when is None else If(when, step)
        lets = [Var(self.names.fresh(f"{nest.block}_new{q}"), c.dtype) for q, c in enumerate(combined)]
        step = seq(*(Store(p.buffer, p.indices, v) for p, v in zip(places, lets)))
        for v, c in reversed(list(zip(lets, combined))):
            step = Let(v, c, step)
        return init, step

    def _annotations(self, source: Compute) -> tuple[tuple[str, int | str], ...]:
        """What rules and people know a block by."""
        stage = self.expressions.stages.get(id(source))
        annotations: list[tuple[str, int | str]] = []
        if stage is not None:
            annotations = [("op", stage.op), ("node", stage.node), ("algorithm", stage.algorithm)]
            if stage.composite is not None:
                annotations.append(("composite", stage.composite))
            if stage.part_of:
                annotations.append(("part_of", stage.part_of))
        role = source.role or (stage.role if stage is not None else "")
        if role:
            annotations.append(("role", role))
        return tuple(annotations)

    @staticmethod
    def _whole(inside: Expr, values: Sequence[Expr], ranges: Mapping[str, Range]) -> bool:
        """Whether formulas may be computed in the padding, too: what they load there exists."""
        padding = free_vars(inside).keys()
        for load in (n for v in values for n in walk(v) if isinstance(n, Load)):
            for index, size in zip(load.indices, load.buffer.shape):
                known = range_of(index, ranges) if padding & free_vars(index).keys() else None
                if known is not None and not (isinstance(size, Const) and known.within(0, size.value - 1)):
                    return False
        return True

    def _zeroed(self, to: Buffer, source: Buffer, base: str, inside: Callable[[list[Expr]], Expr]) -> Stmt:
        """A block that copies `source` to `to`, with zeros where not `inside`."""
        name = self.blocks.fresh(base)
        unit = [isinstance(n, Const) and n.value == 1 for n in source.shape]
        one = {
            k: BlockIter(Var(self.names.fresh(f"{name}_v{k}"), dt.int64), n)
            for k, (n, u) in enumerate(zip(source.shape, unit))
            if not u or all(unit)
        }
        iters, loops = list(one.values()), [Var(self.names.fresh(f"{name}_i{k}"), dt.int64) for k in one]
        ranges = {i.var.name: Range(0, i.extent.value - 1 if isinstance(i.extent, Const) else None) for i in iters}
        index: list[Expr] = [one[k].var if k in one else const(0) for k in range(len(unit))]
        value = simplify(select(inside(index), Load(source, tuple(index)), Const(0, source.dtype)), ranges)
        nest: Stmt = Block(
            name, tuple(iters), tuple(loops), Store(to, tuple(index), value), annotations=(("op", "padding"),)
        )
        for v, i in reversed(list(zip(loops, iters))):
            nest = For(v, i.extent, nest)
        return nest

    # -- scans
    def _copy(
        self, to: Buffer, source: Buffer, base: str, scan: tuple[Expr, Expr] | None = None, lead: bool = False
    ) -> Stmt:
        """A block that copies `source` to `to`; inside a scan, `lead` puts the step's index first in `to`."""
        name = self.blocks.fresh(base + "_copy")
        iters, bindings, loops, index = [], [], [], []
        if scan is not None:
            v = Var(self.names.fresh(f"{name}_vt"), dt.int64)
            iters.append(BlockIter(v, scan[0], "spatial" if lead else "scan"))
            bindings.append(scan[1])
        for k, extent in enumerate(source.shape):
            v = Var(self.names.fresh(f"{name}_v{k}"), dt.int64)
            loop = Var(self.names.fresh(f"{name}_i{k}"), dt.int64)
            iters.append(BlockIter(v, extent))
            bindings.append(loop)
            loops.append((loop, extent))
            index.append(v)
        target: tuple[Expr, ...] = (iters[0].var, *index) if lead else tuple(index)
        nest: Stmt = Block(
            name,
            tuple(iters),
            tuple(bindings),
            Store(to, target, Load(source, tuple(index))),
            annotations=(("op", "copy"),),
        )
        for v, extent in reversed(loops):
            nest = For(v, extent, nest)
        return nest

    def _scan(self, t: Tensor, order: Sequence[Tensor]) -> Stmt:
        source = t.source
        assert isinstance(source, Scan)
        outs = [u for u in order if u.source is source]
        stage = self.expressions.stages.get(id(source))
        for u in outs:
            self._declare(u, None)
        length = wrap(source.length, dt.int64)
        before: list[Stmt] = []
        for state, init in zip(source.states, source.init):
            self.layouts[id(state)] = None
            held = self._declare(state, "state")
            if id(init) in self.expressions.scalars:
                raise LoweringError("a scan starts from a scalar constant", hint="broadcast it to the state's shape")
            before.append(self._copy_tensor(held, init))
        loop = Var(self.names.fresh("t"), dt.int64)
        binding: Expr = length - 1 - loop if source.reverse else loop
        inside: list[Stmt] = []
        inner_order = [
            u
            for u in _order(source.updates)
            if not isinstance(u.source, Placeholder) and depends_on(u, source.states, source.step)
        ]
        done: set[int] = set()
        for u in inner_order:
            if id(u.source) in done:
                continue
            done.add(id(u.source))
            if isinstance(u.source, Scan):
                raise LoweringError("a scan inside a scan's step is not supported", where=t.name)
            if stage is not None:
                self.expressions.stages.setdefault(
                    id(u.source), Stage(stage.op, stage.node, stage.algorithm, stage.composite)
                )
            inside.append(self._compute(u, inner_order, (source.step, length, binding)))
        for q, update in enumerate(source.updates):
            carried = self.buffers[id(source.states[q])]
            for u in outs:
                if u.output == q and not source.last:
                    inside.append(
                        self._copy(self.buffers[id(u)], self.buffers[id(update)], "emit", (length, binding), lead=True)
                    )
            inside.append(self._copy(carried, self.buffers[id(update)], "carry", (length, binding)))
        stmts = [*before, For(loop, length, seq(*inside))]
        for u in outs:
            if source.last:
                stmts.append(self._copy(self.buffers[id(u)], self.buffers[id(source.states[u.output])], "last"))
        return seq(*stmts)

    def _copy_tensor(self, to: Buffer, source: Tensor) -> Stmt:
        if self.layouts.get(id(source)) is not None:
            raise LoweringError("a scan starts from a value with a blocked layout", where=source.name)
        return self._copy(to, self.buffers[id(source)], "start")


def _conditional(reduce: Reduce, formula: Callable[[Expr], Expr]) -> tuple[tuple[Expr, ...], Expr | None]:
    """The reduced values, and the condition on indices without which a step changes nothing: select(c, v, identity) is
    v if c."""
    value = reduce.values[0]
    if len(reduce.values) == 1 and isinstance(value, Select) and value.b == reduce.reducer.identity([value.dtype])[0]:
        condition = formula(value.cond)
        if not any(isinstance(n, Load) for n in walk(condition)):
            return (formula(value.a),), None if condition == TRUE else condition
    return tuple(formula(v) for v in reduce.values), None


def _order(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that `outputs` need, producers first; all outputs of one source together."""
    order: list[Tensor] = []
    seen: set[int] = set()

    def visit(t: Tensor) -> None:
        if id(t) in seen:
            return
        seen.add(id(t))
        inputs = t.inputs
        for i in inputs:
            visit(i)
        order.append(t)

    for t in outputs:
        visit(t)
    return order
