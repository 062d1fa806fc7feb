"""Changed copies of archives for libweft: each is refused with a code, or read; nothing crashes.

python -m tests.libweft.hostile --seconds 3600                  libweft with an address sanitizer, built by gcc
python -m tests.libweft.hostile --copies 400 --library FILE     another build

Code sections are never executed: where a changed copy is opened, its values are asked for and it is closed. The work is
done by processes that are watched: one that ends by a signal is a defect, and its copy is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
BATCH = 200


def sanitized(folder: Path) -> tuple[Path, dict[str, str]]:
    """libweft with gcc's address and undefined-behaviour sanitizers, and the environment in which Python loads it."""
    from libweft import build

    from weft_runtime.cpu_features import machine

    out = folder / "libweft-asan.so"
    command = [
        "gcc", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-std=gnu99", "-fPIC",
        "-shared", *build.include_flags(), *build.pool_flags(machine()), "library.c", "surroundings.c", "-o", str(out),
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
    from weft_testing.models import lstm, mlp

    made = []
    for k, model in enumerate((mlp(), lstm(), onnx_model(LOOP), onnx_model(SCAN))):
        made.append(folder / f"good{k}.weft")
        weft.compile(model, "llvm").save(made[-1])
    return made


def repaired(data: bytearray) -> bytes:
    """The copy with the hashes that its changed sections have, so that what lies behind them is reached."""
    import hashlib
    import io
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
            places = {}
            for info in archive.infolist():
                name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
                places[info.filename] = (info.header_offset + 30 + name + extra, info.file_size, info.header_offset)
        at, size, local = places["manifest.json"]
        text = bytes(data[at : at + size])
        manifest = json.loads(text)
        if manifest.get("weights"):
            begin, length, _ = places["weights.safetensors"]
            weights = data[begin : begin + length]
            pieces = [weights[k : k + (4 << 20)] for k in range(0, length, 4 << 20)]
            whole = hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in pieces)).hexdigest()
            text = text.replace(manifest["weights"]["sha256"].encode(), whole.encode())
        changed = text
        for section in manifest.get("sections", {}).values():
            own = rb'("sha256": )"%s"(,\s*"bytes": )\d+' % re.escape(section["sha256"].encode())
            changed = re.sub(own, rb'\1""\g<2>0', changed)
        signature = hashlib.sha256(b"weft abi 2\n" + changed).digest()
        for name, section in manifest.get("sections", {}).items():
            begin, length, _ = places["code/" + name]
            data[begin + length - 32 : begin + length] = signature
            digest = hashlib.sha256(data[begin : begin + length]).hexdigest()
            text = text.replace(section["sha256"].encode(), digest.encode())
        if len(text) == size:
            data[at : at + size] = text
            struct.pack_into("<I", data, local + 14, zlib.crc32(text))
    except Exception:  # noqa: BLE001  # what is no archive any more stays as it is
        pass
    return bytes(data)


def changed(good: bytes, draw: random.Random) -> bytes:
    """A copy with a few bytes or numbers changed, parts cut, doubled or moved; or words of its manifest changed."""
    data = bytearray(good)
    kind = draw.random()
    begin = good.index(b'"format"')
    end = good.index(b"PK", begin)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        low, high = (begin, end) if kind < 0.6 else (0, len(data))
        at = min(draw.randrange(low, max(low + 1, min(high, len(data)))), len(data) - 1)
        what = draw.randrange(7)
        if what == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif what == 1:
            data[at] = draw.randrange(256)
        elif what == 2:
            data[at : at + 8] = struct.pack("<q", draw.choice((0, -1, 1 << 31, 1 << 47, (1 << 63) - 1)))
        elif what == 3:
            digits = draw.choice((b"0", b"9", b"-1", b"99", b"4294967296", b"9223372036854775807"))
            data[at : at + len(digits)] = digits
        elif what == 4:
            data[at : at + 4] = draw.choice((b"null", b"[[[[", b'{"a"', b'""""', b"true", b"\\u00", b"    "))
        elif what == 5:
            other = draw.randrange(low, max(low + 1, min(high, len(data))))
            size = draw.choice((1, 4, 30, 200))
            data[at : at + size] = data[other : other + size]
        elif kind > 0.9:
            del data[at : at + draw.choice((1, 100, len(data)))]
    return repaired(data) if draw.random() < 0.7 else bytes(data)


def child(library: str, folder: str) -> None:
    """Opens every copy of a folder; its name is written before."""
    from tests.libweft.native import Program, Refused

    seen: dict[str, int] = {}
    for file in sorted(Path(folder).glob("copy*")):
        Path(folder, "current").write_text(file.name)
        try:
            Program(file, Path(library)).close()
            seen["read"] = seen.get("read", 0) + 1
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
