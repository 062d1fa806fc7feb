"""reverse_compute_inline: moves the formula of an elementwise consumer into its producer's store."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.linear import ZERO
from weft.expr.nodes import Const, Expr, FloorDiv, FloorMod, Var, add, const, mul, substitute, transform, walk
from weft.loop.nodes import Block, Load, Program, Seq, Stmt, Store, int_const
from weft.scheduling.dependence import out_of_scope, readers, reads, writers
from weft.scheduling.primitives.compute_inline import single_store
from weft.scheduling.region import Interval, accesses, certain, loops_under, union_box
from weft.scheduling.rewrite import clean_extents, domain, outgrows, own_predicate, private_depth, tidy
from weft.scheduling.tree import Path, Tree, blocks_in, rebuild_all


def reverse_compute_inline(program: Program, block: str) -> tuple[Program, None]:
    """Moves the formula of elementwise consumer `block` into its producer, which then stores the final value; the block
    and the buffer between disappear.

        block A(ai: n = i) { a[ai] = x[ai]*2.0f32 }      block B(bi: n = j) { y[bi] = a[bi] + 1.0f32 }
        → reverse_compute_inline("B")
        block A(ai: n = i) { y[ai] = x[ai]*2.0f32 + 1.0f32 }

    Dimensions that the consumer merges, `a[bi//4, bi%4]`, are elementwise as well: `bi` becomes the producer's `ai*4 +
    aj`.
    """
    step = "reverse_compute_inline"
    tree = Tree(program)
    path, b = tree.block_path(block, step), tree.block(block, step)
    store, value = single_store(tree, b, step)
    if own_predicate(b):
        raise tree.error(step, f"'{block}' runs only where {b.predicate}", (block,))
    name, dims, suppliers = _between(tree, b, value, step)
    if len(suppliers) != 1:
        raise tree.error(
            step,
            f"blocks {suppliers} all write '{name}'",
            suppliers,
            "reverse_compute_inline before decompose_reduction",
        )
    producer = tree.block(suppliers[0], step)
    hint = f"reverse_compute_at('{block}', a loop of '{producer.name}') keeps the block and moves it"
    inner, formula = single_store(tree, producer, step, hint)
    extents = {i.var.name: i.extent for i in b.iters}
    for v, parts in dims.items():
        (k, shape), *joined = ((k, inner.buffer.shape[k]) for k in parts)
        for _, more in joined:
            shape = mul(shape, more)
        if shape != extents[v] and not (certain_equal(shape, extents[v])):
            raise tree.error(
                step,
                f"'{block}' takes {extents[v]} of the {shape} elements of '{name}' in dimension {k}",
                (block, producer.name),
                hint,
            )
    _check_order(tree, b, producer, name, store, step)
    _check_there(tree, b, producer, name, dims, step)
    values: dict[str, Expr] = {}
    for v, parts in dims.items():
        values[v] = const(0)
        for k, factor in parts.items():
            values[v] = add(values[v], mul(inner.indices[k], const(factor)))

    def load(node: Expr) -> Expr | None:
        return formula if isinstance(node, Load) and node.buffer.name == name else None

    def put(e: Expr) -> Expr:
        # Loads first: the consumer's iterators must not be looked for in the producer's formula.
        marked = substitute(e, values)
        return tidy(transform(marked, load), clean_extents(producer))

    new = replace(producer, body=Store(store.buffer, tuple(put(i) for i in store.indices), put(value)))
    changes: list[tuple[Path, Stmt | None]] = [(path, None), (tree.block_path(producer.name, step), new)]
    body = rebuild_all(program.body, changes, tree.allocate_paths.get(name, ()))
    return program.with_body(body or Seq(())), None


def _between(tree: Tree, block: Block, value: Expr, step: str) -> tuple[str, dict[str, dict[int, int]], list[str]]:
    """The buffer between a consumer and its producer: its name, what `places` says of it, and the blocks that write
    it."""
    candidates = [
        n
        for n in reads(block)
        if tree.parameter(n) is None and set(readers(tree, [n])) - set(writers(tree, [n])) == {block.name}
    ]
    for name in candidates:
        loads = [n for n in walk(value) if isinstance(n, Load) and n.buffer.name == name]
        if len({x.indices for x in loads}) == 1:
            dims = places(loads[0], block)
            if dims is not None:
                return name, dims, writers(tree, [name])
    why = f"'{block.name}' is not elementwise in an intermediate buffer that only it reads"
    raise tree.error(step, why, (block.name,), "compute_inline the producer, or reverse_compute_at")


def _check_order(tree: Tree, block: Block, producer: Block, between: str, store: Store, step: str) -> None:
    """Checks that what `block` reads beside the buffer `between` is there before `producer`, and that nobody uses what
    it stores before it."""
    name, result = block.name, store.buffer.name
    order = [x.name for x in blocks_in(tree.program.body)]
    needs = [n for n in reads(block) if n != between]
    late = [w for w in writers(tree, needs, but=name) if order.index(w) > order.index(producer.name)]
    if late:
        raise tree.error(
            step,
            f"'{late[0]}' writes what '{name}' reads only after '{producer.name}'",
            (producer.name, late[0], name),
        )
    early = any(order.index(r) < order.index(name) for r in readers(tree, [result], but=name))
    if early or writers(tree, [result]) != [name]:
        raise tree.error(step, f"'{result}' is used before '{name}'", (name,))


def _check_there(
    tree: Tree, block: Block, producer: Block, between: str, dims: dict[str, dict[int, int]], step: str
) -> None:
    """Checks that the buffers of `block` are there, and the same, where `producer` stores to the buffer `between`."""
    path, there = tree.block_path(block.name, step), tree.block_path(producer.name, step)
    lost = out_of_scope(tree, block, there)
    if lost is not None:
        why = f"buffer '{lost}' of '{block.name}' does not exist at '{producer.name}'"
        raise tree.error(step, why, (block.name, producer.name, lost), "inline before compact_buffer")
    depth = private_depth(path, block)
    if depth is not None:
        moving = {**loops_under(Seq(()), domain(there[:depth])), **domain(there[depth:])}
        written = union_box([a.box(moving) for a in accesses(producer, between) if a.write])
        if outgrows(path, block, {v: _joined(written, parts) for v, parts in dims.items()}) is not None:
            why = (
                f"'{producer.name}' stores more per iteration than '{block.name}' takes, and '{block.name}' uses"
                " buffers that live for one iteration"
            )
            raise tree.error(step, why, (block.name, producer.name), "inline before compact_buffer")


def certain_equal(a: Expr, b: Expr) -> bool:
    return certain(a <= b, {}) and certain(b <= a, {})


def places(load: Load, block: Block) -> dict[str, dict[int, int]] | None:
    """Iterator → the dimensions it runs over, outermost first, each with the steps of the iterator that one step there
    takes.

    None unless every iterator runs over dimensions of its own, as whole index of one or split into quotient and
    remainder over two, and the others are zero.
    """
    iters = {i.var for i in block.iters}
    found: dict[str, dict[int, int]] = {}
    for k, e in enumerate(load.indices):
        if isinstance(e, Const) and e.value == 0:
            continue
        if isinstance(e, Var):
            v, parts = e, {k: 1}
        elif isinstance(e, FloorDiv) and isinstance(e.a, Var):
            v, c = e.a, int_const(e.b)
            rest = next((j for j, o in enumerate(load.indices) if o == FloorMod(v, e.b)), None)
            if c is None or rest is None or int_const(load.buffer.shape[rest]) != c:
                return None
            parts = {k: c, rest: 1}
        elif isinstance(e, FloorMod) and any(o == FloorDiv(e.a, e.b) for o in load.indices):
            continue
        else:
            return None
        if v not in iters or v.name in found:
            return None
        found[v.name] = parts
    return found if len(found) == len(iters) else None


def _joined(box: list[Interval | None], parts: dict[int, int]) -> Interval | None:
    """The box of an iterator that runs over several dimensions."""
    ends = [(box[k], factor) for k, factor in parts.items()]
    low, high = ZERO, ZERO
    for end, factor in ends:
        if end is None:
            return None
        low, high = low + end[0].scale(factor), high + end[1].scale(factor)
    return low, high
