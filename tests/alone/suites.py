"""What is tested of each package where nothing but it and what it declares is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Suite:
    """The tests of one package. All get pytest and hypothesis.

    `tests` are files and folders, `quick` those that the ordinary run of the whole suite takes. `tools` are further
    distributions that the tests need, for the reason `why`. They are installed after every module of the package has
    been imported without them, so that none hides a missing dependency. `without` are modules that need an extra.
    """

    module: str
    tests: tuple[str, ...]
    quick: tuple[str, ...]
    tools: tuple[str, ...] = ()
    why: str = ""
    without: tuple[str, ...] = ()


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/test_{name}.py" for name in names)


KIT = "cases of operators and devices under test are made by weft_testing, which asks for nothing new but weft-ops"
INTERPRETER = "weft-interpreter runs the programs whose results the tests compare; it asks for nothing new"
C_COMPILER = "ziglang is the C compiler that runs the texts of kernels on the processor"

SUITES: Mapping[str, Suite] = MappingProxyType({
    "weft-runtime": Suite(
        "weft_runtime",
        _in("tests/runtime", "abi", "cache", "files", "formulas", "loader", "saved_models"),
        _in("tests/runtime", "files", "saved_models"),
    ),
    "weft-core": Suite(
        "weft",
        (
            "tests/expr",
            *_in("tests/loop", "executions", "parser", "printer", "verify"),
            *_in("tests/loop/passes", "block_sums", "expand_math", "loops", "pipeline"),
            *_in("tests/loop/passes", "unswitch_loops"),
            *_in("tests/scheduling", "assignments", "attempts", "online", "parts", "primitives", "random", "region"),
            *_in("tests/scheduling", "tiling", "trace_and_rules"),
            *_in("tests/graph", "own_operators"),
            *_in("tests/runtime", "settings"),
            *_in("tests", "errors", "fingerprint", "kernel_segment", "options", "rates", "segment_steps", "target"),
        ),
        (*_in("tests/graph", "own_operators"), *_in("tests/loop", "executions", "verify"), "tests/test_errors.py"),
        tools=("weft-interpreter",),
        why=INTERPRETER,
    ),
    "weft-interpreter": Suite(
        "weft_interpreter",
        _in("tests/interpreter", "interpret"),
        _in("tests/interpreter", "interpret"),
    ),
    "weft-ops": Suite(
        "weft_ops",
        (
            "tests/ops",
            *_in("tests/graph", "evaluate", "layout", "names", "printer", "rewrite", "verify"),
            *_in("tests/passes", "cancel_transposes", "capabilities", "choose_algorithms", "choose_layouts", "fold"),
            *_in("tests/passes", "fuse", "fuse_attention", "fuse_quantization", "merge_groups", "operators"),
            *_in("tests/passes", "pipeline", "place", "plan_memory", "reduce_precision", "simplify_algebra"),
            *_in("tests/passes", "vendor_operators"),
            *_in("tests/mixed", "alignment"),
            *_in("tests", "operator_names"),
        ),
        (*_in("tests/ops", "errors"), *_in("tests/graph", "evaluate", "verify")),
        tools=("weft-interpreter",),
        why=INTERPRETER,
    ),
    "weft-testing": Suite(
        "weft_testing",
        (
            *_in("tests/verify", "measure", "verify"),
            *_in("tests/conform", "report", "tiles", "watched"),
            *_in("tests/scheduling", "lengths"),
        ),
        (*_in("tests/verify", "measure"), *_in("tests/conform", "watched")),
        without=("weft_testing.conform.recorder",),  # pytest: of the extra "conform"
    ),
    "weft-remote": Suite(
        "weft_remote",
        _in("tests/remote", "protocol"),
        _in("tests/remote", "protocol"),
    ),
    "weft-training": Suite(
        "weft_training",
        _in("tests/training", "rematerialize"),
        _in("tests/training", "rematerialize"),
        tools=("weft-llvm",),
        why="one test compares the memory of compiled programs",
    ),
    "weft-tuning": Suite(
        "weft_tuning",
        _in("tests/tuning", "store", "measuring"),
        _in("tests/tuning", "store"),
        tools=("weft-llvm",),
        why="kernels are compiled and measured on the host's processor",
    ),
    "weft-llvm": Suite(
        "weft_llvm",
        (
            *_in("tests/llvm", "attention", "borders", "emitter", "link", "machine", "math", "measured"),
            *_in("tests/llvm", "memory_schedules", "one_thread", "pool", "recurrence", "segment", "signed_zeros"),
            *_in("tests/llvm", "toolchain", "winograd", "workers"),
            *_in("tests/runtime", "executable", "shared_memory", "steps"),
            *_in("tests", "adaptive", "compilation", "weights"),
        ),
        (*_in("tests/llvm", "borders", "machine"), *_in("tests/runtime", "shared_memory")),
        tools=("weft-interpreter",),
        why=INTERPRETER,
    ),
    "weft-c-family": Suite(
        "weft_c_family",
        _in("tests/c", "own_language"),
        _in("tests/c", "own_language"),
    ),
    "weft-c": Suite(
        "weft_c",
        (
            *_in("tests/c", "forks", "target", "own_language"),
            *_in("tests/scheduling", "units"),
            *_in("tests/runtime", "formulas_of_compilers"),
        ),
        (*_in("tests/scheduling", "units"), *_in("tests/c", "own_language")),
        tools=("weft-testing", "ziglang"),
        why=f"{KIT}; {C_COMPILER}",
    ),
    "weft-queues": Suite(
        "weft_queues",
        _in("tests/queues", "await_queues"),
        _in("tests/queues", "await_queues"),
        tools=("weft-interpreter",),
        why=INTERPRETER,
    ),
    "weft-gpu": Suite(
        "weft_gpu",
        (
            *_in("tests/gpu", "codegen", "contraction", "fragments", "grids", "image", "limits", "schedules"),
            *_in("tests/gpu", "schedules_shapes"),
            *_in("tests/scheduling", "butterfly", "double_buffer", "dynamic_lengths", "padding", "tensorize"),
            *_in("tests/loop/passes", "narrow_indices"),
        ),
        (*_in("tests/gpu", "codegen", "limits"), *_in("tests/scheduling", "butterfly")),
        tools=("weft-testing",),
        why=KIT,
    ),
    "weft-opencl": Suite(
        "weft_opencl",
        _in("tests/opencl", "barriers", "device", "devices", "models", "winograd"),
        _in("tests/opencl", "devices"),
        tools=("weft-testing",),
        why=KIT,
    ),
    "weft-cuda": Suite(
        "weft_cuda",
        _in("tests/cuda", "boxes", "intrinsics", "products", "samples"),
        _in("tests/cuda", "boxes"),
        tools=("weft-testing", "ziglang"),
        why=f"{KIT}; {C_COMPILER}",
    ),
    "weft-metal": Suite(
        "weft_metal",
        _in("tests/metal", "device", "intrinsics"),
        _in("tests/metal", "intrinsics"),
        tools=("weft-testing", "ziglang"),
        why=f"{KIT}; {C_COMPILER}",
    ),
    "weft-webgpu": Suite(
        "weft_webgpu",
        _in("tests/webgpu", "device", "functions"),
        _in("tests/webgpu", "functions"),
        tools=("weft-ops",),
        why="graphs are made of the library's operators",
    ),
    "weft-frontend": Suite(
        "weft_frontend",
        _in("tests/frontends/kit", "importer", "parts"),
        _in("tests/frontends/kit", "importer"),
    ),
    "weft-onnx": Suite(
        "weft_onnx",
        _in("tests/frontends/onnx", "converters", "graphs", "reading"),
        _in("tests/frontends/onnx", "converters"),
    ),
    "weft-tflite": Suite(
        "weft_tflite",
        _in("tests/frontends/tflite", "reading"),
        _in("tests/frontends/tflite", "reading"),
    ),
    "weft-darknet": Suite(
        "weft_darknet",
        _in("tests/frontends/darknet", "layers", "reading"),
        _in("tests/frontends/darknet", "reading"),
    ),
    "weft-stablehlo": Suite(
        "weft_stablehlo",
        _in("tests/frontends/stablehlo", "plugin"),
        _in("tests/frontends/stablehlo", "plugin"),
        without=tuple(  # jaxlib: of the extra "jax"
            f"weft_stablehlo.{m}"
            for m in ("attributes", "bodies", "context", "converters", "importer", "legalize", "registry", "tensors")
        ),
    ),
    "weft-tensorflow": Suite(
        "weft_tensorflow",
        _in("tests/frontends/tensorflow", "reading"),
        _in("tests/frontends/tensorflow", "reading"),
        tools=("weft-testing", "weft-llvm", "google-re2"),
        why="models are compiled, and two match regular expressions",
    ),
    "weft-mxnet": Suite(
        "weft_mxnet",
        _in("tests/frontends/mxnet", "reading"),
        _in("tests/frontends/mxnet", "reading"),
        tools=("weft-testing", "weft-llvm"),
        why="models are compiled",
    ),
    "weft-keras": Suite(
        "weft_keras",
        _in("tests/frontends/keras", "layers", "models"),
        _in("tests/frontends/keras", "models"),
        tools=("weft-testing", "weft-llvm", "keras==3.15.1", "h5py==3.16.0", "torch==2.13.0"),
        why="layers are compared with Keras on its torch backend, and compiled",
    ),
    "weft-paddle": Suite(
        "weft_paddle",
        _in("tests/frontends/paddle", "reading"),
        _in("tests/frontends/paddle", "reading"),
        tools=("weft-testing", "weft-llvm", "weft-onnx"),
        why="paddle2onnx's models are read by weft-onnx",
    ),
    "weft-caffe2": Suite(
        "weft_caffe2",
        _in("tests/frontends/caffe2", "reading"),
        _in("tests/frontends/caffe2", "reading"),
        tools=("weft-testing", "weft-llvm"),
        why="models are compiled",
    ),
    "weft-coreml": Suite(
        "weft_coreml",
        _in("tests/frontends/coreml", "operators", "layers", "reading"),
        _in("tests/frontends/coreml", "reading"),
        tools=("weft-testing", "weft-llvm"),
        why="models are compiled",
    ),
    "weft-caffe": Suite(
        "weft_caffe",
        _in("tests/frontends/caffe", "layers", "reading"),
        _in("tests/frontends/caffe", "reading"),
        tools=("weft-testing", "weft-llvm", "opencv-python-headless==4.14.0.94"),
        why="layers are compared with OpenCV's reader of Caffe models, and compiled",
    ),
    "weft-torch": Suite(
        "weft_torch",
        _in("tests/frontends/torch", "plugin"),
        _in("tests/frontends/torch", "plugin"),
        without=tuple(  # torch: of the extra "torch"
            f"weft_torch.{m}"
            for m in (
                "agreement", "backend", "context", "converters", "decomposition", "fused", "guards", "importer",
                "registry", "sharing", "sizes", "tensors",
            )
        ),
    ),
    "weft-sklearn": Suite(
        "weft_sklearn",
        _in("tests/frontends/sklearn", "estimators", "lightgbm", "xgboost"),
        _in("tests/frontends/sklearn", "xgboost"),
        tools=("weft-testing", "weft-llvm", "weft-onnx", "scikit-learn", "skl2onnx", "xgboost-cpu", "lightgbm"),
        why="answers are the libraries' own, and are compared by weft_testing with what weft-llvm computes",
    ),
    "weft": Suite(
        "weft",
        (
            *_in("tests/cli", "bench", "compile", "demo", "inputs", "inspect", "main", "overwriting", "refusals"),
            *_in("tests/cli", "run", "verify"),
            *_in("tests/frontends/onnx", "converters", "graphs", "reading", "values"),
            *_in("tests", "loops", "names", "records"),
        ),
        _in("tests/cli", "compile"),
    ),
})  # fmt: skip
