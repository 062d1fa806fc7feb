"""Runs a model on a target and beside it, compares, and where they differ finds what departed first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from weft.graph.evaluate import apply, evaluate, steps
from weft.graph.group import Group
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.operator import Operator
from weft.passes.capabilities import Capabilities
from weft.passes.pipeline import CORE, shared_passes
from weft.pipeline import compile
from weft.resolve import ResolvedTarget
from weft_runtime.executable import Executable
from weft_testing.verify.departure import Departure, first_departure
from weft_testing.verify.measure import Bound, Difference, compare, eps, scale_of, type_text, worst
from weft_testing.verify.part import Part, Parts, Trial, first_node, try_kernel
from weft_testing.verify.passes import Passes, first_wrong_pass, off
from weft_testing.verify.report import Blame, Output, Verification
from weft_testing.verify.rounding import allowed_errors, drain
from weft_testing.verify.stages import first_wrong_stage

Array: TypeAlias = np.ndarray[Any, Any]

REFERENCE = "reference"


@dataclass(frozen=True)
class Compiled:
    """A model for a target string. `executable` is what `weft run` would run, `records` the file of choices that it
    follows."""

    text: str
    targets: Sequence[ResolvedTarget]
    executable: Executable
    records: str | None = None


@dataclass(frozen=True)
class Engine:
    """A peer with the model open.

    Attributes:
        run: inputs by name → outputs in order.
        values: (names of values, inputs by name) → those that it can tell by name; None if it can tell none.
    """

    name: str
    run: Callable[[Mapping[str, Any]], Sequence[Any]]
    values: Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]] | None = None


@dataclass
class Verifier:
    """One verification.

    Attributes:
        graph: as the frontend read it.
        subject: what is verified.
        against: None: the operators' references.
        bound: what errors may be; by default as much as the operators' tolerances allow.
        patience: seconds for one interpretation of a kernel's program.
        every: look at every node, also where the outputs are as they should be.
        show: hears what is being done.
    """

    graph: Graph
    subject: Compiled
    against: Compiled | Engine | None
    inputs: Mapping[str, Any]
    bound: Bound = field(default_factory=Bound)
    patience: float = 60.0
    every: bool = False
    show: Callable[[str], None] = lambda what: None

    def run(self) -> Verification:
        """Compares the outputs, and where they differ finds out why.

        Raises:
            WeftError: one side does not compile or run.
        """
        subject = self.subject
        self.show(f"running on {subject.text}")
        got = list(subject.executable.run(self.inputs).values())
        want, name = self._expected()
        names = [o.name for o in subject.executable.outputs]
        compared = self._compared(got, want)
        found = Verification(
            self.graph.name, subject.text, name, {n: type_text(a) for n, a in self.inputs.items()},
            [Output(n, type_text(w), d) for n, w, d in zip(names, want, compared, strict=True)],
        )  # fmt: skip
        if self.every or any(d.wrong for d in compared):
            found.looked = True
            found.blames = self._blames(got, want)
        return found

    # -- the ends
    def _expected(self) -> tuple[list[Any], str]:
        if self.against is None:
            self.show("evaluating the reference")
            return evaluate(self.graph, self.inputs), REFERENCE
        if isinstance(self.against, Engine):
            self.show(f"running {self.against.name}")
            return list(self.against.run(self.inputs)), self.against.name
        self.show(f"running on {self.against.text}")
        return list(self.against.executable.run(self.inputs).values()), self.against.text

    def _compared(self, got: Sequence[Any], want: Sequence[Any]) -> list[Difference]:
        if self.bound.given:
            return [compare(g, w, self.bound.of(w)) for g, w in zip(got, want, strict=True)]
        exact = [compare(g, w) for g, w in zip(got, want, strict=True)]
        if not any(d.wrong for d in exact):
            return exact
        self.show("evaluating what rounding may do")
        return [compare(g, w, a) for g, w, a in zip(got, want, self._allowed(), strict=True)]

    def _allowed(self) -> list[Any]:
        """Of the graph as it was read, and as each target computes it."""
        exact = evaluate(self.graph, self.inputs) if self.against is not None else None
        found = allowed_errors(self.graph, self.inputs, exact or evaluate(self.graph, self.inputs))
        for side in self._sides():
            graph = self._parts(side).graph
            other = allowed_errors(graph, self.inputs, evaluate(graph, self.inputs))
            found = [_larger(a, b) for a, b in zip(found, other, strict=True)]
        return found

    def _sides(self) -> list[Compiled]:
        return [self.subject, *([self.against] if isinstance(self.against, Compiled) else [])]

    def _parts(self, side: Compiled) -> Parts:
        known: dict[str, Parts] = self.__dict__.setdefault("_known", {})
        if side.text not in known:
            self.show(f"compiling for {side.text} once more, kernel by kernel")
            known[side.text] = Parts.of(self.graph, side.targets)
        return known[side.text]

    # -- the bisection
    def _blames(self, got: Sequence[Any], want: Sequence[Any]) -> list[Blame]:
        found: list[Blame] = []
        exact = list(want) if self.against is None else evaluate(self.graph, self.inputs)
        if isinstance(self.against, Engine):
            found += self._frontend(self.against, exact, want)
        for side in self._sides():
            results = got if side is self.subject else want
            found += self._target(side, exact, results)
        if not found and any(d.wrong for d in self._compared(got, want)):
            found.append(
                Blame(
                    "rounding",
                    why="each side is within the operators' tolerances of the reference, the two are not of each other",
                )
            )
        return found

    def _frontend(self, engine: Engine, exact: Sequence[Any], want: Sequence[Any]) -> list[Blame]:
        errors = (
            [self.bound.of(w) for w in want] if self.bound.given else allowed_errors(self.graph, self.inputs, exact)
        )
        difference = worst([compare(e, w, a) for e, w, a in zip(exact, want, errors, strict=True)])
        if not difference.wrong:
            return []
        why = (
            f"the graph's reference and {engine.name} differ: what the frontend made of the model, or {engine.name}, is"
            " wrong"
        )
        departure: Departure | None = None
        if engine.values is not None:
            self.show(f"asking {engine.name} for its values")
            values = _EngineValues(engine, self.graph, self.inputs)
            departure = first_departure(self.graph, self.inputs, values.names, values, self.bound)
        if departure is None:
            return [Blame("frontend", why=why, difference=difference)]
        return [
            Blame("frontend", why=why, difference=departure.difference, carried=difference, **_said(departure.node))
        ]

    def _target(self, side: Compiled, exact: Sequence[Any], results: Sequence[Any]) -> list[Blame]:
        parts = self._parts(side)
        found = self._passes(side, parts, exact)
        player = _Player(self, side, parts)
        outputs = parts.walk(self.inputs, player.play)
        if player.blame is not None:
            return [*found, player.blame]
        if found:
            return found
        differences = [
            compare(r, e, self.bound.of(e) if self.bound.given else 0.0) for r, e in zip(results, exact, strict=True)
        ]
        if not any(d.wrong for d in differences):
            return []
        if not self.bound.given:
            differences = [compare(r, e, a) for r, e, a in zip(results, exact, self._allowed(), strict=True)]
        if not any(d.wrong for d in differences):
            return []
        alone = _apart(results, outputs)
        if alone.wrong:
            self.show(f"compiling for {side.text} without the cache")
            anew = list(compile(self.graph, side.text, cache=False, records=side.records).run(self.inputs).values())
            if not _apart(anew, outputs).wrong:
                return [
                    Blame(
                        "cache", side.text, why="compiled without it, the model gives other results", difference=alone
                    )
                ]
            return [
                Blame(
                    "plan",
                    side.text,
                    why="run one by one, the kernels give other results than together",
                    difference=alone,
                )
            ]
        return [Blame("rounding", side.text, difference=worst(differences), **player.growth())]

    def _passes(self, side: Compiled, parts: Parts, exact: Sequence[Any]) -> list[Blame]:
        """The first wrong graph pass of each graph that passes work on."""
        found: list[Blame] = []
        if parts.placed:
            claims = frozenset[type[Operator] | str]().union(*(t.capabilities.claims for t in side.targets))
            library = shared_passes([t.graph_passes() for t in side.targets])
            shared = Passes(Capabilities(claims=claims), library, {p.name for p in (*CORE, *library) if p.shared})
            found += self._first_pass(side, "", self.graph, shared, self.inputs, exact)

        def visit(part: Part, arrays: list[Any], env: Mapping[str, int]) -> list[Any]:
            want = evaluate(part.graph, arrays, symbols=env)
            if not found:
                self.show(f"the graph after all passes{' of ' + part.name if part.name else ''}")
                if off(part.grouped, arrays, want, self.bound, env).wrong:
                    passes = Passes(part.target.capabilities, part.target.graph_passes())
                    found.extend(self._first_pass(side, part.name, part.graph, passes, arrays, want, env))
            return want

        parts.walk(self.inputs, visit)
        return found

    def _first_pass(
        self,
        side: Compiled,
        region: str,
        graph: Graph,
        passes: Passes,
        inputs: Any,
        want: Sequence[Any],
        env: Mapping[str, int] | None = None,
    ) -> list[Blame]:
        wrong = first_wrong_pass(graph, passes, inputs, want, self.bound, self.show, env)
        if wrong is None:
            return []
        why = (
            "the graph before it gives the right results, evaluated by the operators' references, the one after it"
            " does not"
        )
        said: dict[str, Any] = {}
        difference, carried = wrong.difference, None
        if wrong.departure is not None:
            said, difference, carried = _said(wrong.departure.node), wrong.departure.difference, wrong.difference
        return [Blame("pass", side.text, region, wrong.name, why=why, difference=difference, carried=carried, **said)]


class _Player:
    """Runs a target's kernels one by one on what those before gave, beside the reference, until one is wrong."""

    def __init__(self, verifier: Verifier, side: Compiled, parts: Parts) -> None:
        self.verifier, self.side = verifier, side
        self.blame: Blame | None = None
        self.references: dict[str, Any] = {}  # values between parts, by name, until their last use
        self.uses = Counter(v.name for part in parts.parts if not part.inner for v in part.graph.inputs)
        self.most: tuple[float, Node | None] = (0.0, None)
        self.errors: dict[str, float] = {}

    def play(self, part: Part, arrays: list[Any], env: Mapping[str, int]) -> list[Any]:
        """A part's outputs as its kernels give them; once a kernel is to blame, those of the reference."""
        if self.blame is not None:
            return evaluate(part.grouped, arrays, symbols=env)
        trials: list[Trial] = []

        def run(node: Node, given: list[Any], symbols: Mapping[str, int]) -> tuple[Any, ...]:
            if not isinstance(node.op, Group) or node.op.view or trials:
                return apply(node, given, symbols)
            self.verifier.show(f"{', '.join(o.name for o in node.outputs)}{' of ' + part.name if part.name else ''}")
            trial = try_kernel(part, node, given, symbols, self.verifier.bound)
            if trial.wrong:
                trials.append(trial)
            return tuple(trial.got)

        exact = arrays if part.inner else [self._reference(v.name, a) for v, a in zip(part.graph.inputs, arrays)]
        walk = steps(part.grouped, arrays, env, run)
        beside = steps(part.grouped, exact, env)
        while True:
            try:
                node, want = next(beside)
            except StopIteration as done:
                ends = done.value
                break
            _, got = next(walk)
            if trials:
                carried = worst([compare(g, w) for g, w in zip(got, want)])
                self.blame = self._blame(trials[0], carried)
                return evaluate(part.grouped, arrays, symbols=env)
            self._grow(node, got, want)
        given = zip((v.name for v in part.graph.outputs), ends)
        self.references.update((name, array) for name, array in given if self.uses[name] and not part.inner)
        return drain(walk)

    def _reference(self, name: str, array: Any) -> Any:
        """The reference's value for one between parts; an input of the model is its own."""
        self.uses[name] -= 1
        return (self.references.get if self.uses[name] else self.references.pop)(name, array)

    def _blame(self, trial: Trial, carried: Difference) -> Blame:
        bound, show = self.verifier.bound, self.verifier.show
        show(f"the nodes of {trial.kernel.name}")
        node, shorter = first_node(trial, bound)
        stage = first_wrong_stage(shorter, self.verifier.patience, show)
        if stage.name == "" and shorter is not trial:
            stage = first_wrong_stage(trial, self.verifier.patience, show)
        said = _said(node) if node is not None else _said(trial.node)
        if node is not None and not node.names:
            said["names"] = tuple(sorted(trial.node.names))
        return Blame(
            "kernel", self.side.text, trial.part.name, stage.name, kernel=trial.kernel.name, rule=shorter.kernel.rule,
            step=stage.step, why=stage.why,
            difference=worst(shorter.differences), carried=carried, **said,
        )  # fmt: skip

    # -- rounding
    def _grow(self, node: Node, got: Sequence[Any], want: Sequence[Any]) -> None:
        """Remembers where an error that was handed on grew most."""
        before = max((self.errors.get(v.name, 0.0) for v in node.inputs if v is not None), default=0.0)
        for value, g, w in zip(node.outputs, got, want):
            error = compare(g, w).relative
            self.errors[value.name] = error
            if before and error / before > self.most[0]:
                self.most = error / before, node

    def growth(self) -> dict[str, Any]:
        """Of the node that amplified most."""
        factor, node = self.most
        if node is None or factor <= 1:
            return {}
        return {
            **_said(node),
            "why": f"no node departs by itself; the relative error grows most here, {factor:,.0f} times",
        }


