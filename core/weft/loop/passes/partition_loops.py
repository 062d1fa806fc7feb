"""Divides a loop where a condition on its range changes, so that the main part has no condition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

from weft.expr.linear import Polynomial, linear
from weft.expr.nodes import (
    And,
    Call,
    Const,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Ne,
    Not,
    Or,
    Select,
    TruncDiv,
    TruncMod,
    Var,
    add,
    all_of,
    eq,
    floordiv,
    floormod,
    free_vars,
    le,
    lt,
    maximum,
    minimum,
    mul,
    sub,
    transform,
    walk,
)
from weft.expr.ranges import Range, range_of
from weft.loop.grids import BOX
from weft.loop.nodes import (
    TRUE,
    Allocate,
    AtomicUpdate,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    int64,
    int_const,
    map_stmt_exprs,
    seq,
    stmt_children,
    stmt_exprs,
    transform_stmts,
    with_stmt_children,
)
from weft.loop.passes.copies import EMPTY, Names, copy_stmt, if_stmt, is_empty
from weft.loop.passes.simplify import Scope, fails, holds, program_scope, simplify

# The statements of a program may become this many times as many; a small program may always grow to MIN_LIMIT.
MAX_GROWTH, MIN_LIMIT = 8, 64
FALSE = Const(False, TRUE.dtype)


def not_negative(cond: Expr) -> Polynomial | None:
    """L such that a comparison of indices is L >= 0; None if it is no such."""
    if not isinstance(cond, (Lt, Le)) or cond.a.dtype.name != "int64" or cond.a.dtype.lanes != 1:
        return None
    a, b = cond.a, cond.b
    # x // c < d is x < d*c, and d <= x // c is d*c <= x.
    if isinstance(cond, Lt) and isinstance(a, FloorDiv) and (c := int_const(a.b) or 0) > 0:
        a, b = a.a, mul(b, c)
    elif isinstance(cond, Le) and isinstance(b, FloorDiv) and (c := int_const(b.b) or 0) > 0:
        a, b = mul(a, c), b.a
    difference = linear(b) - linear(a)
    return difference - 1 if isinstance(cond, Lt) else difference


@dataclass
class Atom:
    """A comparison that a loop's middle part decides: there it is `value`. `exact`: on its side of the middle it is the
    opposite.

    `nowhere`: the bound beyond which no iteration of the loops between has the value.
    """

    cond: Expr
    bound: Expr
    lower: bool
    exact: bool
    value: Expr
    nowhere: Expr


def atoms_of(cond: Expr) -> Iterator[Expr]:
    """The comparisons that a condition is made of."""
    if isinstance(cond, (And, Or)):
        yield from atoms_of(cond.a)
        yield from atoms_of(cond.b)
    elif isinstance(cond, Not):
        yield from atoms_of(cond.a)
    elif isinstance(cond, (Lt, Le, Eq, Ne)):
        yield cond


def conditions_in(stmt: Stmt, binders: tuple[Stmt, ...] = ()) -> Iterator[tuple[Expr, tuple[Stmt, ...]]]:
    """Every condition in `stmt`, with the loops and lets between."""
    if isinstance(stmt, If):
        yield stmt.cond, binders
    elif isinstance(stmt, Store) and stmt.predicate is not None:
        yield stmt.predicate, binders
    for expr in stmt_exprs(stmt):
        for node in walk(expr):
            if isinstance(node, Select):
                yield node.cond, binders
            elif isinstance(node, Load) and node.predicate is not None:
                yield node.predicate, binders
    inner = (*binders, stmt) if isinstance(stmt, (For, Let)) else binders
    for child in stmt_children(stmt):
        yield from conditions_in(child, inner)


def _extreme(form: Polynomial, binders: tuple[Stmt, ...]) -> tuple[Polynomial, bool] | None:
    """The least value of `form` over the loops between, innermost first, and whether it depends on them."""
    exact = True
    for binder in reversed(binders):
        assert isinstance(binder, (For, Let))
        k = form.terms.get((binder.var,))
        if k is not None:
            if isinstance(binder, Let):
                return None
            exact = False
            form = form.without((binder.var,))
            if k < 0:
                form = form.plus(linear(binder.extent) - 1, k)
        if any(binder.var.name in free_vars(t) for t in form.atoms):
            return None
    return form, exact


def _atom(cond: Expr, loop: For, binders: tuple[Stmt, ...], scope: Scope) -> Atom | None:
    if isinstance(cond, (Eq, Ne)):
        return _end(cond, loop, scope)
    form = not_negative(cond)
    if form is None or loop.var.name not in free_vars(cond):
        return None
    found, most = _extreme(form, binders), _extreme(-form, binders)
    if found is None or most is None:
        return None
    bound, lower = _solve(found[0], loop.var)
    nowhere, _ = _solve(-most[0], loop.var)
    if bound is None or nowhere is None:
        return None
    return Atom(cond, scope.simplify(bound), lower, found[1], TRUE, scope.simplify(nowhere))


def _everywhere(cond: Expr, loop: For, binders: tuple[Stmt, ...], scope: Scope) -> tuple[Expr, bool] | None:
    """What an iteration of `loop` has to be like for `cond` to hold in all of the loops between, and whether else it
    holds in none: for comparisons that no bound of the variable decides, as those of the remainder that stands for the
    inner one of fused loops.
    """
    form = not_negative(cond)
    if form is None or loop.var.name not in free_vars(cond) or _atom(cond, loop, binders, scope) is not None:
        return None
    found = _extreme(form, binders)
    if found is None:
        return None
    asked = scope.simplify(le(int64(0), found[0].expr()))
    if loop.var.name not in free_vars(asked) or not all(_anywhere(n, loop, scope) for n in walk(asked)):
        return None
    return asked, found[1]


def _anywhere(e: Expr, loop: For, scope: Scope) -> bool:
    """Whether a formula may stand anywhere in `loop`, without the conditions that it stood under: it reads nothing,
    calls nothing and divides by no zero."""
    if isinstance(e, (FloorDiv, FloorMod)):
        least = range_of(e.b, scope.ranges).lo
        # A loop of so many times the divisor has no iteration if that is zero.
        return least is not None and (least > 0 or (least == 0 and always(eq(floormod(loop.extent, e.b), 0), scope)))
    return not isinstance(e, (Load, Call, IntrinsicCall, TruncDiv, TruncMod))


def _only(asked: Expr, scope: Scope) -> dict[Expr, Expr]:
    """The term that has only one value left where `asked` is false, and that value."""
    if (
        isinstance(asked, Lt)
        and (bound := int_const(asked.b)) is not None
        and range_of(asked.a, scope.ranges).hi == bound
    ):
        return {asked.a: int64(bound)}
    if (
        isinstance(asked, Le)
        and (bound := int_const(asked.a)) is not None
        and range_of(asked.b, scope.ranges).lo == bound - 1
    ):
        return {asked.b: int64(bound - 1)}
    return {}


def _solve(form: Polynomial, var: Var) -> tuple[Expr | None, bool]:
    """The bound of `var` beyond (True) or below which `form` is not negative; None if there is none."""
    # The variable itself, or that of fused loops: var//k < b is var < b*k, and b <= var//k is b*k <= var.
    term, k = next(((t, k) for t in form.atoms if (k := _step(t, var))), (var, 1))
    c = form.terms.get((term,))
    rest = form.without((term,))
    if c is None or any(var.name in free_vars(t) or any(isinstance(n, Load) for n in walk(t)) for t in rest.atoms):
        return None, False
    if c > 0:
        return mul(floordiv((-rest + (c - 1)).expr(), c), k), True
    return mul(add(floordiv(rest.expr(), -c), 1), k), False


def _step(term: Expr, var: Var) -> int | None:
    """k if the term is var//k, 1 if it is var."""
    if isinstance(term, FloorDiv) and term.a == var:
        return int_const(term.b)
    return 1 if term == var else None


