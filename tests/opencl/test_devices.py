"""Which device a user means, and what is said where there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import weft
from weft.errors import ExecutionError, TargetError, UnsupportedError
from weft.graph.nodes import GraphBuilder, tensor_type
from weft_opencl import devices
from weft_opencl.devices import Found, choose, found
from weft_opencl.target import OpenclOptions, OpenclTarget
from weft_ops import Add
from weft_runtime.device import close_devices, open_device
from weft_testing.plugin import resolve_target


def _device(name: str, kind: int = cl.device_type.GPU) -> Any:
    return SimpleNamespace(name=name, type=kind)


def _platform(name: str, *those: Any) -> Any:
    return SimpleNamespace(name=name, get_devices=lambda: list(those))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what drivers say is here."""

    def set_to(*platforms: Any) -> None:
        monkeypatch.setattr(cl, "get_platforms", lambda: list(platforms))
        devices.found.cache_clear()

    yield set_to
    monkeypatch.undo()
    devices.found.cache_clear()


def test_gpus_come_first_and_names_are_distinct(machine: Any) -> None:
    cpu = _device("Xeon", cl.device_type.CPU)
    machine(_platform("PoCL", cpu), _platform("Vendor, Inc.", _device("Card  X"), _device("Card  X")))
    assert [f.title for f in found()] == ["Card X on Vendor Inc.", "Card X #2 on Vendor Inc.", "Xeon on PoCL"]


def test_a_part_of_a_name_or_a_number_is_enough(machine: Any) -> None:
    machine(_platform("A", _device("Card 1"), _device("Card 2")), _platform("B", _device("Card 2")))
    assert choose(None, None).title == "Card 1 on A"
    assert choose("2", None).title == "Card 2 on B"
    assert choose("card 1", None).title == "Card 1 on A"
    assert choose(None, "b").title == "Card 2 on B"
    assert choose("0", "1").title == "Card 2 on B"
    assert choose("Card 2", "A").title == "Card 2 on A"


def test_what_is_not_here_or_not_clear_is_an_error(machine: Any) -> None:
    machine(_platform("A", _device("Card 1"), _device("Card 2")), _platform("B", _device("Card 2")))
    with pytest.raises(ExecutionError, match="no OpenCL device is called 'Radeon'") as caught:
        choose("Radeon", None)
    assert "0: Card 1 (-platform='A'); 1: Card 2 (-platform='A'); 2: Card 2 (-platform='B')" in str(caught.value)
    with pytest.raises(ExecutionError, match="several OpenCL devices match 'card'") as caught:
        choose("card", None)
    assert "give -platform as well" in str(caught.value)
    with pytest.raises(ExecutionError, match="no OpenCL platform is called 'C'") as caught:
        choose(None, "C")
    assert "0: A; 1: B" in str(caught.value)


def test_several_platforms_of_a_part_of_a_name(machine: Any) -> None:
    machine(_platform("Intel CPU", _device("x")), _platform("Intel GPU", _device("y")))
    with pytest.raises(ExecutionError, match="several OpenCL platforms match 'intel'"):
        choose(None, "intel")


def test_no_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch, machine: Any) -> None:
    def none() -> Any:
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    machine()
    monkeypatch.setattr(cl, "get_platforms", none)
    with pytest.raises(ExecutionError, match="no OpenCL driver is here") as caught:
        found()
    assert "PLATFORM_NOT_FOUND_KHR" in str(caught.value) and "apt-get install pocl-opencl-icd" in str(caught.value)
    close_devices()
    with pytest.raises(ExecutionError, match="the device 'opencl' is not here") as caught:
        open_device("opencl")
    assert "pocl-opencl-icd" in str(caught.value)


def test_a_driver_without_a_device(machine: Any) -> None:
    def none() -> Any:
        raise cl.RuntimeError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")

    machine(SimpleNamespace(name="Vendor", get_devices=none))
    with pytest.raises(ExecutionError, match="no OpenCL device is here") as caught:
        found()
    assert "Vendor found none" in str(caught.value)


def test_a_target_is_resolved_to_names(here: Found) -> None:
    target = resolve_target("opencl").target
    assert target.options == OpenclOptions(here.name, here.platform)
    assert resolve_target("opencl -device=0").target == target == resolve_target(str(target)).target
    assert OpenclTarget().device(target) == "opencl"
    assert here.version in OpenclTarget().fingerprint(target)


@pytest.mark.needs("weft_llvm")
def test_what_the_device_does_not_compute_is_declined_and_goes_to_the_next_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has = devices.features
    monkeypatch.setattr(devices, "features", lambda device: has(device) - {"float64"})
    b = GraphBuilder("sum")
    x, y = b.input("x", tensor_type("float64", (8,))), b.input("y", tensor_type("float64", (8,)))
    b.output(b.add(Add(), x, y), "z")
    with pytest.raises(UnsupportedError, match="1 of 1 nodes are not computed by 'opencl'") as caught:
        weft.compile(b.build(), "opencl", cache=False)
    assert "elementwise: opencl has no float64 [language]" in str(caught.value)
    executable = weft.compile(b.build(), "opencl, llvm", cache=False)
    np.testing.assert_array_equal(executable(np.arange(8.0), np.ones(8)), np.arange(1.0, 9.0))


def test_a_wrong_device_of_a_target_is_an_error_that_lists_those_here(here: Found) -> None:
    with pytest.raises(TargetError, match="no OpenCL device is called 'GeForce'") as caught:
        resolve_target("opencl -device=GeForce")
    assert here.name in str(caught.value) and "opencl -device=GeForce" in str(caught.value)
    with pytest.raises(TargetError, match="has no option '-devise'"):
        resolve_target("opencl -devise=0")


def test_a_second_device_is_opened_by_its_title(here: Found) -> None:
    before = close_devices()
    try:
        name = f"opencl:{here.title}"
        opened = open_device(name)
        assert opened.name == name and open_device(name) is opened
        with pytest.raises(ExecutionError, match="the device 'opencl:Card 9' is not here") as caught:
            open_device("opencl:Card 9")
        assert "no OpenCL device 'Card 9' is here" in str(caught.value) and here.title in str(caught.value)
    finally:
        close_devices(before)


def test_importing_the_plugin_does_not_look_for_devices() -> None:
    import subprocess
    import sys

    script = (
        "import sys, weft_opencl.plugin as p; p.targets(); p.devices(); assert 'pyopencl' not in sys.modules,"
        " 'pyopencl'"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_device_needs_no_compiler() -> None:
    """A saved model runs where only the runtime is."""
    import subprocess
    import sys

    script = (
        "import sys, weft_opencl.device; found = [m for m in sys.modules if m.startswith(('weft.loop', 'weft.expr',"
        " 'weft.codegen', 'weft.graph', 'weft.scheduling', 'weft_gpu.codegen'))]; assert not found, found"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_dialect_is_short() -> None:
    from pathlib import Path

    import weft_opencl.dialect

    assert len(Path(weft_opencl.dialect.__file__).read_text().splitlines()) < 200
