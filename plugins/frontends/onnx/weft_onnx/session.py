"""A session as ONNX Runtime's, for programs written for that.

    session = weft_onnx.InferenceSession("model.onnx")                  target="llvm" is this machine
    (y,) = session.run(["y"], {"x": x})

What a program does with a model's names, shapes and types, with values, bindings and options, and with wrong
arguments, works as there. Results are Weft's; what ZipMap gives are maps.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

import weft
from weft.errors import ExecutionError, InputError, UnsupportedError, from_signal
from weft_onnx.model_file import Model, read_model
from weft_onnx.ort_value import NAMES, IOBinding, OrtValue, as_array, maps_of
from weft_onnx.session_options import RunOptions, SessionOptions
from weft_onnx.tensors import DTYPES

PROVIDER = "WeftExecutionProvider"


class InvalidArgument(InputError, ValueError):
    """What `run` is given does not fit the model. A ValueError too, which ONNX Runtime raises where an input is
    missing."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output.

    Attributes:
        type: "tensor(float)", "seq(tensor(int64))", "optional(…)"; empty if the model does not say.
        shape: a number, a name, or None if the model says neither, for each dimension; of sequences and what has no
            shape an empty list.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    version: int
    custom_metadata_map: Mapping[str, str]
    graph_description: str = ""


class InferenceSession:
    """A model, compiled and ready to run. Calls may come from any number of threads."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        target: str = "llvm",
        **options: Any,
    ) -> None:
        """Reads and compiles a model.

        Args:
            path_or_bytes: an .onnx file, or what is in one.
            sess_options: `SessionOptions`; other objects do nothing, which a warning says.
            providers, provider_options: ONNX Runtime's; others than the CPU do nothing here, which a warning says.
            target: what it is compiled for, e.g. "llvm -threads=2" or "cuda, llvm".
            options: further ones of ONNX Runtime's sessions; they do nothing here either.

        Raises:
            TypeError: something else than a path or bytes.
            FrontendError: the model cannot be read.
            UnsupportedError: an option that would have to have an effect, and has none here.
            WeftError: it cannot be compiled for the target.
        """
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        known = isinstance(sess_options, SessionOptions)
        self._options = sess_options if known else SessionOptions()
        given = {
            "sess_options": None if known else sess_options,
            "providers": None if _only_cpu(providers) else providers,
            "provider_options": provider_options,
            **options,
        }
        ignored = [name for name, value in given.items() if value is not None]
        if ignored:
            text = (
                f"{', '.join(ignored)}: what ONNX Runtime does with this has no meaning here, where the target"
                f" '{target}' runs the whole model"
            )
            warnings.warn(
                f"{text}; say what it should run on, and with how many threads, by target=…", UserWarning, stacklevel=2
            )
        if self._options.optimized_model_filepath:
            raise UnsupportedError(
                "optimized_model_filepath: what a model is compiled to is no ONNX model", hint="use Executable.save"
            )
        threads = self._options.intra_op_num_threads
        if threads > 0 and target.split()[0] == "llvm" and "-threads" not in target:
            target = f"{target} -threads={threads}"
        self.target = target
        fixed = self._options.dims
        read = weft.load(path_or_bytes, frontend="onnx", dims=dict(fixed)) if fixed else path_or_bytes
        self._executable = weft.compile(read, target, frontend=None if fixed else "onnx")
        model = read_model(path_or_bytes)
        graph = model.proto.graph
        fed = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
        self._inputs = [node_arg(i) for i in graph.input if i.name not in fed]
        self._overridable = [node_arg(i) for i in graph.input if i.name in fed]
        self._outputs = [self._completed(node_arg(o)) for o in graph.output]
        self._dtypes = {i.name: DTYPES.get(i.type.tensor_type.elem_type) for i in graph.input}
        self._maps = {n.output[0]: keys_of(n) for n in graph.node if n.op_type == "ZipMap" and n.domain == "ai.onnx.ml"}
        self._meta = _metadata(model)
        self._profile = Profile(self._options.profile_file_prefix) if self._options.enable_profiling else None
        self._pool = ThreadPoolExecutor(1, "weft_onnx")

    def _completed(self, output: NodeArg) -> NodeArg:
        """With the sizes that the model leaves open and compilation knows: numbers, and names of the inputs'
        dimensions."""
        named = {d for i in self._inputs for d in i.shape if isinstance(d, str)}
        found = next((o.shape for o in self._executable.outputs if o.name == output.name), ())
        if len(found) != len(output.shape):
            return output
        shape = [
            d if d is not None else f if isinstance(f, int) or f in named else None for d, f in zip(output.shape, found)
        ]
        return replace(output, shape=shape)

    # -- what it is
    def get_inputs(self) -> list[NodeArg]:
        """What must be fed, as the model declares it: no initialisers."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initialisers that are inputs too. They are constants here: none can be fed."""
        return list(self._overridable)

    def get_providers(self) -> list[str]:
        """One, which stands for the target."""
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {"target": self.target}}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Does nothing, which a warning says if they are others than the CPU."""
        if not _only_cpu(providers) or provider_options is not None:
            warnings.warn(f"providers: the target '{self.target}' runs the whole model", UserWarning, stacklevel=2)

    def disable_fallback(self) -> None:
        """Nothing: there is no other provider to fall back to."""

    def enable_fallback(self) -> None:
        """Nothing: there is no other provider to fall back to."""

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        return self._meta

    # -- runs
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """The outputs of these names, in this order.

        Args:
            output_names: None or none: all of them.
            input_feed: by name, arrays of exactly the dtypes that the model declares, or numbers and lists of them.
            run_options: `RunOptions`; other objects do nothing, which a warning says.

        Raises:
            InvalidArgument: an input that is missing, unknown or does not fit, or no output of that name.
            ExecutionError: the run itself failed, or its options end it.
        """
        if isinstance(run_options, RunOptions):
            if run_options.terminate:
                raise ExecutionError("the run is ended by its options", hint="set terminate = False")
        elif run_options is not None:
            warnings.warn("run_options does nothing here", UserWarning, stacklevel=2)
        missing = [i.name for i in self._inputs if i.name not in input_feed and not i.type.startswith("optional")]
        if missing:
            raise InvalidArgument(f"Required inputs ({missing}) are missing from input feed ({list(input_feed)}).")
        names = [i.name for i in self._inputs]
        for name in input_feed:
            if name not in names:
                raise InvalidArgument(f"Invalid input name: {name}", hint="the inputs are " + ", ".join(names))
        known = [o.name for o in self._outputs]
        wanted = list(output_names) if output_names else known
        for name in wanted:
            if name not in known:
                raise InvalidArgument(f"Invalid output name: {name}", hint="the outputs are " + ", ".join(known))
        start = time.perf_counter_ns()
        try:
            results = self._executable.run({name: self._fed(name, input_feed.get(name)) for name in names})
        except InputError as error:
            raise InvalidArgument(error.what, where=error.where, why=error.why, hint=error.hint) from None
        if self._profile is not None:
            self._profile.note("model_run", start, time.perf_counter_ns())
        return [maps_of(results[n], self._maps[n]) if n in self._maps else results[n] for n in wanted]

    def _fed(self, name: str, value: Any) -> Any:
        dtype = self._dtypes[name]
        try:
            return as_array(value, None if dtype is None else dtype.numpy)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"input '{name}' is no array of {dtype}", why=str(error)) from None

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """As `run`, on a thread of the session, which then calls `callback(results, user_data, error)`: no results
        where there is an error, else an empty text."""

        def work() -> None:
            try:
                results, failed = self.run(output_names, input_feed, run_options), ""
            except Exception as error:  # whatever it is goes to the program
                if from_signal(error):
                    raise
                results, failed = [], str(error)
            callback(results, user_data, failed)

        self._pool.submit(work)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue], run_options: Any = None
    ) -> list[OrtValue]:
        """As `run`, of values."""
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """A run over what is bound."""
        iobinding.run(run_options)

    # -- profiling
    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, of the clock of `time.perf_counter_ns`; 0 without profiling."""
        return 0 if self._profile is None else self._profile.start

    def end_profiling(self) -> str:
        """Writes the time of each run to a file that chrome://tracing shows, in the working folder; its name. Empty
        without profiling. `weft bench --trace` shows the kernels of a run."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.write()


def _only_cpu(providers: Sequence[Any] | None) -> bool:
    """Whether providers name what runs the model here anyway."""
    names = [p if isinstance(p, str) else p[0] for p in providers or ()]
    return all(name in ("CPUExecutionProvider", PROVIDER) for name in names)


class Profile:
    """Times of runs, as the events that chrome://tracing shows."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.start = prefix, time.perf_counter_ns()
        self.events: list[dict[str, Any]] = []

    def note(self, name: str, start: int, end: int) -> None:
        """An event, from and to in ns."""
        place = {"pid": os.getpid(), "tid": threading.get_ident()}
        when = {"ts": (start - self.start) / 1e3, "dur": (end - start) / 1e3}
        self.events.append({"cat": "Session", "name": name, "ph": "X", **place, **when, "args": {}})

    def write(self) -> str:
        name = f"{self.prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid()}.json"
        Path(name).write_text(json.dumps(self.events))
        return name