def _end(cond: Eq | Ne, loop: For, scope: Scope) -> Atom | None:
    """var == first or last value: the middle begins behind it or ends before it."""
    if cond.a.dtype.name != "int64" or cond.a.dtype.lanes != 1:
        return None
    form = linear(cond.a) - linear(cond.b)
    c = form.terms.get((loop.var,))
    rest = form.without((loop.var,))
    if c not in (1, -1) or any(loop.var.name in free_vars(t) for t in rest.atoms):
        return None
    place = rest.scale(-c)
    middle = FALSE if isinstance(cond, Eq) else TRUE
    if not place:
        return Atom(cond, int64(1), True, True, middle, int64(1))
    if (place - linear(loop.extent)).value == -1:
        last = scope.simplify(sub(loop.extent, 1))
        return Atom(cond, last, False, True, middle, last)
    return None


def _weight(stmt: Stmt) -> int:
    if isinstance(stmt, For):
        return _weight(stmt.body) * ((int_const(stmt.extent) or 1) if stmt.kind == "unrolled" else 1)
    own = 1 if isinstance(stmt, (Store, AtomicUpdate, Evaluate, Let)) else 0
    return own + sum(_weight(c) for c in stmt_children(stmt))


def decide(stmt: Stmt, values: dict[Expr, Expr]) -> Stmt:
    """`stmt` with the conditions replaced by their values and the Ifs that this decides gone."""
    if not values:
        return stmt

    def rule(s: Stmt) -> Stmt | None:
        s = map_stmt_exprs(s, lambda e: transform(e, values.get))
        if isinstance(s, If):
            return if_stmt(s.cond, s.then, s.orelse)
        if isinstance(s, (For, Let, Allocate)) and is_empty(s.body):
            return EMPTY
        if isinstance(s, Store) and s.predicate == FALSE:
            return EMPTY
        return s

    return transform_stmts(stmt, rule)