class _EngineValues:
    """Values of an engine by a graph's names, some at a time."""

    AT_ONCE, BYTES = 64, 256 << 20

    def __init__(self, engine: Engine, graph: Graph, inputs: Mapping[str, Any]) -> None:
        assert engine.values is not None
        self.ask, self.inputs = engine.values, inputs
        self.order = [v for n in graph.nodes for v in n.outputs]
        self.names = {v.name for v in self.order}
        self.at = {v.name: k for k, v in enumerate(self.order)}
        self.held: dict[str, Any] = {}
        self.asked = 0

    def __call__(self, name: str) -> Any:
        while name not in self.held and self.asked <= self.at[name]:
            chosen: list[Value] = []
            size = 0
            while self.asked < len(self.order) and len(chosen) < self.AT_ONCE and size < self.BYTES:
                value = self.order[self.asked]
                chosen.append(value)
                size += _bytes(value)
                self.asked += 1
            self.held = dict(self.ask([v.name for v in chosen], self.inputs))
        return self.held.pop(name, None)


def _bytes(value: Value) -> int:
    if not isinstance(value.type, TensorType):
        return 0
    size = 1
    for d in value.shape:
        size *= d if isinstance(d, int) else 1
    return size * value.dtype.bytes


def _larger(a: Any, b: Any) -> Any:
    return np.maximum(a, b)


def _apart(got: Sequence[Any], want: Sequence[Any]) -> Difference:
    """Of results of the same kernels: nothing is between them, but that a device may add in another order each time."""
    return worst([compare(g, w, 16 * eps(w) * scale_of(w)) for g, w in zip(got, want, strict=True)])


def _said(node: Node) -> dict[str, Any]:
    """A node for a report: of a group the operators in it."""
    inner = node.op.body.nodes if isinstance(node.op, Group) else [node]
    results = ", ".join("%" + o.name for o in node.outputs)
    operands = ", ".join("_" if v is None else "%" + v.name for v in node.inputs)
    operator = ", ".join(dict.fromkeys(n.op.operator_name for n in inner))
    text = repr(node) if not isinstance(node.op, Group) else f"{results} = {operator}({operands})"
    return {"node": text, "operator": operator, "names": tuple(sorted(node.names))}
