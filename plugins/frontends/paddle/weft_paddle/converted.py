"""Programs that paddle2onnx writes as ONNX, and weft-onnx reads.

paddle2onnx runs in a process of its own: PaddlePaddle's readers end their process where a file is damaged.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weft
from weft.errors import FrontendError, WeftError
from weft.graph.nodes import Graph

INSTALL = 'pip install "weft-paddle[paddle2onnx]"'
SECONDS = 600
"""How long a conversion may take."""
# Without optimisers: the default one downloads what it needs.
PROGRAM = """
import sys
import paddle2onnx
model, params, result = sys.argv[1:]
paddle2onnx.export(model, params, result, optimize_tool="None", verbose=False)
"""


def load_converted(source: Any, params: Sequence[Path]) -> Graph:
    """The graph of a program, a path, and its parameters.

    Raises:
        FrontendError: see `weft_paddle.plugin.load`.
    """
    if not isinstance(source, Path):
        raise FrontendError("paddle2onnx reads files", hint="give the path of the .json or .pdmodel")
    for file in (source, *params):
        if not file.is_file():
            raise FrontendError(f"no file '{file}'", hint="give the path of the .pdiparams")
    for module in ("paddle2onnx", "paddle", "weft_onnx"):
        if importlib.util.find_spec(module) is None:
            raise FrontendError(
                f"'{source}' is read through paddle2onnx", why=f"there is no package '{module}'", hint=INSTALL
            )
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "model.onnx"
        data = convert(source, params[0] if params else Path(folder) / "none", result)
    try:
        return weft.load(data, frontend="onnx")
    except WeftError as error:
        raise type(error)(
            f"'{source}' was converted by paddle2onnx, and the result cannot be read: {error.what}",
            where=error.where, why=error.why, hint=error.hint,
        ) from error  # fmt: skip


def convert(source: Path, params: Path, result: Path) -> bytes:
    """The model as ONNX.

    Raises:
        FrontendError: paddle2onnx fails, or takes too long.
    """
    command = [sys.executable, "-c", PROGRAM, str(source.resolve()), str(params.resolve()), str(result)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FrontendError(f"paddle2onnx took more than {SECONDS} s to convert '{source}'") from None
    if ended.returncode or not result.is_file() or not result.stat().st_size:
        said = [line.strip() for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
        errors = [line for line in said if "Error" in line] or said
        raise FrontendError(
            f"paddle2onnx does not convert '{source}'",
            why=errors[-1][:400] if errors else f"it ended with {ended.returncode}",
            hint="is it whole, and saved for inference?",
        )
    return result.read_bytes()