def _opposite(value: Expr) -> Expr:
    return TRUE if value == FALSE else FALSE


def partition_loops(program: Program) -> Program:
    """Cuts serial loops at the bounds that their conditions give; parallel loops get one If around a body without
    conditions.

    for i in n { if i*8 + 7 < m {…} }   →   for i in (m - 7 + 7)//8 {…}; for i_1 in … { if … {…} }

    Vectorized and unrolled loops stay whole: the loop around them is cut where all their iterations agree. A loop
    annotated partition=0 is left alone, and so are those of a box, which a machine copies whole. The program grows to
    at most MAX_GROWTH times its statements.
    """
    if not any(True for _ in conditions_in(program.body)):
        return program
    weight = _weight(program.body)
    partition = _Partition(Names.of(program), max(weight * (MAX_GROWTH - 1), MIN_LIMIT - weight))
    body = partition.visit(program.body, program_scope(program))
    return simplify(program.with_body(body)) if partition.changed else program


@dataclass
class _Parts:
    """A loop that is cut: from `begin` to `end` its conditions are decided.

    `sides`: the bodies before and behind; of a parallel loop the one for both. `extent`: of the loop, less the
    iterations at its end that do nothing.
    """

    begin: Expr
    end: Expr
    extent: Expr
    middle: Stmt
    sides: tuple[Stmt, ...]
    no_pre: bool
    no_post: bool


def _atoms(loop: For, scope: Scope) -> list[Atom]:
    """The comparisons in the body of a loop that a middle part of it decides."""
    atoms: dict[Expr, Atom] = {}
    for condition, binders in conditions_in(loop.body):
        for cond in atoms_of(condition):
            atom = _atom(cond, loop, binders, scope)
            if atom is None:
                continue
            old = atoms.get(cond)
            if old is not None and old.bound != atom.bound:
                # The same comparison under different loops: the stricter bound serves both.
                join, widen = (maximum, minimum) if atom.lower else (minimum, maximum)
                nowhere = scope.simplify(widen(old.nowhere, atom.nowhere))
                atom = replace(atom, bound=scope.simplify(join(old.bound, atom.bound)), exact=False, nowhere=nowhere)
            atoms[cond] = atom
    return list(atoms.values())


