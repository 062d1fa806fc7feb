"""The order of graph passes, and what holds after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.errors import GraphError, nearest
from weft.graph.nodes import Graph
from weft.graph.rewrite import copy_graph
from weft.graph.verify import verify
from weft.passes.capabilities import Capabilities
from weft.passes.choose_algorithms import choose_algorithms
from weft.passes.choose_layouts import choose_layouts, impossible_layout
from weft.passes.decompose import decompose
from weft.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from weft.passes.eliminate_dead_code import eliminate_dead_code
from weft.passes.fold_batch_norm import fold_batch_norm
from weft.passes.fold_constants import Budget, fold_constants
from weft.passes.fold_scale import fold_scale
from weft.passes.fuse import fuse
from weft.passes.fuse_attention import fuse_attention
from weft.passes.fuse_quantization import fuse_quantization
from weft.passes.merge_groups import merge_groups
from weft.passes.narrow_products import narrow_products
from weft.passes.narrow_weights import narrow_weights
from weft.passes.reduce_precision import reduce_precision
from weft.passes.simplify_algebra import simplify_algebra


@dataclass(frozen=True)
class GraphPass:
    """A pass of a plugin or a user.

    Args:
        name: names it in reports and may be another pass's `after`.
        function: Graph → Graph; the meaning must stay the same.
        after: the pass it follows; "" puts it first.
    """

    name: str
    function: Callable[[Graph], Graph]
    after: str = ""


Stage: TypeAlias = "Callable[[Graph, Capabilities, Budget], Graph]"


# (name, function, invariant). A name that comes again has a number.
STAGES: tuple[tuple[str, Stage, str], ...] = (
    (
        "fold_constants",
        lambda g, c, b: fold_constants(g, early=True, budget=b),
        "no node but what `folds_late` has constant inputs only, within the bounds of folding; no size is bound to a constant",
    ),
    ("fuse_quantization", fuse_quantization, "no product, convolution or mean of quantised numbers with constant scales is computed in floats"),
    ("fold_batch_norm", lambda g, c, b: fold_batch_norm(g, b), "no constant batch normalisation follows a convolution or product with constant weights"),
    ("decompose", lambda g, c, b: decompose(g, c), "every composite is claimed by the target"),
    ("simplify_algebra", lambda g, c, b: simplify_algebra(g), "no rule of algebra applies"),
    ("fold_constants_2", lambda g, c, b: fold_constants(g, budget=b), "no node has constant inputs only, within the bounds of folding"),
    ("fuse_attention", lambda g, c, b: fuse_attention(g, c), "no attention whose scores nothing else uses is spelled out, where the target claims it"),
    ("fold_scale", lambda g, c, b: fold_scale(g, b), "no constant scale follows a convolution or product with constant weights"),
    ("merge_groups", lambda g, c, b: merge_groups(g, c), "a grouped convolution has whole channel blocks per group where that costs less than rows"),
    ("narrow_products", lambda g, c, b: narrow_products(g, c), "contractions with constant weights that fit a dot product of the target are in its terms"),
    ("eliminate_common_subexpressions", lambda g, c, b: eliminate_common_subexpressions(g), "no two nodes compute the same"),
    ("eliminate_dead_code", lambda g, c, b: eliminate_dead_code(g), "every node contributes to an output"),
    ("reduce_precision", lambda g, c, b: reduce_precision(g, c), "constant weights of contractions are rounded to the precision that the target was asked for"),
    ("choose_algorithms", lambda g, c, b: choose_algorithms(g, c), "no convolution is computed by its definition where the target has a faster way"),
    ("choose_layouts", lambda g, c, b: choose_layouts(g, c), "values carry layouts; inputs and outputs are row-major"),
    ("narrow_weights", lambda g, c, b: narrow_weights(g, c), "weights that are read in vectors are stored in that precision"),
    ("fuse", lambda g, c, b: fuse(g, c), "every node is a Group, but control flow and nodes on strings, sequences and optionals"),
)


# What needs no target but its claims: models for several targets go through these as a whole, and through all of them region by region.
SHARED = (
    "fold_constants", "fuse_quantization", "fold_batch_norm", "decompose", "simplify_algebra", "fold_constants_2", "fuse_attention", "fold_scale",
    "eliminate_common_subexpressions", "eliminate_dead_code",
)  # fmt: skip


LAID_OUT = ("choose_layouts", "narrow_weights", "fuse")


def run_target_passes(graph: Graph, capabilities: Capabilities, extra: Sequence[GraphPass]) -> Graph:
    """A graph that has been through the passes of SHARED, after those of the core and of `extra` that make it one target's, as far as nodes are still single
    and without layouts: what the target is asked to take. The graph itself, if there are none."""
    order = pass_names(extra)
    own = [p for p in extra if order.index(p.name) < order.index("choose_layouts")]
    changes = capabilities.dots or capabilities.precision or capabilities.winograd or capabilities.channel_block
    if not own and not changes:
        return graph
    return run_passes(copy_graph(graph), capabilities, own, check=False, only=[n for n in stage_names() if n not in (*SHARED, *LAID_OUT)])


def stage_names() -> list[str]:
    """The core's passes in order."""
    return [name for name, _, _ in STAGES]


