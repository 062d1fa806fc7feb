"""Outlines of plans for several targets: where each node goes, as regions in order, and what their branches and loops
run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from weft.compilation import Compilation
from weft.errors import CodegenError, GraphError, PluginError, ScheduleWarning, UnsupportedError, WeftError
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Expr, free_vars
from weft.graph.control import If, Loop, bodies
from weft.graph.group import kernel_text
from weft.graph.host import HostIdentity, HostOperator
from weft.graph.identity import Identity
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.operator import Operator
from weft.graph.region import Region
from weft.graph.rewrite import copy_graph
from weft.loop.work import count_work
from weft.lower.lower import lower_group
from weft.lower.offers import alone, offer_by_rules
from weft.passes.capabilities import Capabilities
from weft.passes.correspond import correspond
from weft.passes.decompose import decompose
from weft.passes.drop_checks import drop_checks
from weft.passes.fold_constants import Budget
from weft.passes.pipeline import GraphPass, run_shared_passes, run_target_passes, shared_passes, split_shared
from weft.passes.place import (
    STEP,
    TYPICAL,
    Offers,
    Placement,
    Refuse,
    Take,
    bytes_of,
    is_numeric,
    is_step,
    offers_before,
    place,
)
from weft_runtime.plan import HOST

if TYPE_CHECKING:
    from weft.hooks import OnStage
    from weft.machine import Machine
    from weft.resolve import ResolvedTarget


@dataclass
class PlacedCompilation:
    """A compilation as far as where each node goes: what regions a plan has, before they become its steps.

    `targets` in order of preference; a host's CPU, if there is one, is last. `strict`: every node must be on the first.
    `by_cost=False`: a node goes to the first target that takes it, however long that and the copies take.
    `budget`: what constant folding may still make and do in all regions, branches and loops; None: what the constants
    of the graph that is placed allow.
    """

    targets: Sequence[ResolvedTarget]
    extra: Sequence[GraphPass] = ()
    on_stage: OnStage | None = None
    cache: bool = True
    strict: bool = False
    by_cost: bool = True
    budget: Budget | None = None
    placement: Placement | None = None
    regions: list[Compilation] = field(default_factory=list)
    _offered: tuple[Graph, dict[str, Offers]] | None = None
    _optimized: dict[int, tuple[Compilation, Graph, Graph]] = field(default_factory=dict)
    """id of a region's body → its compilation, its graph after passes, and the body, which stays the only one of this
    id."""

    # -- what a plan is made of
    def outline(self, graph: Graph) -> Outline:
        """A verified graph as regions in order, and so all that its branches and loops run.

        Raises:
            UnsupportedError: a node that no target takes, or that is neither numeric nor a step.
        """
        regions = self.place(graph)
        while not self.strict and self.targets[-1].native and self._give_back(regions):
            assert self.placement is not None
            regions = self.placement.graph
        return self._outline(regions, "", [])

    def _give_back(self, regions: Graph) -> bool:
        """Places anew what targets took and then cannot schedule or compile, with the reasons; whether there was
        such."""
        assert self._offered is not None
        graph, offers = self._offered
        makers = {v.name: n for n in graph.nodes for v in n.outputs}
        left: dict[str, dict[int, str]] = {}
        for node in regions.nodes:
            assert isinstance(node.op, Region)
            target = next((t for t in self.targets[:-1] if t.target.kind == node.op.target), None)
            if target is None:
                continue
            one, grouped = self.optimized(target, node.op.body)
            found = {id(grouped.nodes[k]): error for k, error in one.uncompilable(grouped).items()}
            if not found:
                continue
            whys = left.setdefault(target.target.kind, {})
            for part in correspond(node.op.body, grouped):
                error = next((found[id(n)] for n in part.after if id(n) in found), None)
                if error is not None:
                    why = ": ".join(
                        x
                        for x in (error.what, error.where if isinstance(error, CodegenError) else None, error.why)
                        if x
                    )
                    for n in part.before or node.op.body.nodes:
                        whys[id(makers[n.outputs[0].name])] = " ".join(why.split())
        for kind, whys in left.items():
            kept: list[Take | Refuse] = []
            for offer in offers[kind]:
                nodes = offer.nodes if isinstance(offer, Take) else ()
                reason = next((whys[id(n)] for n in nodes if id(n) in whys), None)
                kept += [offer] if reason is None else [Refuse(n, "unscheduled", reason) for n in nodes]
            offers[kind] = kept
            reasons = "; ".join(dict.fromkeys(whys.values()))
            warnings.warn(
                ScheduleWarning(f"{len(whys)} nodes that '{kind}' took are left to other targets: {reasons}"),
                stacklevel=2,
            )
        if left:
            self._place_offered()
        return bool(left)

    def optimized(self, target: ResolvedTarget, body: Graph) -> tuple[Compilation, Graph]:
        """A region's compilation, and its graph after the target's passes: once, however often it is asked for."""
        if id(body) not in self._optimized:
            one = self.region(target)
            self._optimized[id(body)] = one, one.optimize(body), body
        return self._optimized[id(body)][:2]

    def region(self, target: ResolvedTarget) -> Compilation:
        """The compilation of a region."""
        # Without a placement it has been through no pass yet.
        extra = self.extra if self.placement is None else self._split()[2]
        dumped = max(
            (one.dumped for one in (*self.regions, *(one for one, *_ in self._optimized.values()))), default=0
        )  # files are numbered through
        return Compilation(target, extra, self.on_stage, self.cache, budget=self.budget, dumped=dumped)

    def _outline(self, graph: Graph, prefix: str, plans: list[Outline]) -> Outline:
        """`plans`: those of other branches and loops, by number; the new ones are added."""
        runs = {}
        for number, node in enumerate(graph.nodes):
            assert isinstance(node.op, Region)
            if node.op.target == STEP:
                runs[number] = tuple(
                    self._inside(body, f"{prefix}{len(plans)}.", plans) for body in _bodies(node.op.body.nodes[0])
                )
        return Outline(self, graph, len(plans), prefix, runs)

    def _inside(self, body: Graph, prefix: str, plans: list[Outline]) -> Outline:
        """What a branch or a loop runs, on the host. A body that is wholly numeric is one region, which has been
        through no pass yet.

        Raises:
            UnsupportedError: there is no target for the host.
        """
        host_ = self.targets[-1]
        if not host_.native:
            kinds = ", ".join(t.target.kind for t in self.targets)
            raise UnsupportedError(
                "control flow is done by the host, for which there is no target", hint=f'name one: "{kinds}, llvm"'
            )
        inner = PlacedCompilation([host_], self.extra, self.on_stage, self.cache, budget=self.budget)
        graph = copy_graph(body)
        taken = {v.name for v in graph.values()}
        graph.output_names = [unique_name(f"{v.name}_out", taken) for v in graph.outputs]
        _own_results(graph)
        if any(is_step(n) for n in graph.nodes):
            regions = inner.place(graph)
        else:
            regions = Graph(graph.name, output_names=list(graph.output_names))
            regions.inputs, regions.outputs = (
                [Value(v.name, v.type) for v in vs] for vs in (graph.inputs, graph.outputs)
            )
            names = frozenset[str]().union(*(n.names for n in graph.nodes))
            regions.nodes.append(Node(Region(graph, target=host_.target.kind), regions.inputs, regions.outputs, names))
        plans.append(inner._outline(regions, prefix, plans))
        return plans[-1]

    def _split(self) -> tuple[list[GraphPass], list[GraphPass], list[GraphPass]]:
        """Shared passes of plugins; those of the user that run among them and the core's; the user's that run for each
        target."""
        shared = shared_passes([t.graph_passes() for t in self.targets])
        return shared, *split_shared(self.extra, shared)

    # -- placement
    def place(self, graph: Graph) -> Graph:
        """The graph as regions, in order."""
        shared, extra, _ = self._split()
        claims = frozenset[type[Operator] | str]().union(*(t.capabilities.claims for t in self.targets))
        doubles = all(t.capabilities.doubles for t in self.targets)
        self.budget = self.budget or Budget.of(graph)
        capabilities = Capabilities(claims=claims, doubles=doubles)
        graph = run_shared_passes(graph, capabilities, shared, extra, self.budget)
        kinds = [t.target.kind for t in self.targets]
        native = [t.native for t in self.targets]
        graph = _own_results(drop_checks(graph) if self.strict or not native[-1] else graph)
        if any(native[:-1]):
            name = kinds[native.index(True)]
            order = ", ".join([*(k for k in kinds if k != name), name])
            raise UnsupportedError(
                f"target '{name}' takes everything: what follows it has nothing to do", hint=f'name it last: "{order}"'
            )
        with self._stage("offload", graph.name):
            offers = {t.target.kind: self.offers(graph, t) for t, on_host in zip(self.targets, native) if not on_host}
        self._offered = graph, offers
        self._place_offered()
        assert self.placement is not None
        return self.placement.graph

    def _place_offered(self) -> None:
        """Places the graph by the offers that there are."""
        assert self._offered is not None
        graph, offers = self._offered
        kinds, native = [t.target.kind for t in self.targets], [t.native for t in self.targets]
        names = kinds if native[-1] else [*kinds, HOST]
        with self._stage("place", graph.name):
            if (
                self.strict or not self.by_cost or not native[-1]
            ):  # the host is no alternative, however much faster it were
                offers = {
                    t: [replace(o, cost=0.0) if isinstance(o, Take) else o for o in made] for t, made in offers.items()
                }
                self.placement = place(graph, names, offers, {})
            else:
                self.placement = self.placed_by_cost()
        self._refuse(kinds, names)

    def placed_by_cost(self) -> Placement | None:
        """Where the nodes of the graph that `place` was given go if time matters; None where there is no host's CPU to
        weigh against."""
        if self._offered is None or not self.targets[-1].native:
            return None
        graph, offers = self._offered
        machine, kinds = self.targets[-1].machine, [t.target.kind for t in self.targets]
        host = [Take((node,), seconds_on(machine, node)) for node in graph.nodes]
        return place(graph, kinds, {**offers, kinds[-1]: host}, {t.target.kind: t.transfer for t in self.targets})

    def offers(self, graph: Graph, target: ResolvedTarget) -> Offers:
        """What a target takes of a graph: as its plugin says, or as its schedule rules do, of what its passes make of
        the graph."""
        passes = target.graph_passes()
        seen = run_target_passes(graph, target.capabilities, [*passes, *self._split()[2]])
        said = self._said(seen, target)
        return said if seen is graph else offers_before(graph, seen, said)

    def _said(self, graph: Graph, target: ResolvedTarget) -> Offers:
        found: list[Take | Refuse] = []
        answers = target.plugins.call("offload", required=target.owner, graph=graph, target=target.target)
        for said in answers:
            wrong = _wrong_offer(graph, said.value)
            if wrong is None:
                found += said.value
                continue
            fatal = said.plugin.name == target.owner
            target.plugins.failed(said.plugin, "offload", PluginError(wrong), target.target, warn=not fatal)
            if fatal:
                raise PluginError(f"{said.plugin} failed in hook 'offload'", why=wrong)
        if found or any(said.plugin.name == target.owner for said in answers):
            return found
        known: dict[str, Take | Refuse] = {}
        for node in graph.nodes:
            if is_step(node):
                continue
            # Layouts may depend on which operands are constants.
            text = f"{kernel_text(alone(node))}{[v is not None and v.constant is not None for v in node.inputs]}"
            if text not in known:
                with target.blame(f"to say whether it takes {node.op.operator_name}"):
                    can = target.capabilities
                    known[text] = offer_by_rules(
                        node,
                        target.rules,
                        target.machine,
                        intrinsics=target.intrinsics,
                        claims=can.claims,
                        layouts=can.layouts,
                    )
            answer = known[text]
            found.append(Take((node,), answer.cost) if isinstance(answer, Take) else replace(answer, node=node))
        return found

    def _refuse(self, kinds: Sequence[str], names: Sequence[str]) -> None:
        assert self.placement is not None
        wanted = kinds[:1] if self.strict else kinds
        left = [p for p in self.placement.nodes if p.target not in wanted]
        if not left:
            return
        lines = []
        for p in left:
            why = "; ".join(f"{target}: {reason} [{code}]" for target, (code, reason) in p.refused.items())
            lines.append(f"{_brief(p.node)}\n    {why}")
        shown = lines[:20] + ([f"… and {len(lines) - 20} more"] if len(lines) > 20 else [])
        what = f"{len(left)} of {len(self.placement.nodes)} nodes are not computed by '{', '.join(wanted)}'"
        hint = (
            "leave out strict"
            if self.strict and len(kinds) > 1
            else f'name a target for the rest as well: "{", ".join(kinds)}, llvm"'
        )
        raise UnsupportedError(what, where="\n".join(shown), hint=hint)

    @contextmanager
    def _stage(self, name: str, subject: str) -> Iterator[None]:
        record = Compilation(self.targets[-1], on_stage=self.on_stage)
        with record.stage(name, subject):
            yield


@dataclass(frozen=True)
class Outline:
    """What a plan is made of: regions in order, and by the number of one that is a branch or a loop what that runs.

    `number` is the plan's, the model's own the last; `prefix` begins the names of its sections. `compilation.placement`
    is None if it is one numeric region.
    """

    compilation: PlacedCompilation
    graph: Graph
    number: int
    prefix: str
    bodies: Mapping[int, tuple[Outline, ...]]

    def section(self, number: int) -> str:
        """The name of a region, which is that of its code."""
        region = self.graph.nodes[number].op
        assert isinstance(region, Region)
        return f"{self.prefix}{region.target}{number}"

    def all(self) -> list[Outline]:
        """This one, then what it runs, in order."""
        return [self, *(o for inside in self.bodies.values() for body in inside for o in body.all())]


def _bodies(node: Node) -> tuple[Graph, ...]:
    """What a step runs.

    Raises:
        UnsupportedError: it is none, and yet works on what no kernel works on.
    """
    op = node.op
    if isinstance(op, (If, Loop, HostOperator)):
        return bodies(op)
    raise UnsupportedError(
        f"{op.operator_name} works on tensors of numbers, not on strings, sequences and optionals", where=_brief(node)
    )


def _brief(node: Node) -> str:
    """A node with the framework's names; the graphs that it holds are left out."""
    first, *more = str(node).splitlines()
    return first + (" …" if more else "") + (f"  # {', '.join(sorted(node.names))}" if node.names else "")