def _parts(loop: For, scope: Scope) -> _Parts | None:
    """How a loop is cut; None if no part of it has its conditions decided."""
    atoms = _atoms(loop, scope)
    lower, upper = [a for a in atoms if a.lower], [a for a in atoms if not a.lower]
    n = loop.extent
    begin, end = bounds(lower, upper, n, scope)
    if (lower and upper) and always(le(end, begin), scope):
        # No middle is left; one side alone may have one.
        upper, end = [], n
        begin, end = bounds(lower, upper, n, scope)
    if (not lower and not upper) or always(le(end, begin), scope):
        return None
    no_pre, no_post = begin == int64(0), end == n
    # Beyond its own end a side is the opposite if it has one exact bound only; the other side's conditions hold if
    # their bounds lie further out.
    before = {a.cond: _opposite(a.value) for a in lower if a.exact and all(o.bound == a.bound for o in lower)}
    before |= {a.cond: a.value for a in upper if always(le(begin, a.bound), scope)}
    after = {a.cond: _opposite(a.value) for a in upper if a.exact and all(o.bound == a.bound for o in upper)}
    after |= {a.cond: a.value for a in lower if always(le(a.bound, end), scope)}
    middle = decide(loop.body, {a.cond: a.value for a in (*lower, *upper)})
    if loop.kind == "parallel":
        shared = {c: v for c, v in before.items() if no_post or after.get(c) == v} if not no_pre else after
        sides: tuple[Stmt, ...] = (EMPTY if no_pre and no_post else decide(loop.body, shared),)
    else:
        sides = (EMPTY if no_pre else decide(loop.body, before), EMPTY if no_post else decide(loop.body, after))
        if not no_post and is_empty(decide(loop.body, {a.cond: _opposite(a.value) for a in upper})):
            # Behind the last iteration in which a condition holds nothing is left to do.
            n = scope.simplify(minimum(n, maximum(end, reduce(maximum, (a.nowhere for a in upper)))))
    return _Parts(begin, end, n, middle, sides, no_pre, no_post)


