"""Memory over the steps of a plan, for `weft inspect`: the bytes of the arena that are live at each, and of a training
step which part of it a step belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.errors import InputError

if TYPE_CHECKING:
    from weft_testing.cli.inspect import Inspection

WIDTH = 40
"""Characters of the longest bar."""


@dataclass(frozen=True)
class Moment:
    """A step of a plan.

    Attributes:
        phases: the parts of a training step that its kernel belongs to, several where it merges nodes of several;
            empty for other graphs.
        live: bytes of values in the arena while it runs. Inputs, constants, outputs, and the scratch of kernels are
            not counted.
        made: the values that get memory there, with their bytes.
        operators: what it computes.
        view: it computes nothing, its result is the operand under another shape.
    """

    number: int
    phases: tuple[str, ...]
    live: int
    made: tuple[tuple[str, int], ...]
    operators: tuple[str, ...]
    view: bool = False

    @property
    def again(self) -> bool:
        """Whether it computes a result of the forward pass once more."""
        return "again" in self.phases and not self.view


def moments(found: Inspection, sizes: Mapping[str, int]) -> list[Moment] | None:
    """Every step of a plan; None: a size is known only at run time, and not among `sizes`."""
    from weft.graph.evaluate import dim_value
    from weft.graph.group import Group
    from weft.training import phases_of

    plan, grouped = found.plan, found.grouped
    assert plan is not None and grouped is not None
    known = {name: dim_value(size, sizes) for name, size in plan.sizes.items()}
    change = [0] * (len(grouped.nodes) + 1)
    made: list[list[tuple[str, int]]] = [[] for _ in grouped.nodes]
    for name, (first, last) in plan.lifetimes.items():
        size = known[name]
        if size is None:
            return None
        change[first] += size
        change[last + 1] -= size
        made[first].append((name, size))
    result, live = [], 0
    for k, node in enumerate(grouped.nodes):
        live += change[k]
        body = node.op.body.nodes if isinstance(node.op, Group) else [node]
        operators = tuple(n.op.operator_name for n in body)
        view = isinstance(node.op, Group) and node.op.view
        result.append(Moment(k, phases_of(node.names), live, tuple(made[k]), operators, view))
    return result


def peak_of(steps: Sequence[Moment]) -> Moment | None:
    """The first step with the most live bytes."""
    return max((m for m in steps if not m.view), key=lambda m: m.live, default=None)


def phase_rows(steps: Sequence[Moment]) -> list[tuple[str, str, str, str]]:
    """For each part of a training step: its name, how many steps belong to it, the most live bytes in them, and the
    bytes that they make."""
    from weft.cli.terminal import size
    from weft.training import PHASES

    rows = []
    for phase in PHASES:
        inside = [m for m in steps if phase in m.phases and not m.view]
        if inside:
            made = sum(b for m in inside for _, b in m.made)
            rows.append((TITLES[phase], str(len(inside)), size(max(m.live for m in inside)), size(made)))
    return rows


TITLES = {"forward": "forward", "again": "computed again", "backward": "backward", "update": "update"}
"""The parts of a training step, as people read them."""


def memory_text(found: Inspection) -> str:
    """The steps of a plan with their live bytes, one a line; `*` marks what is computed again, `<` the peak. Views are
    left out.

    Raises:
        InputError: sizes are known only at run time.
    """
    steps = moments(found, {})
    if steps is None:
        raise InputError(
            "bytes of values are known only at run time",
            where=f"graph '{found.graph.name}'",
            hint="--input-shape gives the sizes of inputs",
        )
    peak = peak_of(steps)
    if peak is None:
        return "no steps"
    lines = [f"at most {peak.live:,} bytes are live at once, at step {peak.number}; the arena has {_arena(found):,}"]
    wide = len(f"{peak.live:,}")
    labels = {m.number: ", ".join(TITLES[p] for p in m.phases) for m in steps}
    column = max(map(len, labels.values()))
    for m in (m for m in steps if not m.view):
        bar = "#" * round(WIDTH * m.live / max(1, peak.live))
        mark = ("*" if m.again else " ") + ("<" if m is peak else " ")
        made = ", ".join(f"%{name} {size:,}" for name, size in m.made)
        parts = [f"{m.number:5} {mark} {labels[m.number]:{column}}", f"{m.live:{wide},} {bar:{WIDTH}}"]
        lines.append("  ".join([*parts, " ".join(m.operators), *([f"-> {made}"] if made else [])]).rstrip())
    if any(m.again for m in steps):
        again = sum(b for m in steps if m.again for _, b in m.made)
        lines.append(f"* computed again: {sum(m.again for m in steps)} steps, {again:,} bytes")
    return "\n".join(lines)


def _arena(found: Inspection) -> int:
    from weft.graph.evaluate import dim_value

    assert found.plan is not None
    return dim_value(found.plan.arena_bytes, {}) or 0
