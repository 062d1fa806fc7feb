"""Changed copies of archives for libweft: each is refused with a code, or read; nothing crashes.

python -m tests.libweft.hostile --seconds 3600                  libweft with an address sanitizer, built by gcc
python -m tests.libweft.hostile --copies 400 --library FILE     another build

Code sections are never executed: where a changed copy is opened, its values are asked for and it is closed. An archive
without code is run, too. The work is
done by processes that are watched: one that ends by a signal is a defect, and its copy is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from weft_runtime.plan import Branch, DataSymbol, HostCall, Manifest, Plan, Repeat, TensorInfo

ROOT = Path(__file__).parents[2]
BATCH = 200


def sanitized(folder: Path) -> tuple[Path, dict[str, str]]:
    """libweft with gcc's address and undefined-behaviour sanitizers, and the environment in which Python loads it."""
    from libweft import build

    out = folder / "libweft-asan.so"
    command = [
        "gcc", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-std=gnu99", "-fPIC",
        "-shared", *build.include_flags(), "library.c", "surroundings.c", "-o", str(out),
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=build.SOURCES)
    libraries = [
        subprocess.run(["gcc", f"-print-file-name={n}"], capture_output=True, text=True, check=True).stdout.strip()
        for n in ("libasan.so", "libubsan.so")
    ]
    # Python's own allocations are not of interest.
    return out, {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}


def archives(folder: Path) -> list[Path]:
    """Archives of several kinds: one step, branches and loops, many constants."""
    from tests.bindings.test_javascript import LOOP, SCAN, onnx_model

    import weft
    from weft_runtime import archive
    from weft_testing.models import lstm, mlp

    made = []
    for k, model in enumerate((mlp(), lstm(), onnx_model(LOOP), onnx_model(SCAN))):
        made.append(folder / f"good{k}.weft")
        weft.compile(model, "llvm").save(made[-1])
    made.append(folder / "steps.weft")
    archive.save(made[-1], without_code(), {}, {})
    return made


def without_code() -> Manifest:
    """Branches, loops and sizes over values of two dimensions. No step has code, so that changed copies can be run."""
    flag, number = TensorInfo("c", "bool", ()), TensorInfo("n", "int64", ())
    x, y, z = (TensorInfo(name, "int64", ("a", "b")) for name in "xyz")
    sizes, rows = TensorInfo("s", "int64", (2,)), TensorInfo("r", "int64", ("d * 2 // 2", "min(a, n)"))
    same = HostCall("WithSizes", ("x",), ("y",))
    plain = Plan((x,), (y,), (same,), (), ())
    item = TensorInfo("i", "int64", ("b",))
    body = Plan((number, x, item), (y, TensorInfo("o", "int64", ("b",))), (same, HostCall("WithSizes", ("i",), ("o",))))
    steps = (
        Branch(0, 0, ("c", "x", "x"), ("y",)),
        HostCall("Sizes", ("y",), ("s",)),
        Repeat(1, ("n", "", "x", "y"), ("z", "r"), 1, False, (0,), (True,), (1,), (False,)),
    )
    return Manifest(
        "without code", "host", "any", (), (flag, number, x), (z, sizes, rows), steps,
        values=(y,), symbols=(DataSymbol("d", "s", 1), DataSymbol("n", "n", 0)), plans=(plain, body),
    )  # fmt: skip


PLAN, HEAD = 64, 176
"""Where the plan begins in an archive, and how many bytes its head has (libweft/src/core.h)."""
WEIGHTS, SIGNATURE, SECTIONS, CONSTANTS, PLANS = 48, 96, 136, 144, 160
"""Where they are in the head."""


def rows(data: bytes | bytearray, field: int, size: int) -> list[int]:
    """Where in an archive the rows of a list begin, of so many bytes each; `field` is where in the plan the list is."""
    at, count = struct.unpack_from("<II", data, PLAN + field)
    return [PLAN + at + k * size for k in range(min(count, 64))]


def repaired(data: bytearray) -> bytes:
    """The copy with the hashes that its changed sections have, so that what lies behind them is reached."""
    with contextlib.suppress(struct.error, ValueError, OverflowError):
        (size,) = struct.unpack_from("<I", data, PLAN + 8)
        weights, length = struct.unpack_from("<QQ", data, PLAN + WEIGHTS)
        if size > len(data) - PLAN - 32:
            raise ValueError
        if weights + length <= len(data):
            pieces = [data[k : min(k + (4 << 20), weights + length)] for k in range(weights, weights + length, 4 << 20)]
            whole = hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in pieces)).digest()
            data[PLAN + WEIGHTS + 16 : PLAN + WEIGHTS + 48] = whole
        signature = data[PLAN + SIGNATURE : PLAN + SIGNATURE + 32]
        for row in rows(data, SECTIONS, 56):
            at, length = struct.unpack_from("<QQ", data, row + 8)
            if PLAN + size + 32 <= at and length >= 32 and at + length <= len(data):
                data[at + length - 32 : at + length] = signature
                data[row + 24 : row + 56] = hashlib.sha256(data[at : at + length]).digest()
        data[PLAN + size : PLAN + size + 32] = hashlib.sha256(data[PLAN : PLAN + size]).digest()
    return bytes(data)


