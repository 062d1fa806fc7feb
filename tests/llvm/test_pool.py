"""The worker pool: every task once, whoever calls and however many threads there are."""

from __future__ import annotations

import ctypes
import os
import statistics
import threading
import time

import numpy as np
import pytest
from tests.runtime.models import compiled

from weft.errors import CodegenError
from weft_llvm.link import link
from weft_llvm.pool import emit_pool
from weft_llvm.toolchain import Cpu, compile_object
from weft_runtime import threads
from weft_runtime.abi import Context
from weft_runtime.loader import Code, imports_table

TASKS = """
define internal void @add_one(ptr %ctx, ptr %c, i64 %i, i64 %who) {
  %p = getelementptr i32, ptr %c, i64 %i
  %v = load i32, ptr %p
  %w = add i32 %v, 1
  store i32 %w, ptr %p
  ret void
}
define internal void @empty(ptr %ctx, ptr %c, i64 %i, i64 %who) { ret void }
define internal void @nested(ptr %ctx, ptr %c, i64 %i, i64 %who) {
  %row = mul i64 %i, 16
  %p = getelementptr i32, ptr %c, i64 %row
  %at = getelementptr i8, ptr %ctx, i64 32
  %f = load ptr, ptr %at
  %r = call i32 %f(ptr %ctx, ptr @add_one, ptr %p, i64 16)
  ret void
}
define internal void @uneven(ptr %ctx, ptr %c, i64 %i, i64 %who) {
  %n = mul i64 %i, 300000
  br label %l
l:
  %k = phi i64 [ 0, %0 ], [ %k2, %l ]
  %k2 = add i64 %k, 1
  %q = getelementptr i64, ptr %c, i64 %i
  store volatile i64 %k2, ptr %q
  %more = icmp ult i64 %k2, %n
  br i1 %more, label %l, label %e
e:
  ret void
}
define internal void @count(ptr %ctx, ptr %c, i64 %i, i64 %who) {
  %at = shl i64 %who, 3
  %p = getelementptr i64, ptr %c, i64 %at
  %v = load volatile i64, ptr %p
  br label %l
l:
  %k = phi i64 [ 0, %0 ], [ %k2, %l ]
  %k2 = add i64 %k, 1
  call void asm sideeffect "", ""()
  %more = icmp ult i64 %k2, 200
  br i1 %more, label %l, label %e
e:
  %w = add i64 %v, 1
  store volatile i64 %w, ptr %p
  ret void
}
define internal void @mark(ptr %ctx, ptr %c, i64 %i, i64 %who) {
  %at = shl i64 %who, 3
  %p = getelementptr i64, ptr %c, i64 %at
  %order = load i64, ptr %p
  %next = add i64 %order, 1
  store i64 %next, ptr %p
  %row = shl i64 %i, 3
  %place = add i64 %row, 64
  %q = getelementptr i64, ptr %c, i64 %place
  store i64 %who, ptr %q
  %q1 = getelementptr i64, ptr %q, i64 1
  store i64 %order, ptr %q1
  ret void
}
define i32 @marked(ptr %ctx, ptr %c, i64 %tasks) {
  %at = getelementptr i8, ptr %ctx, i64 32
  %f = load ptr, ptr %at
  %r = call i32 %f(ptr %ctx, ptr @mark, ptr %c, i64 %tasks)
  ret i32 %r
}
define i32 @go(ptr %ctx, ptr %c, i64 %tasks, i64 %which) {
  %at = getelementptr i8, ptr %ctx, i64 32
  %f = load ptr, ptr %at
  switch i64 %which, label %plain [ i64 1, label %nest i64 2, label %long ]
plain:
  %r = call i32 %f(ptr %ctx, ptr @add_one, ptr %c, i64 %tasks)
  ret i32 %r
nest:
  %r1 = call i32 %f(ptr %ctx, ptr @nested, ptr %c, i64 %tasks)
  ret i32 %r1
long:
  %r2 = call i32 %f(ptr %ctx, ptr @uneven, ptr %c, i64 %tasks)
  ret i32 %r2
}
define i32 @counted(ptr %ctx, ptr %c, i64 %tasks) {
  %at = getelementptr i8, ptr %ctx, i64 32
  %f = load ptr, ptr %at
  %r = call i32 %f(ptr %ctx, ptr @count, ptr %c, i64 %tasks)
  ret i32 %r
}
define void @forks(ptr %ctx, i64 %times) {
  %at = getelementptr i8, ptr %ctx, i64 32
  %f = load ptr, ptr %at
  br label %l
l:
  %k = phi i64 [ 0, %0 ], [ %n, %l ]
  %r = call i32 %f(ptr %ctx, ptr @empty, ptr null, i64 2)
  %n = add i64 %k, 1
  %d = icmp ult i64 %n, %times
  br i1 %d, label %l, label %e
e:
  ret void
}
"""


