"""Level 8: what goes wrong is an error that names it; nothing is lost, and the next call works."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from weft.errors import ExecutionError, InputError, WeftError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph
from weft_runtime.executable import Executable
from weft_runtime.plan import DeviceCall
from weft_testing.conform.cases import GRAPHS
from weft_testing.conform.kit import Array, Declined, Kit, collect


@dataclass
class Probe:
    """What runs on the device at least in part, compiled afresh: nobody else holds it."""

    graph: Graph
    executable: Executable
    inputs: Mapping[str, Array]
    ulps: float


def _probe(kit: Kit) -> Probe:
    """A graph that the target takes something of, or else a sample that it takes."""
    for name in ("dense", "fork", "movement"):
        case = GRAPHS[name]
        try:
            executable = kit.compile(case.build()).executable
        except Declined:
            continue
        if kit.native or any(isinstance(s, DeviceCall) for s in executable.manifest.steps):
            return Probe(case.build(), executable, case.inputs()[0], case.ulps)
    sample = kit.first_taken()
    if sample is None:
        kit.skip("the target takes none of the graphs that faults are tried on, and no sample with inputs")
    return Probe(
        sample.graph(), kit.compile_alone(sample.graph()).executable, sample.inputs(), max(sample.tolerance(), 1.0)
    )


def _works(kit: Kit, probe: Probe, when: str) -> None:
    try:
        got = list(probe.executable.run(probe.inputs).values())
    except WeftError as error:
        kit.fail(f"the call after {when} fails", str(error))
    kit.compare(f"the call after {when}", got, evaluate(probe.graph, probe.inputs), probe.ulps)


def _names(kit: Kit, error: BaseException, words: list[str], when: str) -> None:
    if not isinstance(error, ExecutionError):
        kit.fail(f"{when}: {type(error).__name__} instead of an ExecutionError", str(error))
    missing = [w for w in words if w not in str(error)]
    if missing:
        kit.fail(f"{when}: the error does not name {missing[0]}", str(error))


def test_wrong_inputs(kit: Kit) -> None:
    """Arrays of another dtype or shape are refused, before anything is computed."""
    probe = _probe(kit)
    executable, inputs = probe.executable, probe.inputs
    name = next(iter(inputs))
    other = np.float32 if inputs[name].dtype == np.float64 else np.float64
    with kit.watched() as watched:
        for wrong in (inputs[name].astype(other), np.concatenate([inputs[name], inputs[name]], -1), inputs[name][0]):
            try:
                executable.run({**inputs, name: wrong})
            except InputError:
                continue
            except Exception as error:  # noqa: BLE001 - foreign code
                kit.fail(
                    f"an input of {wrong.dtype}{list(wrong.shape)}: {type(error).__name__} instead of an InputError",
                    str(error),
                )
            kit.fail(
                f"an input of {wrong.dtype}{list(wrong.shape)} is taken, {inputs[name].dtype}{list(inputs[name].shape)}"
                " is declared"
            )
        if watched is not None and watched.launches:
            kit.fail("a kernel was launched though an input did not fit")
        _works(kit, probe, "one with wrong inputs")


def test_out_of_memory(kit: Kit) -> None:
    kit.device()
    probe = _probe(kit)
    with kit.watched() as watched:
        assert watched is not None
        watched.limit = 16
        try:
            probe.executable.run(probe.inputs)
        except Exception as error:  # noqa: BLE001 - foreign code
            _names(kit, error, [watched.name, "16 "], "a device with 16 bytes left")
        else:
            kit.fail("a model runs on a device with 16 bytes left")
        watched.limit = None
        _works(kit, probe, "one that ran out of memory")


def test_failing_operations(kit: Kit) -> None:
    """Every kind of request of a device fails once."""
    kit.device()
    for operation in ("write", "load", "launch", "synchronize", "read"):
        probe = _probe(kit)
        with kit.watched() as watched:
            assert watched is not None
            calls = [0]

            def fault(asked: str, operation: str = operation, calls: list[int] = calls) -> None:
                if asked == operation:
                    calls[0] += 1
                    raise RuntimeError(f"the {asked} was made to fail")

            watched.fault = fault
            try:
                probe.executable.run(probe.inputs)
            except Exception as error:  # noqa: BLE001 - foreign code
                _names(kit, error, [watched.name, f"the {operation} was made to fail"], f"a {operation} that fails")
            else:
                if calls[0]:
                    kit.fail(f"a {operation} fails and the call does not")
            watched.fault = lambda asked: None
            _works(kit, probe, f"a {operation} that failed")


def test_launch_of_nothing(kit: Kit) -> None:
    """The device itself says when a kernel that its section has not is launched; and works afterwards."""
    device = kit.device()
    probe = _probe(kit)
    manifest = probe.executable.manifest
    step = next(s for s in manifest.steps if isinstance(s, DeviceCall))
    section = manifest.sections[step.section]
    image = kit.section_bytes(probe.executable, step.section)
    with device.lock:
        try:
            module = device.load(image, section.entries)
            device.launch(module, "a kernel that does not exist", [], [])
            device.synchronize()
        except Exception:  # noqa: BLE001 - any error will do
            pass
        else:
            kit.fail(
                "a kernel that its section does not have is launched without an error",
                "a launch that fails must raise, there or in synchronize",
            )
    _works(kit, probe, "a launch that failed")


def test_nothing_is_lost(kit: Kit) -> None:
    """What an executable holds on the device is given back with it, also after a call that failed."""
    device = kit.device()
    _probe(kit)
    collect()
    before = device.free
    for fail in (False, True):
        probe = _probe(kit)
        with kit.watched() as watched:
            assert watched is not None
            if fail:

                def fault(asked: str) -> None:
                    if asked == "launch":
                        raise RuntimeError("the launch was made to fail")

                watched.fault = fault
            with suppress(ExecutionError):
                probe.executable.run(probe.inputs)
        del probe, watched
        collect()
        if device.free < before:
            kit.fail(
                f"{before - device.free} bytes of the device are lost with an executable that is gone"
                + (", after a launch that failed" if fail else "")
            )
