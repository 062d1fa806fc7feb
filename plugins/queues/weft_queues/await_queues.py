"""Begins instructions of queues at their position, and waits before an access that depends on their result or changes
their operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr.nodes import Const, Expr, Var, add, const, floormod
from weft.loop.grids import THREAD_AXES
from weft.loop.nodes import (
    Allocate,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    seq,
    walk_stmts,
    with_stmt_children,
)
from weft.loop.passes.copies import Names
from weft.loop.printer import excerpt
from weft.loop.queues import Queue, begin
from weft_queues.nodes import Node, all_nodes, starts_anew
from weft_queues.waits import QueueAnalysis


def await_queues(program: Program, queues: Mapping[str, Queue]) -> Program:
    """Afterwards instructions of queues are begun, and wherever what one of them writes may be touched, or what it
    reads may be written, it has been awaited.

        allocate t: float32[2, 16] in tiles                              allocate t: float32[2, 16] in tiles
        @load(t[0, 0], x[0, 0])                                          @begin_load(t[0, 0], x[0, 0])
        for k in 7 {                                                     for k in 7 {
          @load(t[(k + 1) % 2, 0], x[k + 1, 0])                    →       @begin_load(t[(k + 1) % 2, 0], x[k + 1, 0])
          @gemm(c[0], t[k % 2, 0])                                         @await_dma(1)
        }                                                                  @gemm(c[0], t[k % 2, 0])
        @gemm(c[0], t[1, 0])                                             }
                                                                         @await_dma(0)
                                                                         @gemm(c[0], t[1, 0])

    A wait stands in front of the outermost statement that begins nothing itself and needs it, so not in the loops of a
    computation, and waits for no more than is needed: as many instructions may go on as have certainly begun since. It
    looks at loops turn by turn: an instruction is of this turn, of the one before, of an earlier one, and boxes of
    elements (`Evaluate.within`) are compared by their distance. Nothing goes on when its memory is given back, when an
    iteration of a loop ends whose iterations run at once, since each has its own queues, and when the kernel ends.

    Args:
        queues: instruction → its queue. Its last address is that of the result.

    Raises:
        LoopError: an instruction of a queue stands in a loop over threads.
    """
    if not any(isinstance(s, Evaluate) and s.call.name in queues for s in walk_stmts(program.body)):
        return program
    for loop in walk_stmts(program.body):
        if isinstance(loop, For) and loop.kind in THREAD_AXES:
            inner = next((s for s in walk_stmts(loop) if isinstance(s, Evaluate) and s.call.name in queues), None)
            if inner is not None:
                why = f"'{inner.call.name}' stands in a loop over threads"
                hint = "queues are of kernels that one thread runs, on each unit or task"
                raise LoopError(
                    f"await_queues: program '{program.name}' begins what it cannot await",
                    where=excerpt(program, at=inner),
                    why=why,
                    hint=hint,
                )
    analysis = QueueAnalysis(program, queues)
    nodes = analysis.with_waits()
    writer = _Writer(analysis, _turns(analysis, nodes), nodes, Names.of(program))
    return program.with_body(writer.body())


def _turns(analysis: QueueAnalysis, nodes: tuple[Node, ...]) -> dict[int, str]:
    """Site of a queue that is awaited by tokens → the loop whose even and odd turns have tokens of their own, if it
    is awaited a turn later."""
    found: dict[int, set[str]] = {}
    for node in all_nodes(nodes):
        for wait in node.waits.values():
            for k, when in wait.items:
                found.setdefault(k, set()).update(v for v, state in when if state == "last")
    return {k: next(iter(v)) for k, v in found.items() if len(v) == 1 and analysis.sites[k].queue.by == "token"}


class _Writer:
    """Writes the statements of one body that has queues of its own.

    Attributes:
        parity: of an instruction that is awaited by tokens, the loop whose even and odd turns have tokens of their own.
        tokens: by queue whose instructions give tokens, the buffer that holds them.
        slots: of each of these instructions, which two elements of the buffer are its own.
    """

    def __init__(
        self, analysis: QueueAnalysis, parity: Mapping[int, str], nodes: tuple[Node, ...], names: Names
    ) -> None:
        self.analysis, self.parity, self.nodes, self.names = analysis, parity, nodes, names
        self.tokens: dict[str, Buffer] = {}
        self.slots: dict[int, int] = {}
        counts: dict[str, int] = {}
        for k in self.mine(nodes):
            queue = analysis.sites[k].queue
            if queue.by == "token":
                self.slots[k] = counts.get(queue.name, 0)
                counts[queue.name] = self.slots[k] + 1
        for name, count in counts.items():
            self.tokens[name] = Buffer(names.fresh(f"{name}_tokens"), (const(2 * count),), dt.int32, "register")

    def body(self) -> Stmt:
        body = seq(*(self.visit(n, {}) for n in self.nodes))
        for b in self.tokens.values():
            var = Var(self.names.fresh(f"{b.name}_i"), dt.int64)
            body = Allocate(b, seq(For(var, b.shape[0], Store(b, (var,), Const(0, dt.int32))), body))
        return body

    def mine(self, inside: tuple[Node, ...]) -> Iterator[int]:
        """The instructions that are begun in this body, not in one within it."""
        for n in inside:
            if n.site is not None:
                yield n.site
            elif not starts_anew(n.stmt):
                yield from self.mine((*n.body, *n.other))

    def place(self, k: int, turn: Expr | int) -> Load:
        """The element that holds the token of an instruction, of one of two turns."""
        at = add(const(2 * self.slots[k]), turn)
        return Load(self.tokens[self.analysis.sites[k].queue.name], (at,))

    def waits(self, node: Node, loops: Mapping[str, Var]) -> Iterator[Stmt]:
        for name, wait in node.waits.items():
            queue = self.analysis.named[name]
            if queue.by == "all":
                yield Evaluate(IntrinsicCall(queue.wait, ()))
            elif queue.by == "count":
                yield Evaluate(IntrinsicCall(queue.wait, (const(wait.left),)))
            else:
                wanted: dict[Load, None] = {}
                for k, when in sorted(wait.items, key=lambda i: (i[0], sorted(i[1]))):
                    loop, states = self.parity.get(k), dict(when)
                    if loop is None:
                        wanted[self.place(k, 0)] = None
                    elif loop in loops and states.get(loop) in (None, "last"):
                        turn = floormod(add(loops[loop], 0 if states.get(loop) is None else 1), 2)
                        wanted[self.place(k, turn)] = None
                    else:
                        wanted |= dict.fromkeys((self.place(k, 0), self.place(k, 1)))
                yield from (Evaluate(IntrinsicCall(queue.wait, (p,))) for p in wanted)

    def visit(self, node: Node, loops: Mapping[str, Var]) -> Stmt:
        return seq(*self.waits(node, loops), self.itself(node, loops))

    def itself(self, node: Node, loops: Mapping[str, Var]) -> Stmt:
        s = node.stmt
        if s is None:
            return Seq(())
        if node.site is not None:
            assert isinstance(s, Evaluate)
            args = s.call.args
            if self.analysis.sites[node.site].queue.by == "token":
                loop = self.parity.get(node.site)
                args = (*args, self.place(node.site, 0 if loop is None else floormod(loops[loop], 2)))
            return replace(s, call=IntrinsicCall(begin(s.call.name), args))
        if not node.body:
            return s
        if starts_anew(s):
            return with_stmt_children(s, (_Writer(self.analysis, self.parity, node.body, self.names).body(),))
        if isinstance(s, For):
            loops = {**loops, s.var.name: s.var}
        parts = [node.body, node.other] if isinstance(s, If) and s.orelse is not None else [node.body]
        return with_stmt_children(s, tuple(seq(*(self.visit(n, loops) for n in part)) for part in parts))