def _wrong_offer(graph: Graph, offers: Offers) -> str | None:
    """What is wrong with a plugin's offers for a graph, as a sentence; None if they may be weighed."""
    known = {id(n) for n in graph.nodes}
    for offer in offers:
        nodes = offer.nodes if isinstance(offer, Take) else (offer.node,)
        if not nodes:
            return "it takes no nodes (a Take of none)"
        foreign = [n for n in nodes if id(n) not in known]
        if foreign:
            return f"it speaks of {foreign[0]!r}, which is no node of the graph: offer the nodes that it was given"
        if isinstance(offer, Take) and not 0 <= offer.cost < float("inf"):  # false of nan too
            return f"it takes {offer.nodes[0]!r} in {offer.cost} seconds"
    return None


def multiply_adds(node: Node) -> float:
    """Multiplications with their additions in the definition of a contraction, of those that a composite consists of,
    or of the products of a recurrence or an attention; 0 for other operators. Sizes known at run time only count as
    typical ones.
    """
    types = [None if v is None else v.type for v in node.inputs]
    given = [[float(_typical(d)) for d in t.shape] if isinstance(t, TensorType) else None for t in types]
    own = node.op.multiply_adds(*given)
    if own is not None:
        return own
    body = alone(node)
    try:
        if node.op.kind == "composite":
            parts = decompose(body, Capabilities()).nodes
            return sum(multiply_adds(n) for n in parts if n.op != node.op)
        if node.op.kind != "contraction":
            return 0.0
        program = lower_group(body, "kernel")
    except WeftError:  # one that only a target's own way computes
        return 0.0
    found = count_work(program, frozenset(), {d.name: TYPICAL for d in program.dims})
    return found.flop / 2 if found is not None else 0.0