def changed(good: bytes, draw: random.Random) -> bytes:
    """A copy with a few bytes or numbers changed, parts cut, doubled or moved; or words of its plan changed."""
    data = bytearray(good)
    kind = draw.random()
    (size,) = struct.unpack_from("<I", good, PLAN + 8)
    end = PLAN + size
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        low, high = (PLAN, end) if kind < 0.7 else (0, len(data))
        at = min(draw.randrange(low, max(low + 1, min(high, len(data)))), len(data) - 1)
        word = at & ~3
        what = draw.randrange(8)
        if what == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif what == 1:
            data[at] = draw.randrange(256)
        elif what == 2:
            data[at : at + 8] = struct.pack("<q", draw.choice((0, -1, 1 << 31, 1 << 47, (1 << 63) - 1)))
        elif what == 3:
            number = draw.choice(
                (0, 1, 2, 3, -1, -2, 64, 65, size, size - 8, 1 << 20, 1 << 24, (1 << 31) - 1, -(1 << 31))
            )
            data[word : word + 4] = struct.pack("<i", number)
        elif what == 4 and word + 4 <= len(data):
            (number,) = struct.unpack_from("<I", data, word)
            data[word : word + 4] = struct.pack("<I", (number + draw.choice((-8, -4, -1, 1, 4, 8))) & 0xFFFFFFFF)
        elif what in (5, 6):
            other, length = draw.randrange(low, max(low + 1, min(high, len(data)))), draw.choice((4, 8, 28, 72, 200))
            if what == 6:
                at, other = word, other & ~3
            moved = data[other : other + length]
            data[at : at + len(moved)] = moved
        elif kind > 0.9:
            del data[at : at + draw.choice((1, 100, len(data)))]
    return repaired(data) if draw.random() < 0.8 else bytes(data)


def child(library: str, folder: str) -> None:
    """Opens every copy of a folder; its name is written before."""
    from tests.libweft.native import Program, Refused, Tensor, ValueInfo

    class Read(Program):
        """A program whose values are called anything."""

        def value(self, ask: Any, k: int) -> tuple[str, str, list[int]]:
            found = ValueInfo(size=ctypes.sizeof(ValueInfo))
            self.check(ask(self.handle, k, ctypes.byref(found), ctypes.byref(self.error)))
            assert found.name is not None and found.dtype is not None
            return f"{found.code} {found.bits}", "", [found.shape[d] for d in range(found.ndim)]

        def run_numbers(self) -> int:
            """Runs it with small numbers, whatever it takes."""
            ins, outs = [], [Tensor(None, len(shape)) for _, _, shape in self.outputs]
            for name, _, shape in self.inputs:
                code, bits = map(int, name.split())
                sizes = [2 if d < 0 else min(d, 64) for d in shape]
                array = np.ones((*sizes, max(1, bits // 8)), np.uint8) if len(sizes) < 8 else np.ones(1, np.uint8)
                array[..., 1:] = 0
                tensor = Tensor(np.ascontiguousarray(array))
                tensor.raw.code, tensor.raw.bits, tensor.raw.ndim = code, bits, len(shape)
                if len(sizes) >= 8:
                    tensor.shape = (ctypes.c_int64 * len(shape))()
                    tensor.raw.shape = ctypes.addressof(tensor.shape)
                ins.append(tensor)
            code = self.call(ins, outs)
            for tensor in outs:
                self.weft.weft_release(ctypes.c_void_p(tensor.address))
            return code

    seen: dict[str, int] = {}
    for file in sorted(Path(folder).glob("copy*")):
        Path(folder, "current").write_text(file.name)
        try:
            program = Read(file, Path(library))
            found = "read"
            if b"without code" in file.read_bytes():
                found = "run" if program.run_numbers() == 0 else "not run"
            program.close()
            seen[found] = seen.get(found, 0) + 1
        except Refused as refused:
            assert 1 <= refused.code <= 11 and refused.message
            seen[f"code {refused.code}"] = seen.get(f"code {refused.code}", 0) + 1
        except UnicodeDecodeError:
            seen["read"] = seen.get("read", 0) + 1  # a name that is no UTF-8
    print(json.dumps(seen))


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--seconds", type=float)
    ask.add_argument("--copies", type=int)
    ask.add_argument("--library")
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--child", nargs=2)
    given = ask.parse_args()
    if given.child:
        child(*given.child)
        return
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="weft-hostile-") as name:
        folder = Path(name)
        library, environment = (Path(given.library), {}) if given.library else sanitized(folder)
        good = [f.read_bytes() for f in archives(folder)]
        began, count, bad = time.monotonic(), 0, 0
        seen: dict[str, int] = {}
        while (given.copies is None or count < given.copies) and (
            given.seconds is None or time.monotonic() - began < given.seconds
        ):
            batch = folder / "batch"
            batch.mkdir()
            size = BATCH if given.copies is None else min(BATCH, given.copies - count)
            for k in range(size):
                (batch / f"copy{k:03}").write_bytes(changed(draw.choice(good), draw))
            command = [sys.executable, "-m", "tests.libweft.hostile", "--child", str(library), str(batch)]
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600,
                check=False,
            )  # fmt: skip
            if done.returncode != 0:
                bad += 1
                current = (batch / "current").read_text()
                kept = Path(f"hostile-{given.seed}-{count}.weft")
                kept.write_bytes((batch / current).read_bytes())
                print(f"ended by {done.returncode}: kept as {kept}\n{done.stderr[-3000:]}")
            else:
                for k, n in json.loads(done.stdout.splitlines()[-1]).items():
                    seen[k] = seen.get(k, 0) + n
            count += size
            for file in batch.iterdir():
                file.unlink()
            batch.rmdir()
        print(f"{count} copies in {time.monotonic() - began:.0f} s: {seen}; {bad} defects")
        sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