def keys_of(node: onnx.NodeProto) -> list[int | str]:
    """The keys of a ZipMap."""
    strings = [s.decode() for a in node.attribute if a.name == "classlabels_strings" for s in a.strings]
    return [*strings, *(int(i) for a in node.attribute if a.name == "classlabels_int64s" for i in a.ints)]


def get_device() -> str:
    """ "CPU", as a session is made without a target."""
    return "CPU"


def get_available_providers() -> list[str]:
    """What `InferenceSession(providers=…)` takes without a warning."""
    return [PROVIDER, "CPUExecutionProvider"]


def set_default_logger_severity(severity: int) -> None:
    """Nothing: Weft logs to the logger `weft` of Python's `logging`."""


def node_arg(info: onnx.ValueInfoProto) -> NodeArg:
    """An input or output as the model declares it."""
    tensor = info.type.tensor_type if info.type.WhichOneof("value") == "tensor_type" else None
    dims = tensor.shape.dim if tensor is not None else ()
    return NodeArg(info.name, type_name(info.type), [_dim(d) for d in dims])


def type_name(type: onnx.TypeProto) -> str:
    """A type as ONNX Runtime writes it."""
    kind = type.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        of = DTYPES.get(getattr(type, kind).elem_type)
        name = "" if of is None else NAMES.get(of.name, of.name)
        return f"{kind.removesuffix('_type')}({name})" if name else ""
    if kind == "sequence_type":
        return f"seq({type_name(type.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_name(type.optional_type.elem_type)})"
    if kind == "map_type":
        key = DTYPES[type.map_type.key_type].name
        return f"map({NAMES.get(key, key)},{type_name(type.map_type.value_type)})"
    return ""


def _dim(d: Any) -> int | str | None:
    return int(d.dim_value) if d.WhichOneof("value") == "dim_value" else d.dim_param or None


def _metadata(model: Model) -> ModelMetadata:
    proto = model.proto
    entries = {p.key: p.value for p in proto.metadata_props}
    return ModelMetadata(
        proto.producer_name,
        proto.graph.name,
        proto.domain,
        proto.doc_string,
        proto.model_version,
        entries,
        proto.graph.doc_string,
    )
