"""The backend of `torch.compile(model, backend="weft")`.

Each graph that Dynamo captures becomes one executable, at its first call: for inference then parameters and buffers are
there, which are constants of it and are packed once. What is written to them later is noticed by their version
counters, what they are set to by their addresses, and the executable is made anew, a few times. For training, where
every step writes to them, they are inputs; the forward and the backward pass are an executable each. Sizes that Dynamo
leaves open are symbols.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import weft as core
from weft.converters import Converters
from weft.errors import FrontendError, UnsupportedError
from weft.graph.nodes import Graph
from weft.options import make_options
from weft_torch.decomposition import table, training_table
from weft_torch.drawing import draw, drawn, draws
from weft_torch.importer import ProgramImporter, tokens
from weft_torch.sharing import Bindings, bound, owners, seen_in
from weft_torch.tensors import PARTS, array_of, tensor_of

log = logging.getLogger("weft")
unsupported: Counter[str] = Counter()
"""How many graphs ran in PyTorch's eager mode, by reason: with the option `fallback`."""

BUILT = 3
"""How often an executable is made with weights as constants. That they change more often means that the model is
trained meanwhile: then they are inputs."""


@dataclass(frozen=True)
class BackendOptions:
    """target: as `weft.compile` takes it. fallback: graphs with something unsupported run in eager mode, with the
    reasons counted in `weft_torch.backend.unsupported` and written to the logger `weft`; else they are errors."""

    target: str = "llvm"
    fallback: bool = False


