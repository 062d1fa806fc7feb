"""The package: public names only, a wheel with its entry point, a command."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.needs import require
from tests.npu.conftest import FOLDER

import weft
from weft.cli.main import main
from weft_testing.imports import imports_beyond
from weft_testing.intrinsics import check_intrinsic
from weft_testing.models import mlp


def test_nothing_but_public_names_is_imported() -> None:
    assert imports_beyond(FOLDER / "weft_npu") == []


def test_a_plugin_that_is_not_used_imports_nothing_heavy() -> None:
    code = (
        "import sys, weft_npu.plugin; print([m for m in ('numpy', 'typer', 'weft.loop', 'weft_npu.codegen') if m in"
        " sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_wheel(tmp_path: Path) -> None:
    require("hatchling")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    name = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    with zipfile.ZipFile(tmp_path / name) as wheel:
        names = wheel.namelist()
        assert {Path(n).name for n in names if n.startswith("weft_npu/")} == {
            p.name for p in (FOLDER / "weft_npu").glob("*.*")
        }
        entry = wheel.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert entry.split() == ["[weft.plugins]", "npu", "=", "weft_npu.plugin"]


@pytest.mark.parametrize(
    "name", ["gemm8x8", "gemm1x8", "dma.load", "vec.copy", "vec.fma", "vec.select", "vec.mac", "vec.greatest"]
)
def test_instructions_do_what_they_mean(name: str) -> None:
    from weft_npu.intrinsics import INTRINSICS

    assert check_intrinsic(next(i for i in INTRINSICS if i.name == name)) >= 8


@pytest.mark.usefixtures("npu")
def test_the_report(tmp_path: Path, capsys: Any) -> None:
    exe = weft.compile(mlp(batch=8), "npu", cache=False)
    exe.save(tmp_path / "mlp.weft")
    with pytest.raises(SystemExit, match="0"):
        main(["npu-report", str(tmp_path / "mlp.weft"), "--code"])
    text = capsys.readouterr().out
    assert "fuse_gemm8x8_add 8x8x8  accumulators[" in text
    assert text.splitlines()[-1].startswith("total")
    x = np.zeros((8, 64), np.float32)
    assert exe.run({"x": x})["y"].shape == (8, 32)
