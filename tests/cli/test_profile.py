"""`weft bench --profile`: every kernel's time, on the host's processor and on a device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.test_roofline import check_trace

from weft.errors import InputError
from weft_testing.bench.profile import Call, Profile
from weft_testing.bench.profile_devices import Launched, _of_run

Weft = Callable[..., Any]


def test_calls_of_a_kernel_are_one_row() -> None:
    calls = (
        Call("a", "contraction", ("conv1",), 10.0, 1.0, 2.0, (0.0,), (4.0,)),
        Call("b", "elementwise", ("relu",), None, 0.0, 0.0, (5.0,), (11.0,)),
        Call("a", "contraction", ("conv2",), 20.0, 1.0, 2.0, (12.0,), (17.0,)),
    )
    data = Profile("m", "gpu", 1, 1, calls, 0.0, ("gpu",), (20.0,)).as_data()
    assert [(k["kernel"], k["calls"], k["seconds"], k["flop"], k["bytes"], k["nodes"]) for k in data["kernels"]] == [
        ("a", 2, 9.0, 30.0, 6.0, ["conv1", "conv2"]),
        ("b", 1, 6.0, None, None, ["relu"]),
    ]
    assert (data["in_kernels"], data["median"], data["whole"], data["devices"]) == (15.0, 17.0, 20.0, ["gpu"])


def steps(*names: tuple[str, str]) -> list[Launched]:
    return [Launched(device, SimpleNamespace(), ((kernel, SimpleNamespace()),)) for device, kernel in names]  # type: ignore[arg-type]


def test_every_device_has_a_clock_of_its_own() -> None:
    recorded = {"a": [("x", 100.0, 101.0), ("z", 105.0, 107.0)], "b": [("y", 7.0, 8.0)]}
    assert _of_run(recorded, steps(("a", "x"), ("b", "y"), ("a", "z"))).tolist() == [[0, 1], [0, 1], [5, 7]]


def test_a_device_that_does_not_tell_is_an_error() -> None:
    with pytest.raises(InputError, match="device 'a' does not report when kernel 'x' ran") as caught:
        _of_run({"a": []}, steps(("a", "x")))
    assert "its plugin has no `record`" in str(caught.value)
    with pytest.raises(InputError, match="does not report when kernel 'x' ran") as caught:
        _of_run({"a": [("y", 0.0, 1.0)]}, steps(("a", "x")))
    assert "it reports 'y'" in str(caught.value)


@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.needs("opencl"))])
def test_bench_profile(weft: Weft, recipe: Path, tmp_path: Path, target: str) -> None:
    files = ["--json", tmp_path / "p.json", "--trace", tmp_path / "t.json"]
    result = weft(
        "bench", recipe, "--profile", "-t", target, "--rounds", 3, "--threads", 1, "--input-shape", "x=4,64", *files
    )
    assert result.code == 0, result.err
    assert "3 runs, median of the " in result.out and "of kernels" in result.out
    assert ("the rest is copies, the host's own work, and waiting" in result.out) == (target == "opencl")
    data: dict[str, Any] = json.loads((tmp_path / "p.json").read_text())
    assert data["devices"] == (["opencl"] if target == "opencl" else []) and data["runs"] == 3
    slices = check_trace(json.loads((tmp_path / "t.json").read_text()))
    assert sum(k["calls"] for k in data["kernels"]) == len(slices) - 1
    assert all(k["seconds"] > 0 and k["flop"] > 0 for k in data["kernels"])
    if target == "opencl":
        assert data["in_kernels"] <= data["whole"]


@pytest.mark.needs("opencl")
def test_a_device_has_no_roofline(weft: Weft, recipe: Path) -> None:
    result = weft("bench", recipe, "--roofline", "-t", "opencl")
    assert result.code == 1
    assert (
        result.err.startswith("InputError: --roofline and --html measure the host's processor")
        and "--profile and --trace show its kernels" in result.err
    )