class Caller:
    def __init__(self, count: int) -> None:
        pool = threads.process_pool()
        tasks = link({"tasks": compiled(TASKS)})
        self.code = Code(tasks.bytes, tasks.entries)
        self.context = Context(
            imports=ctypes.addressof(imports_table()), pool=pool.state, parallel_for=pool.parallel_for, threads=count
        )
        self.address = ctypes.addressof(self.context)
        self._go = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
            self.code.address("go")
        )
        self._counted = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
            self.code.address("counted")
        )
        self.forks = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self.code.address("forks"))

    def go(self, array: np.ndarray, tasks: int, which: int = 0) -> int:
        return self._go(self.address, array.ctypes.data, tasks, which)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_task_once(count: int) -> None:
    caller = Caller(count)
    for tasks in (0, 1, 2, 3, 63, 64, 65, 127, 1000, 4097, 100_003):
        array = np.zeros(max(1, tasks), np.int32)
        for _ in range(20):
            assert caller.go(array, tasks) == 0
        assert (array[:tasks] == 20).all()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_threads_keep_to_their_part(count: int) -> None:
    """Each thread runs its own range from the front and helps in others' from the back, so it runs the same tasks in
    one loop after another."""
    caller = Caller(count)
    marked = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        caller.code.address("marked")
    )
    for tasks in (count, 11, 64):
        ranges = np.array_split(np.arange(tasks), count)
        for _ in range(100):
            notes = np.zeros((8 + tasks, 8), np.int64)
            assert marked(caller.address, notes.ctypes.data, tasks) == 0
            who, order = notes[8:, 0], notes[8:, 1]
            for owner, part in enumerate(ranges):
                for thread in range(count):
                    ran = order[part[who[part] == thread]]
                    assert (np.diff(ran) > 0).all() if thread == owner else (np.diff(ran) < 0).all()
                own = who[part] == owner
                assert own[: own.sum()].all(), "others take from the back"


def test_tasks_know_their_thread() -> None:
    """Two that run at once never have one number: neither loses a count of its own. Workers of a large job do not come
    late into a small one."""
    callers = {count: Caller(count) for count in (2, 5, 1)}
    counts = {count: np.zeros((5, 8), np.int64) for count in callers}  # a cache line for each thread
    for _ in range(300):
        for count, caller in callers.items():
            caller._counted(caller.address, counts[count].ctypes.data, 100)
    for count, found in counts.items():
        assert found.sum() == 300 * 100
        assert not found[count:].any() and not found[:, 1:].any() and found[0, 0]


def test_after_sleep() -> None:
    caller = Caller(3)
    array = np.zeros(500, np.int32)
    for _ in range(60):
        time.sleep(0.001)
        caller.go(array, 500)
    assert (array == 60).all()


def test_nested_loops_and_waiting_for_long_tasks() -> None:
    caller = Caller(2)
    array = np.zeros(40 * 16, np.int32)
    for _ in range(20):
        caller.go(array, 40, 1)
    assert (array == 20).all()
    last = np.zeros(4, np.int64)
    caller.go(
        last, 4, 2
    )  # the last task is the longest: the caller goes to sleep for it, or the worker has no more to do
    assert last.tolist() == [1, 300_000, 600_000, 900_000]


