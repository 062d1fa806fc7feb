"""Simulated boards: agents on this machine, whose processes are found by the folder of their store."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.needs import require

HERE = Path(__file__).parent
LIBWEFT = HERE.parents[1] / "libweft"
ARCHITECTURES = {"aarch64": "aarch64-linux-musl", "arm": "arm-linux-musleabihf", "riscv64": "riscv64-linux-musl"}


def _folder() -> Path:
    folder = Path(os.environ["WEFT_CACHE_DIR"]) / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compiler() -> list[str]:
    found = shutil.which("cc")
    if found is None:
        require("ziglang")
        return [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl"]
    return [found]


def _compile(command: Sequence[str], sources: Sequence[Path], out: Path) -> Path:
    if not out.is_file():
        part = out.with_name(f"{out.name}.{os.getpid()}")
        flags = ["-std=gnu99", "-O1", "-Wall", "-Wextra", f"-I{LIBWEFT / 'include'}"]
        flags += [f"-I{LIBWEFT.parent / 'runtime' / 'weft_runtime'}", "-pthread", "-o", str(part)]
        subprocess.run([*command, *map(str, sources), *flags], check=True, capture_output=True, text=True)
        part.replace(out)
    return out


@cache
def double() -> Path:
    """The agent with a double of libweft, whose programs misbehave as they are told: see double.c."""
    return _compile(compiler(), [HERE / "double.c", LIBWEFT / "run" / "serve.c"], _folder() / "double")


@cache
def foreign(architecture: str) -> Path:
    """The folder of the double for another architecture, as the option `agent` takes it."""
    require("qemu", "ziglang")
    folder = _folder() / "foreign"
    (folder / architecture).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", ARCHITECTURES[architecture], "-static"]
    _compile(command, [HERE / "double.c", LIBWEFT / "run" / "serve.c"], folder / architecture / "weft-run")
    return folder


@cache
def real() -> Path:
    """weft-run itself, for this machine."""
    sources = [
        *sorted((LIBWEFT / "run").glob("*.c")),
        LIBWEFT / "src" / "library.c",
        LIBWEFT / "src" / "surroundings.c",
    ]

    return _compile([*compiler()], sources, _folder() / "weft-run")


def weft_command(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """What `weft` with these words ends with and prints, in this process."""
    from weft.cli.main import main

    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(w) for w in words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def board(store: Path, agent: Path | None = None, *, lock: Path | None = None, more: str = "") -> str:
    """The URL of a simulated board. Its lock is its own unless one is given."""
    lock = lock or store.parent / f"{store.name}.lock"
    return f"pipe:{agent or double()}?store={quote(str(store))}&lock={quote(str(lock))}{more}"


def running(folder: Path) -> list[int]:
    """Processes whose command line names something in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if str(folder).encode() in words and state != "Z":
                found.append(int(entry.name))
    return found


def left_running(folder: Path, seconds: float = 5.0) -> list[int]:
    """Those that are still there after so long."""
    ends = time.monotonic() + seconds
    while running(folder) and time.monotonic() < ends:
        time.sleep(0.02)
    return running(folder)
