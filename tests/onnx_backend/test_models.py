"""ONNX's other cases, whose data are in the `onnx` package: small models, models and operators as PyTorch exported
them; with --full, architectures.

What has to be downloaded is not run: the suite's kind "real", of which the kind "light" is the same architectures with
weights that are made up.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.onnx_backend.node_cases import compare

import weft
from weft_onnx.tensors import to_array

KINDS = ("simple", "pytorch-converted", "pytorch-operator")
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


@cache
def cases() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    return {case.name: case for kind in KINDS for case in load_model_tests(kind=kind) if case.model_dir is not None}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", sorted(cases()))
def test_model(name: str) -> None:
    case = cases()[name]
    model = onnx.load(Path(case.model_dir) / "model.onnx")
    executable = weft.compile(model, target="llvm", cache=False)
    sets = sorted(Path(case.model_dir).glob("test_data_set_*"))
    assert sets
    initialized = {i.name for i in model.graph.initializer}
    wanted = [i for i in model.graph.input if i.name not in initialized]
    for folder in sets:
        inputs = {info.name: read(folder / f"input_{k}.pb", info.type) for k, info in enumerate(wanted)}
        results = executable.run(inputs)
        for k, info in enumerate(model.graph.output):
            compare(results[info.name], read(folder / f"output_{k}.pb", info.type), case.rtol, case.atol)


def read(path: Path, type: onnx.TypeProto) -> Any:
    if type.HasField("sequence_type"):
        return [np.asarray(x) for x in numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))]
    return to_array(onnx.TensorProto.FromString(path.read_bytes()))


@pytest.mark.full
@pytest.mark.parametrize("path", sorted(DATA.glob("light/*.onnx")), ids=lambda p: p.stem)
def test_architecture(path: Path) -> None:
    """Weights are all alike, and so is the input, as the suite's runner makes it; outputs are stored beside the
    model."""
    model = onnx.load(path)
    initialized = {i.name for i in model.graph.initializer}
    inputs = {}
    for info in model.graph.input:
        if info.name not in initialized:
            shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
            n = int(np.prod(shape))
            inputs[info.name] = (np.arange(n).reshape(shape) / n).astype(np.float32)
    results = weft.compile(model, target="llvm", cache=False).run(inputs)
    for k, info in enumerate(model.graph.output):
        want = read(path.with_name(f"{path.stem}_output_{k}.pb"), info.type)
        compare(results[info.name], want, 1e-3, 1e-5)
