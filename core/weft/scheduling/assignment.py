"""Assignments of the loops of a tile to the axes of an instruction: the search for them, and the lengths that each
gives the instruction."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft import dtypes as dt
from weft.expr.linear import ZERO, Polynomial, number
from weft.expr.nodes import Expr, Var, const, floordiv, minimum, substitute
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.region import certain, poly, slack
from weft.scheduling.rewrite import clean

NOT_WHOLE = "the condition {} does not hold in the whole tile for certain"
WHOLE = "pad_loop makes the tiles of '{}' whole, or split by a divisor"


@dataclass(frozen=True)
class Tile:
    """What the block's iterators are, over the loops outside and those of the tile, and these but loops of one
    iteration: extent and kind. Outermost first."""

    values: dict[str, Expr]
    variables: dict[str, tuple[int, str]]

    def value(self, chain: Sequence[str]) -> Polynomial:
        """An axis over its loops."""
        total, size = ZERO, 1
        for loop in reversed(chain):
            total = total + poly(Var(loop, dt.int64)).scale(size)
            size *= self.variables[loop][0]
        return total

    def __str__(self) -> str:
        return (
            ", ".join(f"{v}: {'reduce ' if kind == 'reduce' else ''}{n}" for v, (n, kind) in self.variables.items())
            or "one step"
        )


@dataclass(frozen=True)
class Fitted:
    """An intrinsic at the lengths that an assignment gives it.

    `lengths`: what its code gets; `moving`: how many steps of each loop it computes, of an axis that ends within its
    last one alone; `padded`: axes of which it computes more than are wanted, and how many are.
    """

    declared: Intrinsic
    intrinsic: Intrinsic
    chains: Chains
    lengths: Mapping[str, Expr]
    moving: Mapping[str, Expr]
    padded: Mapping[str, Polynomial]


Chains: TypeAlias = Mapping[str, tuple[str, ...]]
"""Of each axis the loops that make it up, the outermost digit first; none for an axis of one step."""


class Mismatch(Exception):
    """Why an assignment of loops to axes fails. The error of the latest check (`depth`) is shown to the user."""

    def __init__(self, depth: int, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.depth, self.why, self.hint = depth, why, hint


def step_sizes(
    accesses: Iterable[tuple[Expr, ...]], variables: Iterable[str]
) -> dict[str, tuple[Polynomial, ...] | None]:
    """How far a step of each loop moves every access; None if they are not linear."""
    names = dict.fromkeys(variables)
    parts = [poly(i).split_variables(names) for indices in accesses for i in indices]
    return {v: None if None in parts else tuple(p[1].get(v, ZERO) for p in parts if p is not None) for v in names}


class Digits:
    """Which loops may be digits of one axis, and which are alike: to assign one of these is to assign any.

    Args:
        steps: of each loop, by `step_sizes`.
        apart: loops that are like no other, as more than places depends on them.
    """

    def __init__(
        self,
        variables: Mapping[str, tuple[int, str]],
        steps: Mapping[str, tuple[Polynomial, ...] | None],
        apart: Container[str],
    ) -> None:
        self.steps = steps
        self.sizes = {v: n for v, (n, _) in variables.items()}
        alone = {v for v in variables if v in apart or steps[v] is None}
        self.still = {v for v, s in steps.items() if v not in alone and not any(s or ())}
        """Loops that move nothing, and so may follow each other in any order."""
        groups: list[str] = []
        self.group: dict[str, str] = {}
        for v, x in variables.items():
            like = next(
                (u for u in groups if v not in alone and u not in alone and (x, steps[v]) == (variables[u], steps[u])),
                v,
            )
            groups += [v] if like == v else []
            self.group[v] = like
        self.rank = {v: k for k, v in enumerate(groups)}

    def first(self, loops: Iterable[str]) -> list[str]:
        """Of loops that are alike the first."""
        found: dict[str, str] = {}
        for v in loops:
            found.setdefault(self.group[v], v)
        return list(found.values())

    def follow(self, outer: str, inner: str) -> bool:
        """Whether a step of the first moves every access as far as all steps of the second: they are two digits of one
        axis."""
        if outer in self.still and inner in self.still:
            return self.rank[self.group[outer]] <= self.rank[self.group[inner]]  # in any order: one will do
        mine, other = self.steps[outer], self.steps[inner]
        return (
            mine is not None and other is not None and all(p == q.scale(self.sizes[inner]) for p, q in zip(mine, other))
        )


def assignments(
    axes: Sequence[tuple[str, int | str, str]],
    variables: Mapping[str, tuple[int, str]],
    digits: Digits,
    sizes: Mapping[str, int],
) -> Iterator[dict[str, tuple[str, ...]]]:
    """Every way to make each axis up of loops of the tile, of its kind, none left over; of loops that are alike in one
    order. An axis has an extent, or the name of a length, which is the same wherever it stands (`sizes`). The innermost
    loops are tried for the last axes first; an axis of one loop before one of several or none.
    """
    if not axes:
        if not variables:
            yield {}
        return
    *rest, (axis, extent, kind) = axes
    wanted = sizes.get(extent) if isinstance(extent, str) else extent
    for chain in _chains([v for v in reversed(list(variables)) if variables[v][1] == kind], digits, wanted):
        size = math.prod(variables[v][0] for v in chain)
        known = {**sizes, extent: size} if isinstance(extent, str) else sizes
        for more in assignments(rest, {k: x for k, x in variables.items() if k not in chain}, digits, known):
            yield {**more, axis: chain}


def _chains(loops: Sequence[str], digits: Digits, wanted: int | None) -> Iterator[tuple[str, ...]]:
    """Loops that make up one axis of `wanted` steps, or of any number: single ones, then several, then none."""
    found: list[tuple[tuple[str, ...], int]] = [((v,), digits.sizes[v]) for v in digits.first(loops)]
    while found:
        found = [(c, n) for c, n in found if wanted is None or wanted % n == 0]
        yield from (c for c, n in found if wanted is None or n == wanted)
        more = (
            (c, n, v) for c, n in found for v in digits.first(v for v in loops if v not in c) if digits.follow(v, c[0])
        )
        found = [((v, *c), n * digits.sizes[v]) for c, n, v in more]
    if wanted is None or wanted == 1:
        yield ()


def fit(
    x: Intrinsic, tile: Tile, chains: Chains, guards: Mapping[Expr, set[str]], outer: Mapping[str, Expr], block: str
) -> Fitted:
    """The intrinsic with the loops' extents for lengths, and the lengths that its code gets: as long as the
    conditions hold.

    Args:
        guards: conditions that the tile does not decide, with its loops that they speak of.
        outer: extents of the loops outside.
        block: name of the block, for errors.

    Raises:
        Mismatch: the intrinsic does not take such lengths.
    """
    sizes, owners = dict(x.least), dict[str, list[str]]()
    for v, extent, _ in x.extents:
        if isinstance(extent, Var):
            owners.setdefault(extent.name, []).append(v.name)
            if v.name in chains:
                sizes[extent.name] = math.prod(tile.variables[loop][0] for loop in chains[v.name])
    broken = x.broken(sizes)
    if broken is not None:
        raise Mismatch(
            1,
            f"its lengths would be {', '.join(f'{v} = {n}' for v, n in sizes.items())}: {broken} does not hold",
            "split the loops",
        )
    lengths: dict[str, Expr] = {v: const(n) for v, n in sizes.items()}
    moving: dict[str, Expr] = {v: const(n) for v, (n, _) in tile.variables.items()}
    padded: dict[str, Polynomial] = {}
    shorter: dict[str, Expr] = {}
    for c, loops in guards.items():
        axis = next((v for v, chain in chains.items() if set(chain) >= loops), None)
        length = next((n for n, axes in owners.items() if axes == [axis]), None)
        why = NOT_WHOLE.format(c)
        if axis is None or length not in x.dynamic:
            raise Mismatch(1, why, WHOLE.format(block))
        sizes_of = {v: tile.variables[v][0] for v in chains[axis]}
        trips = _trips(c, sizes_of)
        if trips is None:
            raise Mismatch(
                1,
                why,
                f"a length ends where a condition bounds its loops, as one, from above; {WHOLE.format(block)}",
            )
        loop = chains[axis][-1]
        multiple = x.multiples.get(length, 1)
        if multiple > 1:
            if tile.variables[loop][1] == "reduce":
                hint = (
                    "a sum of more elements than there are needs zeros there: pad_loop the copies of its operands,"
                    f" then '{block}'"
                )
                raise Mismatch(1, f"{why}, and '{length}' is a multiple of {multiple}", hint)
            if axis in padded:
                # The rounded end is checked against what others store; of two ends the lesser is not known.
                hint = f"say where loop '{loop}' ends by one condition; {WHOLE.format(block)}"
                raise Mismatch(
                    1, f"{why}: it is the second that ends '{loop}', whose length is a multiple of {multiple}", hint
                )
            padded[axis] = trips
            trips = poly(floordiv(trips.plus(multiple - 1).expr(), multiple)).scale(multiple)
        moving.update(dict.fromkeys(chains[axis], const(1)))
        lengths[length] = moving[loop] = clean(minimum(lengths[length], trips.expr()), outer)
        shorter[length] = (const(1) + Var(length, dt.int64)) * multiple
    _check_shorter(x, sizes, shorter)
    return Fitted(x, x.at(sizes), chains, lengths, moving, padded)


def _check_shorter(x: Intrinsic, sizes: Mapping[str, int], shorter: Mapping[str, Expr]) -> None:
    """Checks that the intrinsic allows the lengths that a run may have, where they are less than `sizes`."""
    spoken = next((v for v in shorter if v in x.spoken), None)
    if spoken is not None:
        why = (
            f"a run may have fewer steps than the tile, and the formula of '{x.name}' speaks of the length"
            f" '{spoken}', which is then another"
        )
        raise Mismatch(1, why, "pad_loop makes tiles whole")
    at_most = {v: const(sizes[v] // x.multiples.get(v, 1)) for v in shorter}
    for limit in x.limits if shorter else ():
        if not certain(
            clean(substitute(limit, {**{v: const(n) for v, n in sizes.items()}, **shorter}), at_most), at_most
        ):
            what = ", ".join(f"'{v}' of up to {sizes[v]}" for v in shorter)
            raise Mismatch(
                1,
                f"a run may have fewer steps than the tile, and of {what} it is not certain that {limit}",
                "pad_loop makes tiles whole",
            )


def _trips(condition: Expr, chain: Mapping[str, int]) -> Polynomial | None:
    """How many steps of an axis come before the condition fails, which may be none or less, or more than there are;
    None if it is no such condition.

    `chain`: its loops and their extents. A condition may speak of the outer ones alone: each of their steps is as many
    of the axis as the others have.
    """
    goals = slack(condition)
    if goals is None or len(goals) != 1:
        return None
    parts = goals[0].split_variables(chain)
    if parts is None:
        return None
    rest, factors = parts
    asked = [v for v in chain if v in factors]
    if not asked or asked != list(chain)[: len(asked)]:
        return None
    step, size = factors[asked[-1]].value, 1
    if step is None or step >= 0:
        return None
    for v in reversed(asked):
        if factors[v] != number(step * size):
            return None
        size *= chain[v]
    trips = rest.plus(1) if step == -1 else poly(floordiv(rest.expr(), -step)).plus(1)
    return trips.scale(math.prod(n for v, n in chain.items() if v not in asked))
