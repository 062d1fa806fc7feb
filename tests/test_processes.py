"""Compilation in processes as they come: forked while the parent compiles, without standard streams or their
descriptors, on a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(script: str, *words: str, cache: Path, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "WEFT_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    return subprocess.run(
        [sys.executable, "-c", script, *words], env=env, capture_output=True, text=True, timeout=seconds, check=False
    )


FORKING = """
import faulthandler, os, sys, threading, time, warnings
warnings.simplefilter("ignore")  # Python's about forks of processes with threads
import weft
import numpy as np

def compile():
    from weft_testing.models import mlp
    return weft.compile(mlp(), "llvm -threads=1", cache=False)

done = threading.Event()
def work():
    while not done.is_set():
        compile()

threading.Thread(target=work, daemon=True).start()
children = []
for _ in range(5):  # the first while the parent imports, others while it compiles, and beside one another
    time.sleep(0.15)
    pid = os.fork()
    if not pid:
        faulthandler.dump_traceback_later(60, exit=True)
        compile()(np.ones((2, 64), np.float32))
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
done.set()
os._exit(codes != [0] * 5)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_children_compile_while_their_parent_does(tmp_path: Path) -> None:
    done = run(FORKING, cache=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


IMPORTING = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import weft.plugins
weft.plugins.host()
sys.path.insert(0, sys.argv[1])
threading.Thread(target=lambda: __import__(sys.argv[2])).start()
while sys.argv[2] not in sys.modules:
    time.sleep(0.01)
pid = os.fork()
if not pid:
    import signal
    signal.alarm(60)
    os._exit(0 if __import__(sys.argv[2]).done else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize(("module", "seconds"), [("onnx", 1.5), ("others", 0.3)])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_imports_of_other_threads(tmp_path: Path, module: str, seconds: float) -> None:
    """Python's lock of a module would stay locked in the child, and the module half made. What Weft needs is waited for
    longer."""
    (tmp_path / f"{module}.py").write_text(f"import time\ntime.sleep({seconds})\ndone = True\n")
    done = run(IMPORTING, str(tmp_path), module, cache=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


WITHIN = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
import weft
sys.path.insert(0, sys.argv[1])
import program
print(program.took)
"""
PROGRAM = """
import os, threading, time
took = []
def work():
    for _ in range(3):
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            os._exit(0)
        took.append(round(time.monotonic() - began))
        os.waitpid(pid, 0)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_program_that_runs_while_it_is_imported_forks_after_a_second_and_then_at_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run(WITHIN, str(tmp_path), cache=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 0, 0]\n", "")


FORKED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import weft
from weft_testing.models import mlp
x = np.ones((2, 64), np.float32)
adaptive = weft.compile_adaptive(mlp(), sys.argv[1], after=1, cache=False)
want = adaptive(x)  # and begins to compile for these sizes
pid = os.fork()
if not pid:
    signal.alarm(60)
    assert adaptive.wait()
    adaptive(x)
    assert adaptive.wait() and adaptive.sizes == [{"x": (2, 64)}], adaptive.sizes
    assert np.allclose(adaptive(x), want, 1e-5)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert adaptive.wait()
sys.exit(code)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("target", ["llvm -threads=1", pytest.param("c", marks=pytest.mark.needs("c"))])
def test_a_forked_child_compiles_with_threads_of_its_own(tmp_path: Path, target: str) -> None:
    done = run(FORKED, target, cache=tmp_path, seconds=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_waits_for_imports_of_plugins() -> None:
    from weft import forks, plugins

    plugins.host()
    assert forks._is_needed("weft_llvm.toolchain")
    assert forks._is_needed("llvmlite.binding") and forks._is_needed("onnx")
    assert not forks._is_needed("llvm") and not forks._is_needed("onnxruntime")


HOLDING = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
from weft.forks import hold
lock = threading.RLock()
hold(lock)
held, go = threading.Event(), threading.Event()
def work():
    with lock:
        held.set()
        go.wait(1)
threading.Thread(target=work).start()
held.wait()
pid = os.fork()
taken = []
# by another thread: this one could take a lock of its own
thread = threading.Thread(target=lambda: taken.append(lock.acquire(timeout=20)))
thread.start()
thread.join()
if not pid:
    os._exit(taken != [True])
sys.exit(taken != [True] or os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_lock_that_is_held_at_forks_is_free_in_the_child_and_the_parent(tmp_path: Path) -> None:
    done = run(HOLDING, cache=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


CROSSED = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
from weft.forks import hold
lock = threading.RLock()
hold(lock)
held = threading.Event()
def work():
    with lock:
        held.set()
        time.sleep(0.3)  # the fork begins meanwhile
        import colorsys
threading.Thread(target=work).start()
held.wait()
pid = os.fork()
if not pid:
    os._exit(not lock.acquire(timeout=5))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_thread_that_holds_a_lock_may_import_while_another_forks(tmp_path: Path) -> None:
    done = run(CROSSED, cache=tmp_path, seconds=30)
    assert (done.returncode, done.stderr) == (0, "")


STUCK = """
import os, sys, threading, warnings
from weft import forks
forks.MOST_SECONDS = 0.2
lock = threading.RLock()
forks.hold(lock)
held, go = threading.Event(), threading.Event()
def work():
    with lock:
        held.set()
        go.wait()
threading.Thread(target=work).start()
held.wait()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    pid = os.fork()
    if not pid:
        os._exit(0)
go.set()
print([str(w.message) for w in told if w.category is RuntimeWarning])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_that_has_waited_in_vain_warns(tmp_path: Path) -> None:
    done = run(STUCK, cache=tmp_path, seconds=30)
    why = "another thread imports what Weft needs, or is within a library that it uses, for more than 0.2 s"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == str([f"a child is forked that may wait for ever when it uses Weft: {why}"]) + "\n"


def test_what_is_held_at_forks_is_a_lock() -> None:
    from weft.forks import hold

    with pytest.raises(TypeError, match="a lock has the methods 'acquire' and 'release', got 'lock'"):
        hold("lock")


@pytest.mark.parametrize("name", ["weft-weights", "weft-c"])
@pytest.mark.needs("c")
def test_no_thread_is_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import weft
    from weft_c.codegen import _threads
    from weft_testing.models import mlp

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    _threads.cache_clear()  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(weft.WeftError) as error:
            weft.compile(mlp(), "c", cache=False)
    assert (
        str(error.value) == "there is no thread left to compile the model\n  why: can't start new thread\n"
        "  hint: end other processes, or allow more: ulimit -u, the pids.max of the process's control group"
    )
    assert weft.compile(mlp(), "c", cache=False).manifest.machine


CLOSED = """
import os, sys
from pathlib import Path
for name in sys.argv[1]:
    os.close(int(name))
if sys.argv[2] == "None":
    sys.stdin = sys.stdout = sys.stderr = None
folder = Path(sys.argv[3])
try:
    import numpy as np
    import weft
    from weft_testing.models import mlp
    executable = weft.compile(mlp(), "llvm -threads=1", cache=False)
    executable.save(folder / "saved.weft")
    x = np.ones((2, 64), np.float32)
    assert (executable(x) == weft.Executable.load(folder / "saved.weft")(x)).all()
    weft.compile(mlp(), "llvm -threads=1 -mtriple=x86_64-linux-gnu -mcpu=x86-64-v2", cache=False)
    try:
        weft.compile(mlp(), "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-65")
    except weft.WeftError as error:
        (folder / "result").write_text(str(error))
except BaseException:
    import traceback
    (folder / "result").write_text(traceback.format_exc())
"""


@pytest.mark.parametrize(
    ("descriptors", "streams"),
    [
        ("", "None"),
        ("2", "None"),
        ("012", "None"),
        *(pytest.param(d, "kept", marks=pytest.mark.full) for d in ("0", "1", "2", "01", "02", "12", "012")),
    ],
)
def test_compilation_without_standard_streams(descriptors: str, streams: str, tmp_path: Path) -> None:
    run(CLOSED, descriptors, streams, str(tmp_path), cache=tmp_path)
    assert (
        tmp_path / "result"
    ).read_text() == "'x86-65' is no processor of x86_64\n  -mcpu=x86-65\n  hint: did you mean 'x86-64'?"


FULL = """
import errno, os, sys, warnings
import numpy as np
import weft
from weft_testing.models import mlp
from pathlib import Path
weft.compile(mlp(), "llvm -threads=1", cache=False)
real = os.open

def full(path, flags, *more, **options):
    if flags & os.O_CREAT and str(path).startswith(os.environ["WEFT_CACHE_DIR"]):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    return real(path, flags, *more, **options)

os.open = full
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for seed in range(2):
        executable = weft.compile(sys.argv[1], "llvm -threads=1")
executable(np.ones(2, np.float32))
print([str(w.message).splitlines()[0] for w in told if issubclass(w.category, weft.errors.CacheWarning)])
"""


def test_a_full_cache_disk_fails_no_compilation(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", sides[:1], sides[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "m.onnx")
    done = run(FULL, str(tmp_path / "m.onnx"), cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == str(
        [f"what is compiled is not kept in the cache: No space left on device, in '{tmp_path / 'cache' / 'weft-v1'}'"]
    )