def test_many_callers() -> None:
    wrong = []

    def work() -> None:
        caller = Caller(2)
        array = np.zeros(200, np.int32)
        for _ in range(400):
            caller.go(array, 200)
        if not (array == 400).all():
            wrong.append(1)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_of_fork_has_its_own_workers() -> None:
    caller = Caller(2)
    array = np.zeros(100, np.int32)
    caller.go(array, 100)
    assert threads.start(2) >= 2
    child = os.fork()
    if child == 0:
        for _ in range(100):
            caller.go(array, 100)
        os._exit(0 if (array == 101).all() and threads.start(2) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    caller.go(array, 100)
    assert (array == 2).all()


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
def test_workers_sleep_with_signals_masked() -> None:
    caller = Caller(2)
    caller.go(np.zeros(100, np.int32), 100)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.1)
    assert time.process_time() - before < 0.05
    masks = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as file:
            masks.append(next(line.split()[1] for line in file if line.startswith("SigBlk")))
    assert any(int(m, 16) & 0x7FFFFFFF == 0x7FFFFFFF & ~(1 << 8 | 1 << 18) for m in masks)  # all but KILL and STOP


def asleep(tries: int = 200) -> int:
    """Waits until all workers sleep; how often workers of this process have gone to sleep so far."""
    assert threads._memory is not None
    bits = 0
    for _ in range(tries):
        time.sleep(0.002)
        bits = int.from_bytes(threads._memory[192:224], "little")
        if bits.bit_count() == int.from_bytes(threads._memory[264:272], "little"):
            break
    slept = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as file:
            fields = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
        if int(fields["SigBlk"], 16) & 0x7FFFFFFF == 0x7FFFFFFF & ~(
            1 << 8 | 1 << 18
        ):  # a worker: all but KILL and STOP
            slept += int(fields["voluntary_ctxt_switches"])
    return slept


linux = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's account of threads")


def test_callers_do_not_multiply_workers() -> None:
    """However many threads call, a job has the workers that its `threads` asks for: a second caller runs its job
    alone."""
    assert Caller(2).go(np.zeros(8, np.int32), 8) == 0 and threads._memory is not None
    before = int.from_bytes(threads._memory[264:272], "little")
    arrays = [np.zeros(64, np.int32) for _ in range(6)]
    callers = [threading.Thread(target=lambda a=a: [Caller(2).go(a, 64) for _ in range(20)]) for a in arrays]  # type: ignore[misc]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert all((a == 20).all() for a in arrays)
    assert int.from_bytes(threads._memory[264:272], "little") == before >= 1


@linux
def test_a_small_job_lets_workers_sleep() -> None:
    caller, array = Caller(2), np.zeros(64, np.int32)
    caller.go(array, 64)
    undisturbed = 0
    for _ in range(30):  # a job that the system interrupts looks like a long one
        before = asleep()
        caller.go(array, 64)
        undisturbed += asleep() == before
    assert undisturbed > 0 and (array == 31).all()


@linux
def test_a_long_job_wakes_workers() -> None:
    caller, array = Caller(2), np.zeros(16, np.int64)
    caller.go(array, 16, 2)
    before = asleep()
    caller.go(array, 16, 2)  # milliseconds
    assert asleep() > before
    assert array.tolist() == [1, *(300_000 * i for i in range(1, 16))]


@linux
def test_many_small_jobs_wake_workers() -> None:
    caller, array = Caller(2), np.zeros(64, np.int32)
    before = asleep()
    for _ in range(2000):
        caller.go(array, 64)
    assert asleep() > before and (array == 2000).all()


def test_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: machines and their load differ."""
    caller = Caller(2)
    caller.forks(caller.address, 20_000)
    time.sleep(0.01)
    caller.forks(caller.address, 2_000)
    began = time.perf_counter()
    caller.forks(caller.address, 20_000)
    hot = (time.perf_counter() - began) / 20_000
    cold = []
    for _ in range(50):
        time.sleep(0.001)
        began = time.perf_counter()
        caller.forks(caller.address, 1)
        cold.append(time.perf_counter() - began)
    with capsys.disabled():
        print(
            f"\nfork-join: {hot * 1e6:.2f} us hot, {statistics.median(cold) * 1e6:.1f} us asleep (entry from Python"
            " included)"
        )


def test_other_machines() -> None:
    image = link({"pool": compile_object(emit_pool("aarch64"), Cpu("aarch64-unknown-linux-gnu", "generic", "", 2))})
    assert {"parallel_for", "start", "ticks"} <= set(image.entries)
    with pytest.raises(
        CodegenError, match="there is no worker pool for 'riscv64'\n  hint: x86_64 and aarch64 have one"
    ):
        emit_pool("riscv64")
