"""reverse_compute_inline: an elementwise consumer in its producer's store."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.nodes import Expr, substitute, transform, walk
from weft.loop.nodes import Load, Program, Seq, Store
from weft.scheduling.dependence import out_of_scope, readers, reads, writers
from weft.scheduling.primitives.compute_inline import drop_allocation, single_store, whole_index
from weft.scheduling.region import accesses, certain, loops_under, union_box
from weft.scheduling.rewrite import clean_extents, domain, outgrows, own_predicate, private_depth, tidy
from weft.scheduling.tree import Tree, blocks_in


def reverse_compute_inline(program: Program, block: str) -> tuple[Program, None]:
    """Folds elementwise consumer `block` into its producer, which then stores the final value; the block and the buffer between disappear.

        block A(ai: n = i) { a[ai] = x[ai]*2.0f32 }      block B(bi: n = j) { y[bi] = a[bi] + 1.0f32 }
        → reverse_compute_inline("B")
        block A(ai: n = i) { y[ai] = x[ai]*2.0f32 + 1.0f32 }
    """
    step = "reverse_compute_inline"
    tree = Tree(program)
    path, b = tree.block_path(block, step), tree.block(block, step)
    store, value = single_store(tree, b, step)
    if own_predicate(b):
        raise tree.error(step, f"'{block}' runs only where {b.predicate}", (block,))
    candidates = [n for n in reads(b) if tree.parameter(n) is None and set(readers(tree, [n])) - set(writers(tree, [n])) == {block}]
    for name in candidates:
        suppliers = writers(tree, [name])
        loads = [n for n in walk(value) if isinstance(n, Load) and n.buffer.name == name]
        if len({x.indices for x in loads}) == 1:
            dims = whole_index(Store(loads[0].buffer, loads[0].indices, loads[0]), b)
            if dims is not None:
                break
    else:
        why = f"'{block}' is not elementwise in an intermediate buffer that only it reads"
        raise tree.error(step, why, (block,), "compute_inline the producer, or reverse_compute_at")
    if len(suppliers) != 1:
        raise tree.error(step, f"blocks {suppliers} all write '{name}'", suppliers, "reverse_compute_inline before decompose_reduction")
    producer = tree.block(suppliers[0], step)
    hint = f"reverse_compute_at('{block}', a loop of '{producer.name}') keeps the block and moves it"
    inner, formula = single_store(tree, producer, step, hint)
    extents = {i.var.name: i.extent for i in b.iters}
    for k, v in dims.items():
        shape = inner.buffer.shape[k]
        if shape != extents[v] and not (certain_equal(shape, extents[v])):
            raise tree.error(step, f"'{block}' takes {extents[v]} of the {shape} elements of '{name}' in dimension {k}", (block, producer.name), hint)
    order = [x.name for x in blocks_in(program.body)]
    needs = [n for n in reads(b) if n != name]
    late = [w for w in writers(tree, needs, but=block) if order.index(w) > order.index(producer.name)]
    if late:
        raise tree.error(step, f"'{late[0]}' writes what '{block}' reads only after '{producer.name}'", (producer.name, late[0], block))
    if (readers(tree, [store.buffer.name], but=block) and any(
        order.index(r) < order.index(block) for r in readers(tree, [store.buffer.name], but=block)
    )) or writers(tree, [store.buffer.name]) != [block]:
        raise tree.error(step, f"'{store.buffer.name}' is used before '{block}'", (block,))
    there = tree.block_path(producer.name, step)
    lost = out_of_scope(tree, b, there)
    if lost is not None:
        why = f"buffer '{lost}' of '{block}' does not exist at '{producer.name}'"
        raise tree.error(step, why, (block, producer.name, lost), "inline before compact_buffer")
    depth = private_depth(path, b)
    if depth is not None:
        moving = {**loops_under(Seq(()), domain(there[:depth])), **domain(there[depth:])}
        written = union_box([a.box(moving) for a in accesses(producer, name) if a.write])
        if outgrows(path, b, {v: written[k] for k, v in dims.items()}) is not None:
            why = f"'{producer.name}' stores more per iteration than '{block}' takes, and '{block}' uses buffers that live for one iteration"
            raise tree.error(step, why, (block, producer.name), "inline before compact_buffer")
    values = {v: inner.indices[k] for k, v in dims.items()}

    def load(node: Expr) -> Expr | None:
        return formula if isinstance(node, Load) and node.buffer.name == name else None

    def put(e: Expr) -> Expr:
        # Loads first: the consumer's iterators must not be looked for in the producer's formula.
        marked = substitute(e, values)
        return tidy(transform(marked, load), clean_extents(producer))

    new = replace(producer, body=Store(store.buffer, tuple(put(i) for i in store.indices), put(value)))
    removed = Tree(tree.replace(path, None))
    return drop_allocation(removed.replace(removed.block_path(producer.name, step), new), name), None


def certain_equal(a: Expr, b: Expr) -> bool:
    return certain(a <= b, {}) and certain(b <= a, {})
