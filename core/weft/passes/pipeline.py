"""The order of graph passes, and what holds after each."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from weft.choices import Choices
from weft.errors import GraphError, nearest
from weft.graph.nodes import Graph
from weft.graph.rewrite import copy_graph
from weft.graph.verify import verify
from weft.passes.capabilities import Capabilities
from weft.passes.choose_layouts import choose_layouts, impossible_layout
from weft.passes.decompose import decompose
from weft.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from weft.passes.eliminate_dead_code import eliminate_dead_code
from weft.passes.fold_constants import Budget, fold_constants
from weft.passes.fuse import fuse


def _always(capabilities: Capabilities) -> bool:
    return True


@dataclass(frozen=True)
class GraphPass:
    """A graph pass: of the core, of a plugin (hook `graph_passes`), or of a user.

    Args:
        name: names it in reports; `after` and `before` of other passes may be it.
        function: the graph → a graph of the same meaning, the same object or another. Further parameters that it has by
            these names are given as well: `capabilities`, the target's `Capabilities`; `budget`, what constant folding
            may still make and do; `choices`, the graph's `Choices`, for decisions that a record may replace
            (`Choices.of_pass`: the pass's name precedes those that an earlier pass has made).
        after: the pass that it follows directly; "", without `before`, puts it first.
        before: the pass that it precedes directly, in place of `after`. Where several passes name the same one, the
            given order is kept.
        shared: it depends only on the composites that targets claim (`Capabilities.claims`). A model for several
            targets goes through such passes as a whole, before nodes are placed.
        when: whether it may change anything for a target of these capabilities.
        invariant: what holds afterwards, for people.

    Raises:
        GraphError: both `after` and `before` are given.
    """

    name: str
    function: Callable[..., Graph]
    after: str = ""
    before: str = ""
    shared: bool = False
    when: Callable[[Capabilities], bool] = field(default=_always, compare=False)
    invariant: str = ""

    def __post_init__(self) -> None:
        if self.after and self.before:
            what = f"the graph pass '{self.name}' has both after='{self.after}' and before='{self.before}'"
            raise GraphError(what, hint="one of them says where it runs")

    def run(self, graph: Graph, capabilities: Capabilities, budget: Budget, choices: Choices | None = None) -> Graph:
        """The function's result, with the parameters that it has."""
        own = (choices or Choices()).of_pass(self.name)
        given = {"capabilities": capabilities, "budget": budget, "choices": own}
        return self.function(graph, **{name: given[name] for name in _further(self.function)})


def _further(function: Callable[..., Graph]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of C
        return []
    return [name for name in ("capabilities", "budget", "choices") if name in parameters]


def _fold_early(graph: Graph, budget: Budget) -> Graph:
    return fold_constants(graph, early=True, budget=budget)


def _fold(graph: Graph, budget: Budget) -> Graph:
    return fold_constants(graph, budget=budget)


FOLDED = "no node has constant inputs only, within the limits of folding"
FOLDED_EARLY = f"{FOLDED}, except for operators that state `folds_late`; no size is bound to a constant"
FUSED = "every node is a Group, except for control flow and nodes on strings, sequences and optionals"

# A name that comes again has a number.
CORE: tuple[GraphPass, ...] = (
    GraphPass("fold_constants", _fold_early, shared=True, invariant=FOLDED_EARLY),
    GraphPass("decompose", decompose, shared=True, invariant="every composite is claimed by the target"),
    GraphPass("fold_constants_2", _fold, shared=True, invariant=FOLDED),
    GraphPass(
        "eliminate_common_subexpressions",
        eliminate_common_subexpressions,
        shared=True,
        invariant="no two nodes compute the same",
    ),
    GraphPass("eliminate_dead_code", eliminate_dead_code, shared=True, invariant="every node contributes to an output"),
    GraphPass("choose_layouts", choose_layouts, invariant="values have layouts; inputs and outputs are row-major"),
    GraphPass("fuse", fuse, invariant=FUSED),
)
"""The core's passes in order: those that know operators by their facts only."""


def shared_passes(of_targets: Sequence[Sequence[GraphPass]]) -> list[GraphPass]:
    """The shared passes of plugins, for a model that several targets share: those that each of the targets has, by
    name.

    Raises:
        GraphError: one is placed at a pass that is not shared.
    """
    common = set[str].intersection(*({p.name for p in passes if p.shared} for passes in of_targets))
    shared = [p for p in of_targets[0] if p.name in common]
    names = {p.name for p in (*CORE, *shared) if p.shared}
    for p in shared:
        place = p.after or p.before
        if place and place not in names:
            what = (
                f"the shared graph pass '{p.name}' runs {'after' if p.after else 'before'} '{place}', which is not"
                " shared"
            )
            why = "shared passes run before nodes are placed on targets, the others for each target alone"
            raise GraphError(what, why=why, hint="place it at a shared pass, or make that one shared as well")
    return shared


def split_shared(extra: Sequence[GraphPass], others: Sequence[GraphPass]) -> tuple[list[GraphPass], list[GraphPass]]:
    """Passes of a user, in the given order: those that run among the shared ones of the core and of `others`, and the
    rest."""
    names = {p.name for p in (*CORE, *others) if p.shared}
    shared: list[GraphPass] = []
    for p in extra:
        place = p.after or p.before
        if p.shared or not place or place in names:
            names.add(p.name)
            shared.append(p)
    return shared, [p for p in extra if p not in shared]


def run_shared_passes(
    graph: Graph,
    capabilities: Capabilities,
    shared: Sequence[GraphPass],
    extra: Sequence[GraphPass],
    budget: Budget,
) -> Graph:
    """A graph after the shared passes of the core and of plugins (`shared`), with those of a user among them
    (`extra`)."""
    only = {p.name for p in (*CORE, *shared) if p.shared} | {p.name for p in extra}
    return run_passes(graph, capabilities, [*shared, *extra], check=False, only=only, budget=budget)


def run_target_passes(graph: Graph, capabilities: Capabilities, extra: Sequence[GraphPass]) -> Graph:
    """What one target is asked to take: a graph that has been through the shared passes, after the others that precede
    `choose_layouts`, so that nodes are still single and without layouts. The graph itself, if none of them changes it.
    """
    order = ordered(extra)
    cut = next(k for k, p in enumerate(order) if p.name == "choose_layouts")
    own = {p.name for p in order[:cut] if not p.shared and p.when(capabilities)}
    if not own:
        return graph
    return run_passes(copy_graph(graph), capabilities, extra, check=False, only=own)


def run_passes(
    graph: Graph,
    capabilities: Capabilities | None = None,
    extra: Sequence[GraphPass] = (),
    on_stage: Callable[[str, Graph, float], None] | None = None,
    check: bool = True,
    only: Container[str] | None = None,
    budget: Budget | None = None,
    choices: Choices | None = None,
) -> Graph:
    """`graph` after all passes: optimised, laid out and fused.

    Args:
        extra: passes of plugins and users; in the given order where several name the same place.
        on_stage: called with every pass's name, result and seconds.
        check: verify the graph after every pass; after those of `extra` that changed it, it always is.
        only: names of the passes to run; None: all.
        budget: what constant folding may still make and do, from which its stages take; None: what a compilation of
            this graph alone may.
        choices: gets those that passes make; its recorded ones are followed.

    Raises:
        GraphError: a pass names a place that does not exist, or left an ill-formed graph.
        ChoiceError: a recorded choice cannot be followed.
    """
    capabilities = capabilities or Capabilities()
    budget = budget or Budget.of(graph)
    choices = Choices() if choices is None else choices
    laid_out = False
    for p in ordered(extra):
        if only is not None and p.name not in only:
            continue
        foreign = p not in CORE
        before = _parts(graph) if foreign and not check else []
        started = time.perf_counter()
        if p.when(capabilities):
            graph = p.run(graph, capabilities, budget, choices)
        seconds = time.perf_counter() - started
        if not isinstance(graph, Graph):
            what = f"the pass '{p.name}' returned {graph!r}, not a Graph"
            raise GraphError(what, hint="a pass returns the graph that it was given, or another")
        if check or (foreign and not _same(before, _parts(graph))):
            _verify(graph, p.name)
        if p.name == "choose_layouts" or (laid_out and foreign):
            laid_out = True
            wrong = impossible_layout(graph, capabilities)
            if wrong is not None:
                hint = "a pass behind choose_layouts keeps the layouts of what exists in these only"
                why = "a LayoutOffer of its operator says `only`"
                raise GraphError(f"after the pass '{p.name}': {wrong}", why=why, hint=hint)
        laid_out = laid_out and p.name != "fuse"
        if on_stage is not None:
            on_stage(p.name, graph, seconds)
    return graph


def _parts(graph: Graph) -> list[object]:
    """What a graph consists of, in order: it is unchanged if these are the same objects."""
    parts: list[object] = [graph, *graph.inputs, *graph.outputs, *graph.output_names]
    for name, source in graph.symbols.items():
        parts += (name, source.value, source.index)
    for node in graph.nodes:
        parts += (node, node.op, *node.inputs)
        for value in (*node.inputs, *node.outputs):
            if value is not None:
                parts += (value, value.type, value.constant, value.producer)
    return parts


def _same(before: Sequence[object], after: Sequence[object]) -> bool:
    return len(before) == len(after) and all(a is b for a, b in zip(before, after))


def _verify(graph: Graph, after: str) -> None:
    try:
        verify(graph)
    except GraphError as error:
        raise GraphError(
            f"after the pass '{after}': {error.what}", where=error.where, why=error.why, hint=error.hint
        ) from error


def ordered(extra: Sequence[GraphPass]) -> list[GraphPass]:
    """The core's passes and those of `extra`, in the order in which they run.

    Raises:
        GraphError: a pass names a place that does not exist, or a name that several passes have.
    """
    order = list(CORE)
    followers: dict[str, int] = {}  # pass → passes that stand behind it because of it
    parents: dict[str, str] = {}  # pass → what it stands behind because of
    pending = list(extra)
    while pending:
        left = []
        for p in pending:
            names = [q.name for q in order]
            if (p.after or p.before) and (p.after or p.before) not in names:
                left.append(p)
                continue
            if names.count(p.after or p.before) > 1:
                raise _several(p, names)
            if p.before:
                order.insert(names.index(p.before), p)
            else:
                at = names.index(p.after) + 1 if p.after else 0
                order.insert(at + followers.get(p.after, 0), p)
            behind = parents.get(p.before) if p.before else p.after
            if behind is not None and p.name not in names:
                parents[p.name] = behind
            while behind is not None:
                followers[behind] = followers.get(behind, 0) + 1
                behind = parents.get(behind)
        if len(left) == len(pending):
            raise _no_such_place(left[0], order)
        pending = left
    return order


def _several(p: GraphPass, names: Sequence[str]) -> GraphError:
    place = p.after or p.before
    what = (
        f"the graph pass '{p.name}' runs {'after' if p.after else 'before'} '{place}', which {names.count(place)}"
        " passes are called"
    )
    return GraphError(what, hint="give each of them a name of its own: GraphPass(name, function, after)")


def _no_such_place(p: GraphPass, order: Sequence[GraphPass]) -> GraphError:
    names = [q.name for q in order]
    close = nearest(p.after or p.before, names)
    return GraphError(
        f"the graph pass '{p.name}' runs {'after' if p.after else 'before'} '{p.after or p.before}', which does not"
        " exist",
        hint=f"did you mean '{close}'?" if close else "the passes are " + ", ".join(names),
    )


def pass_names(extra: Sequence[GraphPass]) -> list[str]:
    """The names of `ordered`."""
    return [p.name for p in ordered(extra)]