def _typical(d: Expr | int) -> int:
    return d if isinstance(d, int) else max(0, int(evaluate(d, dict.fromkeys(free_vars(d), TYPICAL))))


def seconds_on(machine: Machine, node: Node) -> float:
    """About what a host's CPU takes for a node: its multiply-adds at the machine's peak, or its values once through
    memory, whichever is more."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and isinstance(v.type, TensorType)]
    moved = sum(bytes_of(v.type) for v in values if isinstance(v.type, TensorType))
    cores, rates = machine.cores, machine.rates
    peak = max((machine.flops(v.dtype) for v in values if v.dtype.kind == "float"), default=1) * cores * rates.clock_hz
    return max(2 * multiply_adds(node) / peak, moved / (rates.memory.exchange(cores) * cores))


def _own_results(graph: Graph) -> Graph:
    """Every output computed by a node, none twice, under the name of the output. Changes `graph`."""
    taken = {id(v) for v in graph.inputs}
    clash = {v.name for v in graph.inputs} & set(graph.output_names)
    if clash:
        raise GraphError(
            f"an input and an output are both called '{min(clash)}'",
            hint="rename one: a plan of several steps identifies values by name",
        )
    names = set(graph.output_names)
    for k, value in enumerate(graph.outputs):
        if id(value) in taken or value.producer is None:
            copy = Value(graph.output_names[k], value.type)
            op = Identity() if is_numeric(value) else HostIdentity()
            graph.nodes.append(Node(op, (value,), (copy,), value.producer.names if value.producer is not None else ()))
            graph.outputs[k] = value = copy
        taken.add(id(value))
    results = {id(v) for v in graph.outputs}
    others = {v.name for v in graph.values()}
    for value in graph.values():
        if id(value) not in results and value.name in names:
            value.name = next(n for k in range(len(others) + 1) if (n := f"{value.name}_{k}") not in others | names)
            others.add(value.name)
    for value, name in zip(graph.outputs, graph.output_names):
        value.name = name
    return graph


def unique_name(stem: str, taken: set[str]) -> str:
    """A name that is not taken, which it is from now on."""
    name = next(n for k in range(len(taken) + 1) if (n := f"{stem}{k or ''}") not in taken)
    taken.add(name)
    return name
