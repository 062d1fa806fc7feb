"""Handlers of signals that raise while a model runs: the exception reaches the caller, results are right or not there,
and the model runs again."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.mixed import board
from tests.runtime.models import affine

import weft
from weft import dtypes as dt
from weft.errors import PluginError
from weft.expr.nodes import Var
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.hooks import hookimpl
from weft.plugins import PluginHost, host
from weft_ops import Add, CountNonZero, MatMul, NonZero, Relu
from weft_runtime import Executable
from weft_runtime.device import blamed, open_device

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
SECONDS, SECONDS_FULL = 1.5, 20.0


class Alarm(Exception):
    """What a handler raises, as a time limit may be, and the calls that it interrupts."""

    def __init__(self, frame: FrameType | None) -> None:
        self.calls = [(f.f_code, line) for f, line in islice(traceback.walk_stack(frame), 4)]


def by_itself(test: str, *given: float) -> None:
    """Runs a function of this file in a process of its own: what other tests leave would disturb it. What a handler
    raises in one of their finalizers is lost. A signal that the system gives to another thread comes late: alarms are
    blocked when threads begin, and only `interrupted` lets them through, to its own."""
    begun = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"
    program = f"{begun}; from tests.runtime import test_signals; test_signals.{test}{given}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr[-5000:]


def found_in(size: int) -> Executable:
    """Where x is not zero: its size only the segment knows."""
    g = GraphBuilder("found")
    x = g.input("x", tensor_type("float32", (Var("n", dt.int64),)))
    g.output(g.add(NonZero(g.symbol(g.add(CountNonZero(), x))), x), "y")
    return weft.compile(g.build(), "llvm -threads=2", cache=False)


def same(a: Any, b: Any) -> bool:
    """As `numpy.array_equal`, which takes an exception, an alarm too, for a difference."""
    return bool(a.shape == b.shape and (a == b).all())


def interrupted(run: Callable[[], Any], check: Callable[[Any], bool], seconds: float, least: int) -> None:
    """Runs until the time is over, with an alarm at a random time in each run: every exception comes out, results are
    right, and at least so many runs end and are interrupted."""
    chance, raised = random.Random(0), []

    def handler(number: int, frame: FrameType | None) -> None:
        raised.append(Alarm(frame))
        raise raised[-1]

    signal.signal(signal.SIGALRM, handler)
    began = time.perf_counter()
    for _ in range(20):
        assert check(run())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    one = max((time.perf_counter() - began) / 20, 20e-6)
    # How far ahead alarms are set follows what runs take meanwhile, so that about as many are interrupted as end,
    # however busy the machine is.
    reach, end, runs, caught = 1.5 * one, time.perf_counter() + seconds, 0, []
    while time.perf_counter() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, reach))
            result = run()
            signal.setitimer(signal.ITIMER_REAL, 0)
            right = check(result)  # an alarm of the last moment comes here
        except Alarm as alarm:
            caught.append(alarm)
            reach *= 1.05
        else:
            assert right
            runs += 1
            reach = max(reach / 1.05, 2e-6)
    lost = [alarm.calls for alarm in {*raised} - {*caught}]
    assert not lost, f"exceptions that did not reach the caller, and where they were raised: {lost}"
    assert check(run())
    assert runs > least and len(caught) > least, (runs, len(caught))


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    return SECONDS_FULL if request.config.getoption("--full") else SECONDS


def open_output_size(seconds: float, size: int) -> None:
    exe = found_in(size)
    x = (np.arange(size) % 3).astype(np.float32)
    expected = np.nonzero(x)[0][None]
    interrupted(lambda: exe(x), lambda y: same(y, expected), seconds, 50)


def growing_arena(seconds: float) -> None:
    exe, sizes, row = affine(), random.Random(1), np.array([2, 4, 6, 8], np.float32)

    def run() -> Any:
        x = np.ones((sizes.choice((1, 50, 3000)), 4), np.float32)
        exe._segments[0]._free.clear()  # so that every run wants an arena
        return exe(x)

    interrupted(run, lambda y: same(y, np.broadcast_to(row, y.shape)), seconds, 50)


def steps_and_a_device(seconds: float) -> None:
    host().register(board, "board")
    g = GraphBuilder("mixed")
    x = g.input("x", tensor_type("float32", (Var("n", dt.int64), 8)))
    y = g.add(
        Relu(),
        g.add(
            Add(),
            g.add(MatMul(), x, g.constant(np.ones((8, 6), np.float32), "w")),
            g.constant(np.ones(6, np.float32), "b"),
        ),
    )
    g.output(g.add(NonZero(g.symbol(g.add(CountNonZero(), y))), y), "y")
    exe = weft.compile(g.build(), "board -ops=MatMul,Relu, llvm -threads=1", cache=False)
    assert exe.manifest.devices
    given = np.ones((5, 8), np.float32)
    expected = exe(given)
    interrupted(lambda: exe(given), lambda y: same(y, expected), seconds, 20)
    free = []
    other = threading.Thread(
        target=lambda: free.extend(open_device(d).lock.acquire(timeout=5) for d in exe.manifest.devices)
    )
    other.start()
    other.join()
    assert free and all(free), "the locks of devices are free afterwards, for other threads, too"


@pytest.mark.parametrize("size", [100, 100_000])
def test_an_open_output_size(seconds: float, size: int) -> None:
    by_itself("open_output_size", seconds, size)


def test_sizes_that_follow_from_inputs_and_a_growing_arena(seconds: float) -> None:
    by_itself("growing_arena", seconds)


def test_several_steps_and_a_device(seconds: float) -> None:
    by_itself("steps_and_a_device", seconds)


def test_control_c_ends_a_program() -> None:
    """As anywhere in Python: KeyboardInterrupt, and the exit status that says so."""
    program = """
import os, signal, threading, numpy as np
from tests.runtime.test_signals import found_in
exe = found_in(1)
x = np.ones(100_000, np.float32)
exe(x)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
print("running", flush=True)
while True:
    exe(x)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (
        done.stdout == "running\n"
        and done.returncode == -signal.SIGINT
        and done.stderr.strip().endswith("KeyboardInterrupt")
    ), done.stderr


@pytest.mark.parametrize("kind", [TimeoutError, SystemExit, KeyboardInterrupt])
def test_what_a_handler_raises_in_a_plugin_is_no_failure_of_the_plugin(kind: type[BaseException]) -> None:
    class Late:
        @hookimpl
        def targets(self) -> list[Any]:
            signal.raise_signal(signal.SIGALRM)
            return []

    def handler(number: int, frame: object) -> None:
        raise kind("late")

    before = signal.signal(signal.SIGALRM, handler)
    plugins = PluginHost([])
    plugins.register(Late(), "late")
    try:
        with pytest.raises(kind, match="late"):
            plugins.call("targets")
        with pytest.raises(kind, match="late"), plugins.blame("late", "to compile"):
            signal.raise_signal(signal.SIGALRM)
        with pytest.raises(kind, match="late"), blamed("late", "the copy"):
            signal.raise_signal(signal.SIGALRM)
        assert not plugins.failures
    finally:
        signal.signal(signal.SIGALRM, before)
    with (
        pytest.raises(PluginError, match=r"plugin .late. \(registered by hand\) failed to compile"),
        plugins.blame("late", "to compile"),
    ):
        raise SystemExit("not by a handler")
