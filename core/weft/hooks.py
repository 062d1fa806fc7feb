"""THE hook specifications: everything a plugin can contribute to Weft.

A plugin is a module or object named by an entry point of the group `weft.plugins`; it implements any of these
functions, decorated with `weft.hooks.hookimpl`, taking any subset of the arguments. Hooks return values; nothing
registers itself on import. Import heavy packages inside functions: a plugin module must import in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from weft.options import NoOptions

if TYPE_CHECKING:
    import typer

    from weft.graph.nodes import Graph
    from weft.graph.operator import Operator
    from weft.loop.pipeline import LoopPass
    from weft.passes.capabilities import Capabilities
    from weft.passes.pipeline import GraphPass
    from weft.passes.place import Offers
    from weft.records import Records
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind
    from weft_runtime.device import DeviceKind
    from weft_runtime.executable import Executable

PROJECT = "weft"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Decorator of a plugin's hook functions, as `pluggy.HookimplMarker`."""


@dataclass(frozen=True)
class Frontend:
    """A reader of one model format.

    Args:
        name: the value of `frontend=`, e.g. "onnx".
        suffixes: file suffixes it reads, e.g. (".onnx",).
        sniff: the first 4096 bytes of a file → whether it looks like this format.
        accepts: a Python object → whether `load` takes it; must not import the framework to return False.
        load: (source: path, bytes or object, an instance of `options`) → Graph. Raises FrontendError.
        files: (path, an instance of `options`) → the other files that the model refers to, whose content is part of the
            cache's key, and which nothing is written over; must be quick. None: a model is one file.
        options: a frozen dataclass, as a target's (`weft.options`), each field with a default.
        folder: a folder → whether it looks like a model of this format; must be quick. None: no model is a folder. All
            files in it are the model's, unless `files` names them.
    """

    name: str
    suffixes: tuple[str, ...]
    sniff: Callable[[bytes], bool]
    accepts: Callable[[object], bool]
    load: Callable[[Any, Any], Graph]
    files: Callable[[Path, Any], Sequence[Path]] | None = None
    options: type = NoOptions
    folder: Callable[[Path], bool] | None = None


@dataclass(frozen=True)
class Converter:
    """A function by which a frontend reads an operator that it does not support itself: a vendor's, or one of a newer
    version.

    Args:
        frontend: the frontend's name, e.g. "onnx".
        domain: the operator's domain in models, e.g. "com.acme"; "" is the format's own.
        operator: its name in models.
        function: the frontend calls it with a context of its own kind, which builds nodes. It returns the operator's
            outputs. The frontend's documentation describes the context.
        since_version: the first version of the domain to which it applies. It also applies to later ones, up to the
            next that a converter names.
    """

    frontend: str
    domain: str
    operator: str
    function: Callable[[Any], Any]
    since_version: int = 1


@dataclass(frozen=True)
class EngineKind:
    """Another engine that runs the same models, for `weft bench` and `weft verify`.

    Args:
        name: e.g. "onnxruntime".
        available: the version if it is installed here, else None.
        open: (model path, threads) → callable(dict of arrays) → list of arrays.
        values: (model path) → callable(names of values in the frontend's graph, dict of arrays) → the values that it
            can give, by name, computed without optimisation. With it, `weft verify` finds a node that a frontend reads
            incorrectly. None: it gives no values between nodes.
        frontends: the names of those whose models it reads, for `weft bench --against all`; empty: of all.
    """

    name: str
    available: Callable[[], str | None]
    open: Callable[[str, int], Callable[[Mapping[str, Any]], list[Any]]]
    values: Callable[[str], Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]]] | None = None
    frontends: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportOption:
    """An option of a format: `--name VALUE` of `weft export`, an element of `options` of `weft.export`.

    Args:
        name: e.g. "profile".
        about: what it says, in a few words.
        values: those that it may have; empty: any text.
    """

    name: str
    about: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exporter:
    """A format of self-contained files that a compiled model can be written as, by `weft export`.

    Args:
        name: the value of `--format`, e.g. "wasm".
        suffix: of its files, e.g. ".wasm".
        about: what it is, in a few words.
        target: the target that models are compiled for by default; or the options that were given → the target.
        files: (executable, the name of the file without its suffix, the options that were given) → the bytes of every
            file in pieces, by suffix: `suffix` and, where the format has more files, theirs. Before the first piece it
            raises TargetError for an executable of another machine, and UnsupportedError for what the format cannot
            hold.
        options: those that the format has.
        report: (executable, the options that were given) → figures for `weft export --report`: what and how much. None:
            the size of the code and of the files only.
    """

    name: str
    suffix: str
    about: str
    target: str | Callable[[Mapping[str, str]], str]
    files: Callable[[Executable, str, Mapping[str, str]], Mapping[str, Iterable[bytes | memoryview]]]
    options: tuple[ExportOption, ...] = ()
    report: Callable[[Executable, Mapping[str, str]], Sequence[tuple[str, str]]] | None = None


@dataclass(frozen=True)
class StageReport:
    """The argument of `stage_done`: the stage's name, its subject (the name of a graph or kernel), seconds, and its
    result."""

    stage: str
    subject: str
    seconds: float
    result: Any = field(repr=False, default=None)


OnStage = Callable[[StageReport], None]
"""Called after each stage."""