def pass_names(extra: Sequence[GraphPass]) -> list[str]:
    """The core's passes and those of `extra`, in the order in which they run.

    Raises:
        GraphError: a pass names a slot that does not exist, or a name that several passes have.
    """
    return [name for name, _ in _ordered(extra)]


def run_passes(
    graph: Graph,
    capabilities: Capabilities | None = None,
    extra: Sequence[GraphPass] = (),
    on_stage: Callable[[str, Graph, float], None] | None = None,
    check: bool = True,
    only: Sequence[str] | None = None,
    budget: Budget | None = None,
) -> Graph:
    """`graph` after all passes: optimised, laid out and fused.

    Args:
        extra: passes of plugins and users, each after the pass it names; in the given order where several name the same.
        on_stage: called with every pass's name, result and seconds.
        check: verify the graph after every pass; after those of `extra` it always is.
        only: names of the core's passes to run; None: all.
        budget: what constant folding may still make and do, from which its stages take; None: what a compilation of this graph alone may.

    Raises:
        GraphError: a pass names a slot that does not exist, or left an ill-formed graph.
    """
    capabilities = capabilities or Capabilities()
    budget = budget or Budget.of(graph)
    foreign = {p.name for p in extra}
    laid_out = False
    for name, function in _ordered(extra):
        if only is not None and name not in only and name not in foreign:
            continue
        started = time.perf_counter()
        graph = function(graph, capabilities, budget)
        seconds = time.perf_counter() - started
        if not isinstance(graph, Graph):
            raise GraphError(f"the pass '{name}' returned {graph!r}, not a Graph", hint="a pass returns the graph that it was given, or another")
        if check or name in foreign:
            try:
                verify(graph)
            except GraphError as error:
                raise GraphError(f"after the pass '{name}': {error.what}", where=error.where, why=error.why, hint=error.hint) from error
        if name == "choose_layouts" or (laid_out and name in foreign):
            laid_out = True
            wrong = impossible_layout(graph, capabilities)
            if wrong is not None:
                hint = "a pass behind choose_layouts keeps the layouts of what exists in these only"
                raise GraphError(f"after the pass '{name}': {wrong}", why="a LayoutOffer of its operator says `only`", hint=hint)
        laid_out = laid_out and name != "fuse"
        if on_stage is not None:
            on_stage(name, graph, seconds)
    return graph


def _ordered(extra: Sequence[GraphPass]) -> list[tuple[str, Stage]]:
    order = [(name, function) for name, function, _ in STAGES]
    tails: dict[str, int] = {}
    pending = list(extra)
    while pending:
        left = []
        for p in pending:
            names = [name for name, _ in order]
            if p.after and p.after not in names:
                left.append(p)
                continue
            if names.count(p.after) > 1:
                what = f"the graph pass '{p.name}' runs after '{p.after}', which {names.count(p.after)} passes are called"
                raise GraphError(what, hint="give each of them a name of its own: GraphPass(name, function, after)")
            at = names.index(p.after) + 1 if p.after else 0
            at += tails.get(p.after, 0)
            tails[p.after] = tails.get(p.after, 0) + 1
            order.insert(at, (p.name, lambda g, c, b, function=p.function: function(g)))  # type: ignore[misc]
        if len(left) == len(pending):
            close = nearest(left[0].after, [name for name, _ in order])
            raise GraphError(
                f"the graph pass '{left[0].name}' runs after '{left[0].after}', which does not exist",
                hint=f"did you mean '{close}'?" if close else "the passes are " + ", ".join(stage_names()),
            )
        pending = left
    return order
