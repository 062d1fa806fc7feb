"""A forked child that ends takes nothing with it that is its parent's: folders that both know are removed by who made
them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORKED = """
import os, sys, threading
from pathlib import Path
from weft.forks import temporary_folder
from weft_c import toolchain

def compile():
    with temporary_folder("weft-c-") as folder:
        print(folder, flush=True)
        inside.set()
        ended.wait()

inside, ended = threading.Event(), threading.Event()
zig = Path(toolchain.zig_environment()["ZIG_GLOBAL_CACHE_DIR"])
print(zig, flush=True)
thread = threading.Thread(target=compile)
thread.start()
inside.wait()
child = os.fork()
if not child:
    own = toolchain.zig_environment()["ZIG_GLOBAL_CACHE_DIR"]
    print(own, flush=True)
    sys.exit(own == str(zig))
ok = not os.waitpid(child, 0)[1] and len(list(Path(os.environ["TMPDIR"]).iterdir())) == 2 and zig.is_dir()
ended.set()
thread.join()
sys.exit(not ok)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_removes_its_own_folders_alone(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("ZIG_GLOBAL_CACHE_DIR", "XDG_CACHE_HOME")}
    env |= {"HOME": "/dev/null", "TMPDIR": str(tmp_path), "WEFT_CACHE_BYTES": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    folders = done.stdout.split()
    assert done.returncode == 0 and len(set(folders)) == 3 == len(folders), done.stdout + done.stderr[-2000:]
    assert list(tmp_path.iterdir()) == []  # both have ended


def test_an_interrupted_compilation_leaves_no_folder(tmp_path: Path) -> None:
    """The thread that made it is ended with the process."""
    script = FORKED.split("inside.wait()")[0].replace("target=compile", "target=compile, daemon=True") + "inside.wait()"
    env = {k: v for k, v in os.environ.items() if k not in ("ZIG_GLOBAL_CACHE_DIR", "XDG_CACHE_HOME")} | {
        "HOME": "/dev/null",
        "TMPDIR": str(tmp_path),
    }
    assert (
        len(
            subprocess.run(
                [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
            ).stdout.split()
        )
        == 2
    )
    assert list(tmp_path.iterdir()) == []