@dataclass
class _Partition:
    """The pass: `names` of the program, and the weight by which it may still grow."""

    names: Names
    budget: int
    changed: bool = False

    def visit(self, stmt: Stmt, scope: Scope) -> Stmt:
        if isinstance(stmt, For):
            said = dict(stmt.annotations)
            if stmt.kind in ("serial", "parallel") and said.get("partition") != 0 and BOX not in said:
                found = self.cut(stmt, scope)
                if found is not None:
                    return found
            return self.inside(stmt, scope)
        if isinstance(stmt, If):
            then = self.visit(stmt.then, scope.with_facts(holds(stmt.cond)))
            return replace(
                stmt,
                then=then,
                orelse=None if stmt.orelse is None else self.visit(stmt.orelse, scope.with_facts(fails(stmt.cond))),
            )
        if isinstance(stmt, Let) and stmt.var.dtype.is_integer and stmt.var.dtype.lanes == 1:
            known = scope.with_range(stmt.var.name, range_of(stmt.value, scope.ranges))
            return replace(stmt, body=self.visit(stmt.body, known))
        children = stmt_children(stmt)
        return with_stmt_children(stmt, tuple(self.visit(c, scope) for c in children)) if children else stmt

    def inside(self, loop: For, scope: Scope) -> Stmt:
        """The loop uncut; the loops in its body may be cut."""
        hi = range_of(loop.extent, scope.ranges).hi
        known = scope.with_range(loop.var.name, Range(0, None if hi is None else hi - 1), lt(loop.var, loop.extent))
        asks = loop.kind == "parallel" and dict(loop.annotations).get("partition") != 0
        return replace(loop, body=self.asking(loop, loop.body, known) if asks else self.visit(loop.body, known))

    def asking(self, loop: For, body: Stmt, scope: Scope) -> Stmt:
        """The body of a parallel loop, twice if it has conditions that one question about the iteration decides."""
        asked: dict[Expr, dict[Expr, bool]] = {}
        for condition, binders in conditions_in(body):
            for cond in atoms_of(condition):
                found = _everywhere(cond, loop, binders, scope)
                if found is not None:
                    question, exact = found
                    asked.setdefault(cond, {})[question] = exact
        growth = _weight(body)
        if not asked or 2 * growth > self.budget:  # as much is left for the loops inside
            return self.visit(body, scope)
        questions = list(dict.fromkeys(q for qs in asked.values() for q in qs))
        rest: dict[Expr, Expr] = {}
        if len(questions) == 1:
            rest = _only(questions[0], scope) | {c: FALSE for c, qs in asked.items() if all(qs.values())}
        fast, slow = decide(body, dict.fromkeys(asked, TRUE)), decide(body, rest)
        self.budget, self.changed = self.budget - (0 if is_empty(slow) else growth), True
        test = all_of(questions)
        if not is_empty(slow):
            slow = self.visit(copy_stmt(slow, {}, self.names), scope.with_facts(fails(test)))
        return if_stmt(test, self.visit(fast, scope.with_facts(holds(test))), None if is_empty(slow) else slow)

    def cut(self, loop: For, scope: Scope) -> Stmt | None:
        """The loop in parts; None if it stays whole."""
        parts = _parts(loop, scope)
        if parts is None:
            return None
        growth = _weight(parts.middle) + sum(_weight(s) for s in parts.sides) - _weight(loop.body)
        if growth > self.budget:
            return None
        self.budget -= max(growth, 0)
        self.changed = True
        lets: list[tuple[Var, Expr]] = []

        def named(value: Expr, suffix: str) -> Expr:
            if isinstance(value, (Const, Var)):
                return value
            lets.append((Var(self.names.fresh(f"{loop.var.name}_{suffix}"), value.dtype), value))
            return lets[-1][0]

        parts = replace(parts, begin=named(parts.begin, "begin"), end=named(parts.end, "end"))
        for var, value in lets:
            scope = scope.with_range(var.name, range_of(value, scope.ranges))
        # The middle first: it is the hot part, and the budget may not suffice for all.
        result = self.asked(loop, parts, scope) if loop.kind == "parallel" else self.in_sequence(loop, parts, scope)
        for var, value in reversed(lets):
            result = Let(var, value, result)
        return result

    def asked(self, loop: For, parts: _Parts, scope: Scope) -> Stmt:
        """A parallel loop, each of whose iterations asks which part it belongs to."""
        no_pre, no_post, end = parts.no_pre, parts.no_post, parts.end
        conditions = ([] if no_pre else [le(parts.begin, loop.var)]) + ([] if no_post else [lt(loop.var, end)])
        test = conditions[0] if len(conditions) == 1 else And(*conditions) if conditions else TRUE
        fast = self.asking(loop, parts.middle, scope.with_range(loop.var.name, Range(0, None)))
        # What is known of the other side: where it is one of the ends, the variable's range.
        last = range_of(parts.extent, scope.ranges).hi
        first = range_of(end, scope.ranges).lo if no_pre else 0
        known = Range(first, last - 1 if no_pre and last is not None else None)
        rest = scope.with_range(loop.var.name, known, *fails(test))
        (side,) = parts.sides
        slow = EMPTY if is_empty(side) else self.asking(loop, copy_stmt(side, {}, self.names), rest)
        return replace(loop, body=if_stmt(test, fast, None if is_empty(slow) else slow))

    def in_sequence(self, loop: For, parts: _Parts, scope: Scope) -> Stmt:
        """A serial loop as one loop for each part."""
        begin, end, name = parts.begin, parts.end, loop.var.name
        body = parts.middle if parts.no_pre else copy_stmt(parts.middle, {name: add(begin, loop.var)}, None)
        middle = replace(loop, extent=sub(end, begin), body=body)
        result = EMPTY if is_empty(body) else self.inside(middle, scope)
        before, behind = parts.sides
        if not parts.no_pre and not is_empty(before):
            var = Var(self.names.fresh(name), loop.var.dtype)
            pre = copy_stmt(before, {name: var}, self.names)
            result = seq(self.inside(replace(loop, var=var, extent=begin, body=pre), scope), result)
        if not parts.no_post and not is_empty(behind):
            var = Var(self.names.fresh(name), loop.var.dtype)
            post = copy_stmt(behind, {name: add(end, var)}, self.names)
            extent = sub(parts.extent, end)
            result = seq(result, self.inside(replace(loop, var=var, extent=extent, body=post), scope))
        return result


def bounds(lower: list[Atom], upper: list[Atom], n: Expr, scope: Scope) -> tuple[Expr, Expr]:
    """Where the middle begins and ends, within 0 … n."""
    begin: Expr = int64(0)
    for atom in lower:
        begin = maximum(begin, atom.bound)
    begin = scope.simplify(minimum(begin, n)) if lower else begin
    end: Expr = n
    for atom in upper:
        end = minimum(end, atom.bound)
    end = scope.simplify(maximum(end, begin)) if upper else end
    return begin, end


def always(cond: Expr, scope: Scope) -> bool:
    return scope.simplify(cond) == TRUE