def weft(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured: for training if gradients are enabled and a tensor that it takes requires
    its gradient, else for inference.

    Raises:
        FrontendError: an option does not exist.
        UnsupportedError: at the first call: the graph uses what is not supported, or its gradients do; lists
            everything.
    """
    chosen: BackendOptions = make_options(BackendOptions, options or {}, "backend 'weft'", FrontendError)
    return (_for_training if _wants_gradients(gm, example_inputs) else _for_inference)(gm, example_inputs, chosen)


def _wants_gradients(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    given = (*gm.parameters(), *gm.buffers(), *inputs)
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in given):
        return False
    modes = gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    return torch.is_grad_enabled() or any(n.args[0] for n in modes)


def _for_inference(gm: torch.fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch.export._trace import _ignore_backend_decomps
    from torch.export.exported_program import (
        _override_composite_implicit_decomp,
        _split_decomp_table_to_cia_and_python_decomp,
    )

    composite, decompositions = _split_decomp_table_to_cia_and_python_decomp(table(Converters("torch")))
    compiler = partial(_inference, options)
    with _ignore_backend_decomps(), _override_composite_implicit_decomp(composite):
        found: Callable[..., Any] = aot_module_simplified(gm, inputs, compiler, decompositions=decompositions)
    return found


def _for_training(gm: torch.fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Callable[..., Any]:
    """Attention is taken apart: PyTorch's own kernels for it keep what only their gradients understand. No saved tensor
    is written over, so that a graph may be kept for a second backward pass."""
    from torch._functorch import config
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch.export._trace import _ignore_backend_decomps
    from torch.nn.attention import SDPBackend, sdpa_kernel

    training = Training(options)
    with _ignore_backend_decomps(), sdpa_kernel(SDPBackend.MATH), config.patch(donated_buffer=False):
        found: Callable[..., Any] = aot_module_simplified(
            gm,
            inputs,
            fw_compiler=training.forward,
            bw_compiler=training.backward,
            partition_fn=training.partition,
            inference_compiler=partial(_inference, options),  # where no result has a gradient
            decompositions=training_table(Converters("torch")),
        )
    return found


def _inference(options: BackendOptions, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    static, written = _known_of_inputs()
    return _boxed(Captured(graph, options, static=static, written=written))


def _known_of_inputs() -> tuple[frozenset[int], frozenset[int]]:
    """The places of inputs that are the same tensors at every call, and of those that PyTorch writes to afterwards."""
    context = torch._guards.TracingContext.try_get()
    known = context.fw_metadata if context else None
    if known is None:
        return frozenset(), frozenset()
    written = (k for k, info in enumerate(known.input_info, len(known.tokens)) if info.mutates_data)
    return frozenset(known.static_input_indices or ()), frozenset(written)


class Training:
    """The forward and the backward pass of one graph."""

    def __init__(self, options: BackendOptions) -> None:
        self.options = options
        self.later: list[torch.fx.GraphModule] = []

    def partition(self, joint: torch.fx.GraphModule, inputs: Any, **more: Any) -> Any:
        """The two passes of a graph of both. What crosses from one to the other is the fewest bytes such that only what
        is cheap is computed twice.

        Raises:
            UnsupportedError: the backward pass draws random numbers.
        """
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        forward, backward = min_cut_rematerialization_partition(joint, inputs, **more)
        again = [n.name for n in backward.graph.nodes if draws(n)]
        if again:
            raise UnsupportedError(
                "the backward pass draws random numbers",
                where=", ".join(again),
                why="where PyTorch computes a part of the forward pass again, they are not those of the forward pass",
                hint="leave torch._functorch.config.activation_memory_budget at 1; a backward of your own may not draw",
            )
        self.later = [backward]
        return forward, backward

    def forward(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        _, written = _known_of_inputs()
        return _boxed(Captured(graph, self.options, written=written, later=self.later))

    def backward(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(Captured(graph, self.options, apart=True))  # autograd adds to gradients where they are


def _boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import make_boxed_func

    found: Callable[..., Any] = make_boxed_func(function)
    return found


class Captured:
    """One graph of PyTorch's operators, and its executable once it is called.

    Args:
        static: the places of inputs that are the same tensors at every call; they are constants.
        written: the places of inputs that are written to afterwards: results that are such are copies.
        apart: each result has memory of its own.
        later: graphs that run after this one. What they use and is not supported is an error of this one, so that it
            comes before any work is done.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        options: BackendOptions,
        *,
        static: frozenset[int] = frozenset(),
        written: frozenset[int] = frozenset(),
        apart: bool = False,
        later: Sequence[torch.fx.GraphModule] = (),
    ) -> None:
        self.graph, self.static, self.options, self.later = graph, static, options, later
        self.placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        (output,) = (n for n in graph.graph.nodes if n.op == "output")
        self.results: list[Any] = list(torch.utils._pytree.tree_leaves(output.args[0]))
        self.owners = {} if apart else owners(graph.graph, self.results)
        self.copied = {n for k, n in enumerate(self.placeholders) if _is_tensor(n) and (apart or k in written)}
        self.passed = {n for n in self.placeholders if n not in self.copied} | tokens(graph.graph)
        nodes = [self.owners.get(r, r) for r in self.results if self.makes(r)]
        shared = set(self.owners.values())
        self.computed = [n for k, n in enumerate(nodes) if n not in shared or n not in nodes[:k]]
        self.drawn = drawn(graph.graph)
        self.held: list[tuple[int, torch.Tensor, int, int]] = []
        self.executable: Any = None
        self.built = 0
        self.eager = False

    def __call__(self, *args: Any) -> Any:
        with torch.no_grad():
            if self.executable is None or any(
                args[k] is not t or t._version != v or t.data_ptr() != p for k, t, v, p in self.held
            ):
                self.build(args)
            if self.eager:
                return [r.clone() if n in self.copied else r for n, r in zip(self.results, self.graph(*args))]
            return self.run(args)

    def build(self, args: Sequence[Any]) -> None:
        """Makes the executable, with the static inputs as constants, unless they change too often."""
        static = self.static if self.built < BUILT else ()
        self.built += 1
        given = {k: args[k] for k in static if isinstance(args[k], torch.Tensor)}
        constants = {k: t for k, t in given.items() if not t.is_inference()}  # writes to those are not counted
        self.held = [(k, t, t._version, t.data_ptr()) for k, t in constants.items()]
        importer = ProgramImporter("torch", len(self.placeholders))
        try:
            graph = self.imported(importer, constants)
            self.executable = core.compile(graph, self.options.target)
        except UnsupportedError as error:
            if not self.options.fallback:
                raise
            self.executable, self.eager = error, True
            for reason in importer.unsupported or [error.what]:
                unsupported[reason] += 1
            log.warning("a graph runs in PyTorch's eager mode: %s", "; ".join(importer.unsupported) or error.what)
        else:
            names = {v.name for v in graph.inputs}
            self.inputs = [n for n in (*self.placeholders, *self.drawn) if n.name in names]
            self.names = list(graph.output_names)
        self.later = ()

    def imported(self, importer: ProgramImporter, constants: Mapping[int, torch.Tensor]) -> Graph:
        """The graph.

        Raises:
            UnsupportedError: it uses what is not supported, or without `fallback` a later one does; lists everything.
        """
        importer.count(self.graph.graph)
        found: Graph | None = None
        try:
            found = importer.capture(self.graph, constants, self.computed, self.drawn)
        except UnsupportedError:
            if not importer.unsupported or self.options.fallback:
                raise
        for module in () if self.options.fallback else self.later:
            for reason, nodes in _unsupported(module).items():
                importer.unsupported.setdefault(reason, []).extend(nodes)
        if found is None or importer.unsupported:
            raise importer.everything_unsupported()
        return found

    def makes(self, result: Any) -> bool:
        """Whether the executable has it as a result: an input is passed on as it is, unless it is written to."""
        return isinstance(result, torch.fx.Node) and result not in self.passed

    def run(self, args: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.placeholders, args))
        sizes: Bindings = bound(self.placeholders, args) if self.drawn or self.owners else {}
        given |= {n: draw(n, sizes) for n in self.drawn}  # all: the next graph goes on with the generator
        found = self.executable.run({n.name: _array(given[n]) for n in self.inputs})
        values = iter(_result(n, found[name]) for n, name in zip(self.computed, self.names, strict=True))
        shared: dict[torch.fx.Node, torch.Tensor] = {}
        results: list[Any] = []
        for result in self.results:
            owner = self.owners.get(result) if isinstance(result, torch.fx.Node) else None
            if owner is None:
                passed = given.get(result) if isinstance(result, torch.fx.Node) else result
                results.append(next(values) if self.makes(result) else passed)
                continue
            if owner not in shared:
                shared[owner] = next(values)
                sizes |= bound([owner], [shared[owner]])
            results.append(shared[owner] if result is owner else seen_in(shared[owner], result, sizes))
        return results


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _unsupported(graph: torch.fx.GraphModule) -> Mapping[str, list[str]]:
    """What a graph uses and is not supported, with the nodes of each."""
    importer = ProgramImporter("torch", len(graph.graph.nodes))
    importer.count(graph.graph)
    try:
        importer.capture(graph, {}, given=drawn(graph.graph))
    except UnsupportedError:
        if not importer.unsupported:
            raise
    return importer.unsupported


def _result(node: torch.fx.Node, array: Any) -> Any:
    fake = node.meta.get("val")
    return _laid_out(_tensor(array, fake), fake) if isinstance(fake, torch.Tensor) else array.item()


def _array(value: Any) -> Any:
    import numpy as np

    return array_of(value) if isinstance(value, torch.Tensor) else np.asarray(value, np.int64)


def _tensor(array: Any, fake: torch.Tensor) -> torch.Tensor:
    found = tensor_of(array)
    return torch.view_as_complex(found) if fake.dtype in PARTS else found


def _laid_out(tensor: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """The tensor with its axes in memory in the order that PyTorch expects; along axes of stride 0 it is repeated."""
    if fake.is_contiguous() or not tensor.numel():
        return tensor
    strides = [s.node.hint if isinstance(s, torch.SymInt) else s for s in fake.stride()]
    shape = tensor.shape
    for d, stride in enumerate(strides):
        tensor = tensor if stride else tensor.narrow(d, 0, 1)
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], d))
    back = sorted(range(tensor.dim()), key=lambda k: order[k])
    return tensor.permute(order).contiguous().permute(back).expand(shape)


__all__ = ["BackendOptions", "unsupported", "weft"]
