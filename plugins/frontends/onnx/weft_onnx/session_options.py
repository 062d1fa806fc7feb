"""Options of sessions and runs under ONNX Runtime's names. Those that say how ONNX Runtime works have no effect here;
those that say what a program gets do what they say, or are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from weft.errors import UnsupportedError


class GraphOptimizationLevel(IntEnum):
    """How much ONNX Runtime optimises; Weft always compiles the model whole."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether ONNX Runtime runs several nodes at once."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """In which order ONNX Runtime runs nodes."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass
class SessionOptions:
    """What a session is made with.

    Attributes:
        intra_op_num_threads: threads of a run, where the target names none (0: as many as there are cores).
        enable_profiling: the time of each run is noted, for `InferenceSession.end_profiling`.
        profile_file_prefix: how the name of that file begins.
        others: how ONNX Runtime works; they have no effect.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    optimized_model_filepath: str = ""
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    entries: dict[str, str] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Notes an entry, which has no effect."""
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Raises KeyError: there is none of this name."""
        return self.entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fixes the size of all dimensions of a name (`dim_param`)."""
        self.dims[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Raises UnsupportedError."""
        raise UnsupportedError(
            "dimensions are fixed by name, not by denotation", hint="use add_free_dimension_override_by_name"
        )

    def register_custom_ops_library(self, path: str) -> None:
        """Raises UnsupportedError: a library of kernels for ONNX Runtime does not say what they compute."""
        raise UnsupportedError(
            f"'{path}' holds kernels of ONNX Runtime",
            hint="define the operators by functions of the model, or in a plugin (hook `converters`)",
        )

    def add_initializer(self, name: str, value: Any) -> None:
        """Raises UnsupportedError."""
        raise UnsupportedError(f"initializer '{name}' is given beside the model", hint="store it in the model")


@dataclass
class RunOptions:
    """What a run is made with.

    Attributes:
        terminate: a run with it ends at once, with an error.
        others: how ONNX Runtime works; they have no effect.
    """

    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Notes an entry, which has no effect."""
        self.entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Raises KeyError: there is none of this name."""
        return self.entries[key]