class Specifications:
    """The hooks, in the order in which a compilation calls them."""

    @hookspec
    def frontends(self) -> Sequence[Frontend]:
        """Model formats. Called when a model is loaded.

        @hookimpl
        def frontends():
            return [Frontend("darknet", (".cfg",), sniff=lambda head: b"[net]" in head, accepts=lambda o: False,
                load=load)]
        """

    @hookspec
    def converters(self, frontend: str) -> Sequence[Converter]:
        """Converters for a frontend, of operators that it does not know: of a vendor's domain, or of newer versions.
        Called when the frontend reads a model.

        @hookimpl
        def converters(frontend):
            gate = Converter("onnx", "com.acme", "Gate", lambda c: c(Gate(), c.value(0)))
            return [gate] if frontend == "onnx" else []
        """

    @hookspec
    def operators(self) -> Sequence[type[Operator]]:
        """Operators beyond the core's own, which come through this hook too.

        @hookimpl
        def operators():
            from weft_audio.ops import MelSpectrogram
            return [MelSpectrogram]
        """

    @hookspec
    def targets(self) -> Sequence[TargetKind]:
        """Kinds of target. Called when a target string is resolved.

        @hookimpl
        def targets():
            from weft_npu.target import Npu
            return [Npu()]
        """

    @hookspec
    def capabilities(self, target: Target) -> Capabilities | None:
        """What graph passes may assume of a target: composites it claims, layouts it prefers. None for targets of
        others.

        @hookimpl
        def capabilities(target):
            from weft_ops import Softmax
            return Capabilities(claims=frozenset({Softmax})) if target.kind == "npu" else None
        """

    @hookspec
    def graph_passes(self, target: Target) -> Sequence[GraphPass]:
        """Graph → graph passes, each naming the pass that it follows (`after`) or precedes (`before`).

        @hookimpl
        def graph_passes(target):
            return [GraphPass("drop_dropout", drop_dropout, after="fold_constants")]
        """

    @hookspec
    def schedules(self, target: Target) -> Sequence[Rule]:
        """Schedule rules for a target.

        @hookimpl
        def schedules(target):
            return [MatmulRule()] if target.kind == "npu" else []
        """

    @hookspec
    def records(self, target: Target) -> Sequence[Records | Path]:
        """Recorded choices for a target, or files of them (`weft.records`), as a tuner wrote them. A caller's own stand
        over these; what two plugins record differently is not followed. Called when a model is compiled.

        @hookimpl
        def records(target):
            return [Path(__file__).parent / "records.json"] if target.kind == "npu" else []
        """

    @hookspec
    def intrinsics(self, target: Target) -> Sequence[Intrinsic]:
        """Tensor intrinsics of a target, for `tensorize`. Those that require what the machine lacks are left out; of
        the others each has a name of its own: two of one name are an error.

        @hookimpl
        def intrinsics(target):
            return [gemm8x8] if target.kind == "npu" else []
        """

    @hookspec
    def loop_passes(self, target: Target, intrinsics: Sequence[Intrinsic]) -> Sequence[LoopPass]:
        """Program → Program passes, each naming the stage it runs after: one of the core's, or another pass of this
        hook. `intrinsics` are those of the target that its machine has.

        @hookimpl
        def loop_passes(target):
            return [LoopPass("insert_dma", insert_dma, after="flatten_buffers", holds="copies are DMA requests")]
        """

    @hookspec
    def offload(self, graph: Graph, target: Target) -> Offers | None:
        """Offers to take nodes or patterns of a graph, or reasons why not; None for targets of others. Called where
        several targets share a model, or one has a device of its own, once per model. The graph has been through the
        passes of the core and of `graph_passes(target)` that come before `choose_layouts`, as the nodes will be
        computed. Nodes of other targets are as they were before the target's own passes.

        If a target's own plugin returns None or has no such hook, its schedule rules decide for each node: it takes
        those that a rule takes alone, and their compute time there counts as 0 s. `weft.lower.offers.offer_by_rules`
        gives that answer for one node, to hooks that state the time as well.

        @hookimpl
        def offload(graph, target):
            return [Take((n,), 1e-6) if type(n.op).__name__ == "MatMul" else Refuse(n, "operator", "only products") for
                n in graph.nodes]
        """

    @hookspec
    def devices(self) -> Sequence[DeviceKind]:
        """Devices that run kernels. Called when a plan with steps on a device first runs.

        @hookimpl
        def devices():
            from weft_npu.device import Npu
            return [DeviceKind("npu", missing=lambda: None, open=Npu)]
        """

    @hookspec
    def engines(self) -> Sequence[EngineKind]:
        """Other engines for `weft bench` and `weft verify`.

        @hookimpl
        def engines():
            return [EngineKind("onnxruntime", available, open)]
        """

    @hookspec
    def exporters(self) -> Sequence[Exporter]:
        """Formats of self-contained files, for `weft export`.

        @hookimpl
        def exporters():
            return [Exporter("wasm", ".wasm", "a WebAssembly module", "llvm -mtriple=wasm32", files)]
        """

    @hookspec
    def commands(self, cli: typer.Typer) -> None:
        """Adds commands to the `weft` command line.

        @hookimpl
        def commands(cli):
            cli.command("npu-info")(info)
        """

    @hookspec
    def stage_done(self, stage: StageReport) -> None:
        """Called after every stage of a compilation.

        @hookimpl
        def stage_done(stage):
            print(stage.stage, stage.subject, stage.seconds)
        """
