"""Level 8: what goes wrong is an error that names it; nothing is lost, and the next call works."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from weft.errors import ExecutionError, InputError, WeftError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph
from weft.runtime.executable import Executable
from weft.runtime.plan import DeviceCall
from weft.testing.conform.cases import GRAPHS, GraphCase
from weft.testing.conform.kit import Declined, Kit, collect


def _probe(kit: Kit) -> tuple[GraphCase, Graph, Executable]:
    """A graph that runs on the device at least in part."""
    for name in ("dense", "fork", "movement"):
        case = GRAPHS[name]
        try:
            executable = kit.compile(case.build()).executable
        except Declined:
            continue
        if kit.native or any(isinstance(s, DeviceCall) for s in executable.manifest.steps):
            return case, case.build(), executable
    kit.skip("the target takes nothing of the graphs that faults are tried on")


def _works(kit: Kit, case: GraphCase, graph: Graph, executable: Executable, when: str) -> None:
    inputs = case.inputs()[0]
    try:
        got = list(executable.run(inputs).values())
    except WeftError as error:
        kit.fail(f"the call after {when} fails", str(error))
    kit.compare(f"the call after {when}", got, evaluate(graph, inputs), case.ulps)


def _names(kit: Kit, error: BaseException, words: list[str], when: str) -> None:
    if not isinstance(error, ExecutionError):
        kit.fail(f"{when}: {type(error).__name__} instead of an ExecutionError", str(error))
    missing = [w for w in words if w not in str(error)]
    if missing:
        kit.fail(f"{when}: the error does not name {missing[0]}", str(error))


def test_wrong_inputs(kit: Kit) -> None:
    """Arrays of another dtype or shape are refused, before anything is computed."""
    case, graph, executable = _probe(kit)
    inputs = case.inputs()[0]
    name = next(iter(inputs))
    with kit.watched() as watched:
        for wrong in (inputs[name].astype(np.float64), np.concatenate([inputs[name], inputs[name]], -1), inputs[name][0]):
            try:
                executable.run({**inputs, name: wrong})
            except InputError:
                continue
            except Exception as error:  # noqa: BLE001 - foreign code
                kit.fail(f"an input of {wrong.dtype}{list(wrong.shape)}: {type(error).__name__} instead of an InputError", str(error))
            kit.fail(f"an input of {wrong.dtype}{list(wrong.shape)} is taken, {inputs[name].dtype}{list(inputs[name].shape)} is declared")
        if watched is not None and watched.launches:
            kit.fail("a kernel was launched though an input did not fit")
        _works(kit, case, graph, executable, "one with wrong inputs")


def test_out_of_memory(kit: Kit) -> None:
    kit.device()
    case, graph, executable = _probe(kit)
    with kit.watched() as watched:
        assert watched is not None
        watched.limit = 16
        try:
            executable.run(case.inputs()[0])
        except Exception as error:  # noqa: BLE001 - foreign code
            _names(kit, error, [watched.name, "16 "], "a device with 16 bytes left")
        else:
            kit.fail("a model runs on a device with 16 bytes left")
        watched.limit = None
        _works(kit, case, graph, executable, "one that ran out of memory")


def test_failing_operations(kit: Kit) -> None:
    """Every kind of request of a device fails once."""
    kit.device()
    for operation in ("write", "load", "launch", "synchronize", "read"):
        case, graph, executable = _probe(kit)
        with kit.watched() as watched:
            assert watched is not None
            calls = [0]

            def fault(asked: str, operation: str = operation, calls: list[int] = calls) -> None:
                if asked == operation:
                    calls[0] += 1
                    raise RuntimeError(f"the {asked} was made to fail")

            watched.fault = fault
            try:
                executable.run(case.inputs()[0])
            except Exception as error:  # noqa: BLE001 - foreign code
                _names(kit, error, [watched.name, f"the {operation} was made to fail"], f"a {operation} that fails")
            else:
                if calls[0]:
                    kit.fail(f"a {operation} fails and the call does not")
            watched.fault = lambda asked: None
            _works(kit, case, graph, executable, f"a {operation} that failed")


def test_launch_of_nothing(kit: Kit) -> None:
    """The device itself says when a kernel that its section has not is launched; and works afterwards."""
    device = kit.device()
    case, graph, executable = _probe(kit)
    step = next(s for s in executable.manifest.steps if isinstance(s, DeviceCall))
    section = executable.manifest.sections[step.section]
    image = kit.section_bytes(executable, step.section)
    with device.lock:
        try:
            module = device.load(image, section.entries)
            device.launch(module, "a kernel that nobody has compiled", [], [])
            device.synchronize()
        except Exception:  # noqa: BLE001 - any error will do
            pass
        else:
            kit.fail("a kernel that its section has not is launched, and nobody says a word", "a launch that fails must raise, there or in synchronize")
    _works(kit, case, graph, executable, "a launch that failed")


def test_nothing_is_lost(kit: Kit) -> None:
    """What an executable holds on the device is given back with it, also after a call that failed."""
    device = kit.device()
    _probe(kit)
    collect()
    before = device.free
    for fail in (False, True):
        case, _, executable = _probe(kit)
        with kit.watched() as watched:
            assert watched is not None
            if fail:

                def fault(asked: str) -> None:
                    if asked == "launch":
                        raise RuntimeError("the launch was made to fail")

                watched.fault = fault
            with suppress(ExecutionError):
                executable.run(case.inputs()[0])
        del executable, watched
        collect()
        if device.free < before:
            kit.fail(f"{before - device.free} bytes of the device are lost with an executable that is gone" + (", after a launch that failed" if fail else ""))
