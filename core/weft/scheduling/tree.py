"""Programs as trees with names: find and replace a loop, block or allocation, make a new name, report an error with its
place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from weft import dtypes as dt
from weft.errors import ScheduleError, nearest
from weft.expr.nodes import And, Const, Expr, Var, all_of
from weft.forks import cached_property
from weft.loop.nodes import (
    Allocate,
    Block,
    Buffer,
    For,
    Let,
    Program,
    Seq,
    Stmt,
    seq,
    stmt_children,
    substitute_stmt,
    with_stmt_children,
)

Path = tuple[Stmt, ...]
S = TypeVar("S", bound=Stmt)


class Tree:
    """A Program with the path (root first, the statement itself last) of every named statement."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.block_paths: dict[str, Path] = {}
        self.loop_paths: dict[str, Path] = {}
        self.allocate_paths: dict[str, Path] = {}
        self.names: set[str] = {b.name for b in program.params} | {d.name for d in program.dims}
        self._visit(program.body, ())

    def _visit(self, stmt: Stmt, above: Path) -> None:
        path = (*above, stmt)
        if isinstance(stmt, Block):
            self.block_paths[stmt.name] = path
            self.names.add(stmt.name)
            self.names.update(i.var.name for i in stmt.iters)
        elif isinstance(stmt, For):
            self.loop_paths[stmt.var.name] = path
            self.names.add(stmt.var.name)
        elif isinstance(stmt, Allocate):
            self.allocate_paths[stmt.buffer.name] = path
            self.names.add(stmt.buffer.name)
        elif isinstance(stmt, Let):
            self.names.add(stmt.var.name)
        for c in stmt_children(stmt):
            self._visit(c, path)

    # -- finding
    @cached_property
    def blocks(self) -> list[Block]:
        """In program order, outermost only."""
        return blocks_in(self.program.body)

    def block_path(self, name: str, step: str) -> Path:
        return self._get(self.block_paths, name, step, "block")

    def loop_path(self, name: str, step: str) -> Path:
        return self._get(self.loop_paths, name, step, "loop")

    def block(self, name: str, step: str) -> Block:
        found = self.block_path(name, step)[-1]
        assert isinstance(found, Block)
        return found

    def loop(self, name: str, step: str) -> For:
        found = self.loop_path(name, step)[-1]
        assert isinstance(found, For)
        return found

    def _get(self, paths: Mapping[str, Path], name: str, step: str, kind: str) -> Path:
        if name in paths:
            return paths[name]
        close = nearest(name, paths)
        raise self.error(
            step,
            f"there is no {kind} '{name}'",
            hint=f"did you mean '{close}'?" if close else f"{kind}s: {', '.join(paths) or 'none'}",
        )

    def loops_around(self, block: str) -> list[For]:
        return [s for s in self.block_paths[block] if isinstance(s, For)]

    def parameter(self, name: str) -> Buffer | None:
        return next((b for b in self.program.params if b.name == name), None)

    def is_output(self, name: str) -> bool:
        return any(b.name == name for b in self.program.outputs)

    # -- changing
    def replace(self, path: Path, new: Stmt | None) -> Program:
        """The Program with the statement at the end of `path` replaced, or removed with every loop left empty."""
        return self.program.with_body(rebuild(path, new) or Seq(()))

    def fresh(self, base: str) -> str:
        """`base`, or `base_1`, `base_2`, … whichever is free; taken from now on."""
        name, k = base, 0
        while name in self.names:
            k += 1
            name = f"{base}_{k}"
        self.names.add(name)
        return name

    # -- refusing
    def error(
        self, step: str, why: str, mark: Iterable[str] | Mapping[str, str] = (), hint: str | None = None
    ) -> ScheduleError:
        """The refusal of `step`, with the program and the marked names in it."""
        from weft.loop.printer import excerpt

        marks = mark if isinstance(mark, Mapping) else tuple(mark)
        return ScheduleError(
            f"{step} may not act on program '{self.program.name}'",
            where=excerpt(self.program, marks),
            why=why,
            hint=hint,
        )


def rebuild(path: Path, new: Stmt | None, stop: int = 0) -> Stmt | None:
    """The statement at path[stop] after the one at its end became `new` (None: gone)."""
    for k in range(len(path) - 2, stop - 1, -1):
        parent, old = path[k], path[k + 1]
        if isinstance(parent, Seq):
            rest = [c for c in (new if c is old else c for c in parent.stmts) if c is not None]
            new = seq(*rest) if rest else None
        elif new is not None:
            new = with_stmt_children(parent, tuple(new if c is old else c for c in stmt_children(parent)))
    return new


def rebuild_all(stmt: Stmt, new: Sequence[tuple[Path, Stmt | None]], dropped: Path = ()) -> Stmt | None:
    """The whole program where statements at the ends of paths became others (None: gone), and an allocation its body;
    only what lies on a path is looked at."""
    ends = {id(path[-1]): s for path, s in new}
    along = {id(s) for path in (*(path for path, _ in new), dropped) for s in path}

    def visit(s: Stmt) -> Stmt | None:
        if id(s) in ends:
            return ends[id(s)]
        if id(s) not in along:
            return s
        children = [visit(c) for c in stmt_children(s)]
        left = tuple(c for c in children if c is not None)
        if not left or (len(left) < len(children) and not isinstance(s, Seq)):
            return None
        return left[0] if dropped and s is dropped[-1] else with_stmt_children(s, left)

    return visit(stmt)


def contains(stmt: Stmt, test: Callable[[Stmt], bool]) -> bool:
    stack = [stmt]
    while stack:
        s = stack.pop()
        if test(s):
            return True
        stack.extend(stmt_children(s))
    return False


def blocks_in(stmt: Stmt) -> list[Block]:
    """The blocks of `stmt` in program order, outermost only."""
    found, stack = [], [stmt]
    while stack:
        s = stack.pop()
        if isinstance(s, Block):
            found.append(s)
        else:
            stack.extend(stmt_children(s)[::-1])
    return found


def map_blocks(stmt: Stmt, change: Callable[[Block], Block]) -> Stmt:
    """`stmt` with `change` applied to each outermost block."""
    if isinstance(stmt, Block):
        return change(stmt)
    children = stmt_children(stmt)
    new = tuple(map_blocks(c, change) for c in children)
    return with_stmt_children(stmt, new) if any(n is not c for n, c in zip(new, children)) else stmt


def conjuncts(predicate: Expr) -> list[Expr]:
    """The conditions of a conjunction; none for true."""
    if isinstance(predicate, And):
        return conjuncts(predicate.a) + conjuncts(predicate.b)
    return [] if isinstance(predicate, Const) and predicate.value else [predicate]


def with_conditions(predicate: Expr, conditions: Iterable[Expr]) -> Expr:
    """`predicate` and the conditions, each once."""
    known = conjuncts(predicate)
    for c in conditions:
        for part in conjuncts(c):
            if part not in known:
                known.append(part)
    return all_of(known)


def rename_iters(tree: Tree, block: Block) -> Block:
    """The block with iteration variables of new names, so that it can stand beside the old one."""
    names = {i.var.name: Var(tree.fresh(i.var.name), dt.int64) for i in block.iters}
    iters = tuple(replace(i, var=names[i.var.name]) for i in block.iters)
    init = None if block.init is None else substitute_stmt(block.init, names)
    return replace(block, iters=iters, body=substitute_stmt(block.body, names), init=init)


def nest(loops: Iterable[For], body: Stmt) -> Stmt:
    """`body` under loops like these, outermost first."""
    for f in reversed(list(loops)):
        body = replace(f, body=body)
    return body
