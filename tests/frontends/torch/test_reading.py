"""What is refused, and with which words; files as hostile input."""
# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.needs import require

require("torch")
import torch
from torch import nn

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.graph.evaluate import evaluate
from weft.hooks import Converter, hookimpl
from weft.plugins import host
from weft_ops import Relu

pytestmark = pytest.mark.needs("torch")


def saved(folder: Path, module: nn.Module, *inputs: torch.Tensor, **options: Any) -> Path:
    path = folder / "m.pt2"
    torch.export.save(torch.export.export(module.eval(), inputs, **options), path)
    return path


def changed(path: Path, **members: Callable[[Any], Any]) -> Path:
    """A copy of an archive whose JSON members, named by the end of their stem, are changed."""
    other = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            for stem, change in members.items():
                if info.filename.endswith(f"{stem}.json"):
                    data = json.dumps(change(json.loads(data))).encode()
            new.writestr(info.filename, data)
    return other


def replaced(text: str, by: str) -> Callable[[Any], Any]:
    """A change of texts within a JSON value; there is one, at least."""

    def change(value: Any) -> Any:
        before = json.dumps(value)
        assert text in before
        return json.loads(before.replace(text, by))

    return change


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return saved(tmp_path, nn.Linear(3, 2), torch.randn(4, 3), dynamic_shapes=({0: torch.export.Dim("batch")},))


def test_a_file(file: Path) -> None:
    graph = weft.load(file)
    x = np.ones((5, 3), np.float32)
    wanted = torch.export.load(file).module()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(evaluate(graph, [x])[0], wanted, rtol=1e-6)
    np.testing.assert_array_equal(evaluate(weft.load(file.read_bytes()), [x])[0], evaluate(graph, [x])[0])


def refusal(model: Any, **options: Any) -> str:
    with pytest.raises(FrontendError) as caught:
        weft.load(model, **options)
    return str(caught.value)


def test_code_in_a_file_does_not_run(file: Path, tmp_path: Path) -> None:
    evil = "__import__('os').system('touch ran')"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model": replaced("Symbol('s", f"{evil} or Symbol('s")}, "which is no formula of sizes"),
        ({"model": replaced("torch.ops.aten.linear.default", "torch.hub.load")}, "calls 'torch.hub.load'"),
        ({"model": replaced("builtins.dict", "collections.defaultdict default_factory_module")}, "imports a module"),
        ({"weights_config": replaced('"use_pickle": false', '"use_pickle": true')}, "is a pickle"),
        (
            {"weights_config": replaced('"path_name": "weight_0"', '"path_name": "../weight_0"')},
            "outside of its folder",
        ),
    ]
    for members, wanted in cases:
        assert wanted in refusal(changed(file, **members)), members


def test_members_that_hold_something_else(file: Path) -> None:
    damaged: list[tuple[str, Callable[[Any], Any], str]] = [
        ("weights_config", lambda config: {**config, "config": 7}, "'config' holds no entries"),
        ("weights_config", lambda config: [], "'config' holds no entries"),
        ("model", lambda program: {**program, "range_constraints": "s77"}, "'range_constraints' holds no entries"),
        ("model", lambda program: 1, "'range_constraints' holds no entries"),
    ]
    for member, change, wanted in damaged:
        said = refusal(changed(file, **{member: change}))
        assert "is damaged" in said and wanted in said and f"{member}.json" in said, said


def test_sample_inputs_that_are_objects(file: Path) -> None:
    other = file.with_name("samples.pt2")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(other, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith("sample_inputs/model.pt"):
                torch.save((Path("x"), {}), file.with_name("pickle"))
                data = file.with_name("pickle").read_bytes()
            new.writestr(info.filename, data)
    assert "sample inputs are a pickle of more than tensors" in refusal(other)


def test_other_files_of_pytorch(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "w.pt")
    assert "what torch.save writes, a pickle" in refusal(tmp_path / "w.pt")
    torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "s.pt")
    assert "a TorchScript module, a pickle" in refusal(tmp_path / "s.pt")
    assert "TorchScript" in refusal(torch.jit.script(nn.Linear(2, 2)), inputs=(torch.ones(2),))


def test_a_file_cut_short(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    for part in (100, len(data) // 2, len(data) - 30):
        (tmp_path / "cut.pt2").write_bytes(data[:part])
        assert "was it cut short? copy it again" in refusal(tmp_path / "cut.pt2")


def test_a_newer_file(file: Path) -> None:
    def newer(program: Any) -> Any:
        return {**program, "schema_version": {"major": 99, "minor": 0}}

    said = refusal(changed(file, model=newer))
    assert "cannot be read as an exported program" in said and "newer than" in said


def test_example_inputs() -> None:
    said = refusal(nn.Linear(2, 2))
    assert "none are given" in said and "weft.compile(module, inputs=(x,))" in said
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(2),))
    assert "was exported for its inputs already" in refusal(program, inputs=(torch.ones(2),))
    assert "PyTorch cannot export Linear" in refusal(nn.Linear(2, 2), inputs=(torch.ones(3),))


@torch.library.custom_op("acme_reading::odd", mutates_args=())
def odd(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


odd.register_fake(torch.empty_like)


class Odd(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.bernoulli(x) + torch.bernoulli(x + 1)
        return odd(y)


def test_everything_unsupported_is_one_error_with_lines() -> None:
    with pytest.raises(UnsupportedError) as caught:
        weft.load(Odd(), inputs=(torch.rand(3, 3),))
    said = str(caught.value)
    assert "the model uses 2 things that the PyTorch frontend does not support" in said
    assert "operator acme_reading.odd: '" in said and "random numbers: 'bernoulli" in said
    assert "test_reading.py" in said and "return odd(y)" in said


def test_a_training_module() -> None:
    with pytest.raises(UnsupportedError, match=r"call eval\(\) before it is exported"):
        weft.load(nn.Dropout(0.5).train(), inputs=(torch.ones(3),))


class Vendor:
    @hookimpl
    def converters(self, frontend: str) -> list[Converter]:
        return [Converter("torch", "acme_test", "twist", lambda c: c(Relu(), c.value(0)))]


def test_operators_of_users() -> None:
    @torch.library.custom_op("acme_test::twist", mutates_args=())
    def twist(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    @twist.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Twisted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return twist(x) + 1

    x = torch.tensor([-1.0, 2.0])
    with pytest.raises(UnsupportedError, match=r"operator acme_test\.twist"):
        weft.load(Twisted(), inputs=(x,))
    host().register(Vendor(), "acme")
    try:
        graph = weft.load(Twisted(), inputs=(x,))
    finally:
        host().unregister("acme")
    np.testing.assert_array_equal(evaluate(graph, [x.numpy()])[0], [1, 3])
