"""The distribution weft-libweft: files for Linux in a wheel for every Python, and their sources."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.remote.test_transports import shells  # noqa: F401 - a board that ssh reaches

import weft
from weft_runtime.cpu_features import machine
from weft_testing.models import mlp

ROOT = Path(__file__).parents[2]
HERE = machine()


def _built(folder: Path, source: Path, architectures: str) -> Path:
    """The folder that an installer unpacks the wheel into."""
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    environment = {**os.environ, "WEFT_LIBWEFT_ARCHITECTURES": architectures}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    wheel = folder / done.stdout.split()[-1]
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(tmp_path_factory.mktemp("wheel"), ROOT / "libweft", HERE)


def _python(site: Path, code: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "bindings" / "python")])}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.needs("ziglang")
def test_it_has_the_runtime_and_its_sources(site: Path, tmp_path: Path) -> None:
    inside = {str(p.relative_to(site / "weft_libweft")) for p in (site / "weft_libweft").rglob("*.[ch]")}
    here = {str(p.relative_to(ROOT / "libweft")) for p in (ROOT / "libweft").rglob("*.[ch]")}
    assert inside == here | {"src/weft_abi.h"}
    code = "from weft_libweft import *; print(include()); print(prebuilt('libweft.so')); prebuilt('weft-run', 'm68k')"
    done = _python(site, code, tmp_path)
    assert done.stdout.splitlines() == [
        str(site / "weft_libweft" / "include"),
        str(site / "weft_libweft" / "prebuilt" / HERE / "libweft.so"),
    ]
    assert "there is no weft-run for m68k in" in done.stderr and f"it has those for {HERE}" in done.stderr


@pytest.mark.needs("ziglang")
def test_it_runs_archives(site: Path, tmp_path: Path) -> None:
    exe, x = weft.compile(mlp(), "llvm"), (np.arange(64) % 7 - 3).astype(np.float32)[None]
    exe.save(tmp_path / "m.weft")
    np.save(tmp_path / "x.npy", x)
    main = "import weft_libweft; weft_libweft.main()"
    done = _python(site, main, tmp_path, "m.weft", "--input", "x=x.npy", "--output", ".")
    assert done.returncode == 0 and np.load(tmp_path / "0.npy").tobytes() == exe(x).tobytes(), done.stderr
    load = "import numpy, weft_native; numpy.save('y.npy', weft_native.load('m.weft')(numpy.load('x.npy')))"
    done = _python(site, load, tmp_path)
    assert done.returncode == 0 and np.load(tmp_path / "y.npy").tobytes() == exe(x).tobytes(), done.stderr


@pytest.mark.needs("ziglang")
def test_boards_get_its_agent(
    site: Path,
    shells: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from weft_remote import connect

    monkeypatch.syspath_prepend(str(site))
    with connect(f"ssh://board?store={shells}/store&lock={shells}/lock") as board:
        exe = weft.compile(mlp(), board.target)
        x = np.ones((1, 64), np.float32)
        assert board.run(exe, {"x": x}).outputs["y"].tobytes() == exe(x).tobytes()
    (sent,) = (shells / "home").rglob("weft-run-*")
    assert sent.read_bytes() == (site / "weft_libweft" / "prebuilt" / HERE / "weft-run").read_bytes()


@pytest.mark.full
@pytest.mark.needs("ziglang")
def test_a_source_distribution_has_all_that_it_is_made_of(tmp_path: Path) -> None:
    import tarfile

    code = f"from hatchling.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "libweft", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        archive.extractall(tmp_path / "source", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = (tmp_path / "source").iterdir()
    site = _built(tmp_path, source, "")
    assert sorted(p.parent.name for p in site.rglob("weft-run")) == ["aarch64", "arm", "riscv64", "x86_64"]


def test_a_source_tree_says_how_to_build(tmp_path: Path) -> None:
    (tmp_path / "weft_libweft").mkdir()
    text = (ROOT / "libweft" / "weft_libweft" / "__init__.py").read_text(encoding="utf-8")
    (tmp_path / "weft_libweft" / "__init__.py").write_text(text, encoding="utf-8")
    done = _python(tmp_path, "import weft_libweft; weft_libweft.main()", tmp_path)
    assert done.returncode == 1 and "python -m libweft.build" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "m.weft").write_bytes(b"PK\3\4")
    done = _python(tmp_path, "import weft_native; weft_native.load('m.weft')", tmp_path)
    assert "there is no libweft to load an archive with" in done.stderr and "pip install weft-libweft" in done.stderr
