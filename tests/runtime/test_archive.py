"""Saved executables: load without the compiler, and refuse whatever is not exactly what was saved."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.runtime.archives import forged
from tests.runtime.models import affine, fixed

import weft
from weft.errors import ArchiveError, ExecutionError
from weft_runtime import Executable, archive, cpu_features
from weft_runtime.archive import CODE, MANIFEST, PLAN, WEIGHTS
from weft_runtime.plan import FORMAT_VERSION, ConstantInfo, Manifest
from weft_runtime.support import support

X = np.arange(8, dtype=np.float32).reshape(2, 4)
Y = (X + np.arange(4, dtype=np.float32)) * 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "affine.weft"
    affine().save(path)
    return path


def rewritten(
    source: Path, to: Path, change: Callable[[str, bytes], bytes | None], compression: int = zipfile.ZIP_STORED
) -> Path:
    """`source` with members changed and the zip itself well-formed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(to, "w", compression) as new:
        for info in old.infolist():
            data = change(info.filename, old.read(info))
            if data is not None:
                new.writestr(info.filename, data)
    return to


def with_manifest(source: Path, to: Path, edit: Callable[[dict[str, Any]], object], sign: bool = True) -> Path:
    """`source` with another manifest; `sign`: its code is signed for that."""

    def change(name: str, data: bytes) -> bytes:
        if name != MANIFEST:
            return data
        manifest = json.loads(data)
        edit(manifest)
        return json.dumps(manifest).encode()

    rewritten(source, to, change)
    if sign:
        to.write_bytes(forged(to.read_bytes()))
    return to


def test_round_trip(saved: Path, tmp_path: Path) -> None:
    loaded = Executable.load(saved)
    np.testing.assert_array_equal(loaded(X), Y)
    again = tmp_path / "again.weft"
    loaded.save(again)
    assert again.read_bytes() == saved.read_bytes()  # the same executable gives the same file
    loaded.save(saved.with_suffix(".copy"))
    np.testing.assert_array_equal(Executable.load(again, threads=1)(X), Y)
    assert Executable.load(again, threads=1).threads == 1


def test_loads_without_the_compiler(saved: Path) -> None:
    program = f"""
import sys, numpy as np
from weft_runtime import Executable
exe = Executable.load({str(saved)!r})
y = exe.run({{"x": np.arange(8, dtype=np.float32).reshape(2, 4)}})["y"]
foreign = [m for m in sys.modules if m.split(".")[0] in ("llvmlite", "onnx", "safetensors", "weft_llvm") or m.startswith("weft.")
           and m.split(".")[1] not in ("errors", "dtypes", "forks", "settings", "runtime")]
assert not foreign, foreign
print(y.tolist())
"""  # noqa: E501
    root = str(Path(weft.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(Y.tolist())


def test_weights_are_mapped_and_aligned(saved: Path, tmp_path: Path) -> None:
    content = archive.load(saved)
    c = content.constants["c"]
    assert c.ctypes.data % 64 == 0 and not c.flags.writeable
    with zipfile.ZipFile(saved) as z:
        (tmp_path / "w.safetensors").write_bytes(z.read(WEIGHTS))
    np.testing.assert_array_equal(load_file(tmp_path / "w.safetensors")["c"], c)


def test_every_kind_of_constant(tmp_path: Path) -> None:
    base = affine()
    given: dict[str, np.ndarray] = {
        "c": np.arange(4, dtype=np.float32),
        "half": np.ones((3, 5), ml_dtypes.bfloat16),
        "quarter": np.arange(7).astype(ml_dtypes.int4),
        "empty": np.empty((0, 3), np.int64),
        "scalar": np.array(True),
        "ünïcode": np.full(3, 2 + 1j, np.complex64),
    }
    manifest = base.manifest.with_(constants=tuple(ConstantInfo(k, str(v.dtype), v.shape) for k, v in given.items()))
    path = tmp_path / "kinds.weft"
    Executable(manifest, base._code, given).save(path)
    found = archive.load(path).constants
    assert list(found) == list(given)
    for name, value in given.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        np.testing.assert_array_equal(
            found[name].view(np.uint8) if value.ndim else found[name], value.view(np.uint8) if value.ndim else value
        )
        assert found[name].ctypes.data % 64 == 0 or value.size == 0
    with zipfile.ZipFile(path) as z:
        (tmp_path / "w.safetensors").write_bytes(z.read(WEIGHTS))
    assert "weft.padding.16" in load_file(tmp_path / "w.safetensors")


def test_without_constants(tmp_path: Path) -> None:
    fixed().save(tmp_path / "fixed.weft")
    np.testing.assert_array_equal(
        Executable.load(tmp_path / "fixed.weft")(np.ones((2, 3), np.float32)), np.full((2, 3), 2)
    )


def test_inspect_and_expect(saved: Path) -> None:
    manifest = Executable.inspect(saved)
    assert (
        manifest.name == "affine"
        and manifest.sections["cpu"].entries["run"] == 0
        and manifest.sections["cpu"].plugin == "weft-llvm"
    )
    digest = hashlib.sha256(saved.read_bytes()).hexdigest()
    Executable.load(saved, expect="sha256:" + digest)
    with pytest.raises(
        ArchiveError, match=rf"is not the expected file\n  why: its hash is sha256:{digest}, expected sha256:0000"
    ):
        Executable.load(saved, expect="sha256:" + "0" * 64)
    with pytest.raises(
        ArchiveError, match="'md5:1' is no hash to expect\n  hint: write sha256: and 64 hexadecimal digits"
    ):
        Executable.load(saved, expect="md5:1")


def test_byte_flips(saved: Path, tmp_path: Path) -> None:
    """A flipped byte of any section, or of the manifest, is found; elsewhere in the file it is found or does no
    harm."""
    data = saved.read_bytes()
    path = tmp_path / "flipped.weft"
    with zipfile.ZipFile(saved) as z:
        sizes = {
            i.filename: (i.header_offset + 30 + sum(struct.unpack_from("<HH", data, i.header_offset + 26)), i.file_size)
            for i in z.infolist()
        }
    assert set(sizes) == {PLAN, MANIFEST, CODE + "cpu", WEIGHTS}
    rng = np.random.default_rng(0)
    for begin, size in sizes.values():
        for at in {begin, begin + size - 1, *(begin + int(k) for k in rng.integers(0, size, 12))}:
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :])
            with pytest.raises(ArchiveError):
                Executable.load(path)
    for at in rng.integers(0, len(data), 60):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        try:
            content = archive.load(path)
        except ArchiveError:
            continue
        assert content.code == archive.load(saved).code


def test_truncated_anywhere(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    path = tmp_path / "short.weft"
    for size in {
        0,
        1,
        4,
        30,
        100,
        len(data) - 1,
        len(data) - 22,
        *map(int, np.random.default_rng(1).integers(0, len(data), 40)),
    }:
        path.write_bytes(data[:size])
        with pytest.raises(ArchiveError, match=r"truncated or corrupt|is empty|is no Weft archive"):
            Executable.load(path)
    path.write_bytes(data[: len(data) // 2] + data[len(data) // 2 + 100 :])
    with pytest.raises(ArchiveError):
        Executable.load(path)


def test_messages(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.weft"

    def refuses(message: str, make: Callable[[], object] = lambda: None) -> None:
        make()
        with pytest.raises(ArchiveError, match=message):
            Executable.load(path)

    refuses("cannot open .*bad.weft\n  why: No such file")
    refuses("is empty\n  hint: the file was cut short", lambda: path.write_bytes(b""))
    refuses(
        "is no Weft archive\n  why: it does not start as a zip\n  hint: a saved executable is written by",
        lambda: path.write_bytes(b"\x7fELF" + bytes(99)),
    )
    refuses(
        "is no Weft archive\n  why: it has no manifest.json",
        lambda: rewritten(saved, path, lambda n, d: None if n == MANIFEST else d),
    )
    refuses(
        "lacks 'code/cpu', which its manifest names",
        lambda: rewritten(saved, path, lambda n, d: None if n == CODE + "cpu" else d),
    )
    refuses(
        r"why: 'code/cpu' has \d+ bytes, its manifest says \d+",
        lambda: rewritten(saved, path, lambda n, d: d + b"x" if n == CODE + "cpu" else d),
    )
    refuses(
        "is corrupt\n  why: the hash of 'code/cpu' is not the one",
        lambda: rewritten(saved, path, lambda n, d: d[:-1] + b"x" if n == CODE + "cpu" else d),
    )
    refuses(
        "the hash of 'weights.safetensors' is not",
        lambda: rewritten(saved, path, lambda n, d: d[:-1] + b"x" if n == WEIGHTS else d),
    )
    refuses(
        "holds 'plan' compressed or encrypted",
        lambda: rewritten(saved, path, lambda n, d: d, zipfile.ZIP_DEFLATED),
    )
    refuses(
        "has an unreadable manifest\n  why: ", lambda: rewritten(saved, path, lambda n, d: b"{" if n == MANIFEST else d)
    )

    def add(name: str) -> None:
        shutil.copy(saved, path)
        with zipfile.ZipFile(path, "a") as z:
            z.writestr(name, b"more")

    refuses("holds 'evil.py', which is no part of a Weft archive", lambda: add("evil.py"))
    refuses("holds 'code/other', which its manifest does not name", lambda: add("code/other"))
    with pytest.warns(UserWarning, match="Duplicate name"):
        add(MANIFEST)
    refuses("holds 'manifest.json' twice")


def test_manifest_messages(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.weft"

    def refuses(message: str, edit: Callable[[dict[str, Any]], object]) -> None:
        with_manifest(saved, path, edit)
        with pytest.raises(ArchiveError, match=message):
            Executable.load(path)

    refuses(
        rf"was written by a newer Weft\n  why: its format is {FORMAT_VERSION + 1}, this Weft reads up to"
        rf" {FORMAT_VERSION}\n  hint: upgrade",
        lambda m: m.update(format=FORMAT_VERSION + 1),
    )
    refuses(
        rf"was written by an older Weft\n  why: its format is 1, this Weft reads {FORMAT_VERSION}\n  hint: compile the"
        r" model again",
        lambda m: m.update(format=1),
    )
    # Of format 5, whose sizes are text.
    refuses(
        "was written by an older Weft\n  why: its format is 5, this Weft reads 7\n  hint: compile the model again",
        lambda m: (m.update(format=5), m["inputs"][0].update(shape=["n", 4])),
    )
    refuses("has a malformed manifest\n  why: 'format' should be an integer", lambda m: m.update(format="1"))
    refuses("'target' should be text, got None", lambda m: m.pop("target"))
    refuses("'features' should be a list", lambda m: m.update(features="avx2"))
    refuses("'sections' should be an object", lambda m: m.update(sections=[]))
    refuses(
        r"'inputs\[0\].dtype' should be an element type, got 'float33'",
        lambda m: m["inputs"][0].update(dtype="float33"),
    )
    refuses(
        r"'inputs\[0\].dtype' should be an element type, got 'float32x8'",
        lambda m: m["inputs"][0].update(dtype="float32x8"),
    )
    refuses(r"'inputs\[0\].shape' should be an integer from 0", lambda m: m["inputs"][0].update(shape=[-1]))
    refuses(r"'inputs\[0\].shape' should be at most 64 dimensions", lambda m: m["inputs"][0].update(shape=[1] * 65))
    refuses(
        r"'inputs\[0\].shape' should be postfix code \('n \* 2' is no code of a formula: 'n' is no operator, symbol or"
        r" integer of 64 bits\), got 'n \* 2'",
        lambda m: m["inputs"][0].update(shape=["n * 2"]),
    )
    refuses(
        r"'inputs\[0\].shape' should be postfix code \('\$1' .*: there are 1 symbols, and no \$1\)",
        lambda m: m["inputs"][0].update(shape=["$1"]),
    )
    refuses("'names' should be a list, got None", lambda m: m.pop("names"))
    refuses("'names' should be names without backquotes, got 'a`b'", lambda m: m.update(names=["a`b"]))
    refuses(r"'inputs\[0\].shape' should be text, got 3", lambda m: m["inputs"][0].update(shape=[{"text": 3}]))
    refuses(r"'constants\[0\].shape' should be constant", lambda m: m["constants"][0].update(shape=["$0"]))
    refuses(
        r"'steps\[0\].kind' should be one of native, copy, device, host, if, loop, got 'python'",
        lambda m: m["steps"][0].update(kind="python"),
    )
    refuses(
        r"'sections\[cpu\].entries\[run\]' should be an integer from 0 to",
        lambda m: m["sections"]["cpu"]["entries"].update(run=1 << 40),
    )
    refuses(
        r"'sections\[cpu\].sha256' should be 64 hexadecimal digits", lambda m: m["sections"]["cpu"].update(sha256="zz")
    )
    refuses("has a malformed manifest\n  why: no step gives the output", lambda m: m.update(steps=[]))
    refuses("has an unreadable manifest\n  why: .*surrogates not allowed", lambda m: m.update(name="\ud800"))
    refuses(r"'steps\[0\].checks\[7\]' should be two texts", lambda m: m["steps"][0].update(checks={"7": ["one"]}))
    refuses("'checks' should be an integer", lambda m: m["steps"][0].update(checks={"x": ["a", "b"]}))
    refuses("why: step 0 names cpu:other, which no section has", lambda m: m["steps"][0].update(entry="other"))
    refuses("'parallel' should be true or false, got 'pool'", lambda m: m.update(parallel="pool"))
    refuses("why: it lists constants and no weights", lambda m: m.update(weights=None))
    refuses("has no weights 'd'", lambda m: (m["constants"][0].update(name="d"), m["steps"][0].update(constants=["d"])))
    refuses("why: step 0 names 'd', which is no constant of the plan", lambda m: m["steps"][0].update(constants=["d"]))
    refuses(r"'c' needs 20 bytes, its place is 0 … 16 of 16", lambda m: m["constants"][0].update(shape=[5]))
    refuses("holds code for riscv64, this machine is", lambda m: m.update(machine="riscv64"))
    refuses(
        "needs CPU features that this machine lacks: flux\n  why: it was made for target 'llvm'\n  hint: compile it for"
        " this machine",
        lambda m: m.update(features=["flux"]),
    )


# Each asks for memory that the code does not expect, or gives it less than it takes for granted.
OTHER_MANIFESTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "an input of another type": lambda m: m["inputs"][0].update(dtype="float64"),
    "an input of another rank": lambda m: m["inputs"][0].update(shape=["$0"]),
    "an input of other sizes": lambda m: m["inputs"][0].update(shape=["$0", 2]),
    "an input more": lambda m: (
        m["inputs"].append({**m["inputs"][0], "name": "z"}),
        m["steps"][0]["inputs"].append("z"),
    ),
    "an input less": lambda m: (m["inputs"].clear(), m["steps"][0]["inputs"].clear()),
    "an input of another name": lambda m: (m["inputs"][0].update(name="z"), m["steps"][0].update(inputs=["z"])),
    "an output of a narrower type": lambda m: m["outputs"][0].update(dtype="int8"),
    "an output of fewer dimensions": lambda m: m["outputs"][0].update(shape=["$0"]),
    "a smaller output": lambda m: m["outputs"][0].update(shape=["$0", 1]),
    "a constant of a narrower type": lambda m: m["constants"][0].update(dtype="int8", shape=[16]),
    "a constant of fewer elements": lambda m: m["constants"][0].update(shape=[2, 2]),
    "a constant less": lambda m: m["steps"][0].update(constants=[]),
    "other weights": lambda m: m["weights"].update(sha256="0" * 64),
    "another entry": lambda m: m["sections"]["cpu"]["entries"].update(run=1),
    "fewer CPU features": lambda m: m.update(features=["sse2"]),
    "no parallel loops": lambda m: m.update(parallel=False),
}


@pytest.mark.parametrize("edit", OTHER_MANIFESTS.values(), ids=OTHER_MANIFESTS)
def test_code_goes_with_the_manifest_that_it_was_saved_with_alone(
    saved: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    path = with_manifest(saved, tmp_path / "other.weft", edit, sign=False)
    with pytest.raises(ArchiveError) as error:
        Executable.load(path)
    assert (
        str(error.value)
        == f"{path} holds code that does not go with its manifest\n  why: 'code/cpu' was made for another manifest,"
        " with other inputs, outputs, constants or steps\n  hint: save or copy it again"
    )


def test_code_of_another_model_is_refused(saved: Path, tmp_path: Path) -> None:
    """Also with the hash of that code in the manifest."""
    affine(np.zeros(4, np.float32)).save(tmp_path / "zeros.weft")
    with zipfile.ZipFile(tmp_path / "zeros.weft") as z:
        code = z.read(CODE + "cpu")
    assert code[:-32] == archive.load(saved).code["cpu"], (
        "models that differ in weights alone have the same code, and each its own signature"
    )
    path = rewritten(saved, tmp_path / "swapped.weft", lambda n, d: code if n == CODE + "cpu" else d)
    path = with_manifest(
        path,
        tmp_path / "hashed.weft",
        lambda m: m["sections"]["cpu"].update(sha256=hashlib.sha256(code).hexdigest()),
        sign=False,
    )
    with pytest.raises(ArchiveError, match="holds code that does not go with its manifest"):
        Executable.load(path)


def test_a_copy_does_not_change_with_its_file(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "changing.weft"
    shutil.copy(saved, path)
    whole = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    exes = [Executable.load(path), Executable.load(path, whole), Executable.load(path, copy=True)]
    mapped = Executable.load(path, copy=False)
    with path.open("r+b") as file:  # as `cp` over it does; `save` and `mv` put another file in its place
        at = path.read_bytes().index(np.float32(3).tobytes())
        file.seek(at)
        file.write(np.float32(7).tobytes())
    assert mapped(X)[0, 3] == (3 + 7) * 2, "what is mapped is the file"
    for exe in exes:
        np.testing.assert_array_equal(exe(X), Y)
    os.truncate(path, 0)
    for exe in exes:
        np.testing.assert_array_equal(exe(X), Y)


@pytest.mark.parametrize(("copy", "ends"), [(None, 0), (True, 0), (False, -signal.SIGBUS)])
def test_a_file_that_is_cut_short_while_it_is_in_use(saved: Path, tmp_path: Path, copy: bool | None, ends: int) -> None:
    """What is mapped ends the process, as the documentation says."""
    path = tmp_path / "short.weft"
    shutil.copy(saved, path)
    program = f"""
import os, numpy as np
from weft_runtime import Executable
exe = Executable.load({str(path)!r}, copy={copy})
os.truncate({str(path)!r}, 0)
assert exe(np.ones((2, 4), np.float32)).shape == (2, 4)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, stderr=subprocess.DEVNULL).returncode == ends


def test_large_files_are_mapped_unless_a_copy_is_wanted(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mapped(copy: bool | None) -> bool:
        base = archive.load(saved, copy=copy).constants["c"]
        with open("/proc/self/maps") as file:
            for line in file:
                begin, end = (int(x, 16) for x in line.split()[0].split("-"))
                if begin <= base.ctypes.data < end:
                    return str(saved) in line
        raise AssertionError("it lies nowhere")

    assert (mapped(None), mapped(True), mapped(False)) == (False, False, True)
    monkeypatch.setattr(archive, "COPIED", saved.stat().st_size - 1)
    assert (mapped(None), mapped(True), mapped(False)) == (True, False, True)


def test_a_file_that_changes_while_it_is_copied(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "growing.weft"
    for size in (-1, 1):
        shutil.copy(saved, path)
        real = os.fstat
        monkeypatch.setattr(
            archive.os, "fstat", lambda fd, real=real, size=size: SimpleNamespace(st_size=real(fd).st_size + size)
        )
        with pytest.raises(ArchiveError, match=r"growing.weft has changed while it was read\n  hint: load it again"):
            Executable.load(path)
        monkeypatch.undo()


def test_nothing_of_a_file_runs_while_it_is_loaded(saved: Path, tmp_path: Path) -> None:
    """Its code is replaced by instructions that end the process, signed and hashed: to load it, show it and save it
    does no harm, to run it does."""
    trap = {"x86_64": b"\x0f\x0b", "aarch64": bytes(4)}[cpu_features.machine()]
    path = rewritten(
        saved,
        tmp_path / "trap.weft",
        lambda n, d: trap * (len(d) // len(trap)) + bytes(len(d) % len(trap)) if n.startswith(CODE) else d,
    )
    path.write_bytes(forged(path.read_bytes()))
    program = f"""
import sys, numpy as np
from weft_runtime import Executable
exe = Executable.load({str(path)!r}, threads=2)
Executable.inspect({str(path)!r}).plan(), exe.plan, repr(exe), exe.save({str(tmp_path / "again.weft")!r})
print("loaded", flush=True)
exe(np.ones((2, 4), np.float32))
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stdout == "loaded\n" and done.returncode == -signal.SIGILL, done.stderr


def test_no_archive_brings_the_pool_of_the_process(saved: Path) -> None:
    with zipfile.ZipFile(saved) as z:
        assert b"parallel_for" not in z.read(MANIFEST) and CODE + "pool" not in z.namelist()
    exe = Executable.load(saved, threads=2)
    np.testing.assert_array_equal(exe(X), Y)
    code = exe._segments[0]._free[0].context.parallel_for
    assert code == support().address("parallel_for")


def test_weights_messages(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.weft"

    def refuses(message: str, weights: bytes) -> None:
        rewritten(saved, path, lambda n, d: weights if n == WEIGHTS else d)

        def edit(m: dict[str, Any]) -> None:
            m["weights"].update(sha256=archive.hash_pieces([weights])[0], bytes=len(weights))

        with_manifest(path, tmp_path / "edited.weft", edit)
        with pytest.raises(ArchiveError, match=message):
            Executable.load(tmp_path / "edited.weft")

    def entry(**fields: object) -> bytes:
        header = json.dumps({"c": fields}).encode()
        return struct.pack("<Q", len(header)) + header + bytes(16)

    refuses("has truncated weights", b"abc")
    refuses("has malformed weights\n  why: a header of 999 bytes", struct.pack("<Q", 999) + bytes(20))
    refuses("has malformed weights\n  why: ", struct.pack("<Q", 2) + b"{x" + bytes(20))
    refuses("has no weights 'c'", entry(data_offsets=[0]))
    refuses("'c' needs 16 bytes, its place is 0 … 17 of 16", entry(data_offsets=[0, 17]))
    refuses("its place is -16 … 0", entry(data_offsets=[-16, 0]))


def test_trusted_weights_are_not_hashed(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rewritten(saved, tmp_path / "w.weft", lambda n, d: d[:-1] + b"\0" if n == WEIGHTS else d)
    path = rewritten(saved, tmp_path / "w.weft", lambda n, d: d[:-4] + np.float32(7).tobytes() if n == WEIGHTS else d)
    monkeypatch.setenv("WEFT_VERIFY_WEIGHTS", "0")
    assert Executable.load(path)(X)[0, 3] == (3 + 7) * 2
    broken = rewritten(saved, tmp_path / "c.weft", lambda n, d: d[:-1] + b"x" if n == CODE + "cpu" else d)
    with pytest.raises(ArchiveError, match="the hash of 'code/cpu'"):  # code is always checked
        Executable.load(broken)


def test_weights_are_hashed_in_pieces(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes((9 << 20) + 5)
    leaves = b"".join(hashlib.sha256(data[at : at + (4 << 20)]).digest() for at in range(0, len(data), 4 << 20))
    # However the bytes come, pieces are of 4 MiB.
    for cuts in ([], [1], [4 << 20, 5 << 20], [0, (8 << 20) - 1, 8 << 20]):
        ends = [*cuts, len(data)]
        parts = [data[a:b] for a, b in zip([0, *ends], ends)]
        assert archive.hash_pieces(parts) == (hashlib.sha256(leaves).hexdigest(), len(data))
    large = np.arange(3 << 20, dtype=np.float32)  # three pieces
    base = affine()
    constants = {"c": np.arange(4, dtype=np.float32), "large": large}
    manifest = base.manifest.with_(
        constants=tuple(ConstantInfo(k, str(v.dtype), v.shape) for k, v in constants.items())
    )
    path = tmp_path / "large.weft"
    Executable(manifest, base._code, constants).save(path, durable=False)
    np.testing.assert_array_equal(archive.load(path).constants["large"], large)
    content = bytearray(path.read_bytes())
    for k in (1 << 20, 2 << 20, (3 << 20) - 1):
        at = content.index(large[k : k + 1].tobytes(), 4 * k)
        damaged = content.copy()
        damaged[at] ^= 1
        (tmp_path / "damaged.weft").write_bytes(damaged)
        with pytest.raises(ArchiveError, match=r"the hash of 'weights\.safetensors' is not"):
            archive.load(tmp_path / "damaged.weft")


def test_saving_is_atomic(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match=r"cannot write .*missing.*\n  why: there is no folder '.*missing'$"):
        affine().save(tmp_path / "missing" / "x.weft")
    with pytest.raises(ExecutionError, match="cannot write /dev/null\n  why: '/dev/null' is no file"):
        affine().save("/dev/null")
    exe = Executable.load(saved)
    target = tmp_path / "model.weft"
    exe.save(target)
    other = Executable.load(target)
    affine(np.full(4, 9, np.float32)).save(target)  # replaced while mapped: the old one keeps its file
    np.testing.assert_array_equal(other(X), Y)
    np.testing.assert_array_equal(Executable.load(target)(X), (X + 9) * 2)
    assert os.listdir(tmp_path) == ["model.weft"]
    assert target.stat().st_mode & 0o777 == saved.stat().st_mode & 0o777


def test_manifest_round_trip(saved: Path) -> None:
    manifest = Executable.inspect(saved)
    assert Manifest.from_json(manifest.to_json(), "here") == manifest


def test_cpu_features(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "flags\t\t: fpu avx2 fma sse4_1 nonsense\n\nflags\t\t: fpu avx2 sse4_1\n"
    assert cpu_features.parse_cpuinfo(text, "x86_64") == {"avx2", "sse4.1"}
    assert cpu_features.parse_cpuinfo("Features\t: fp asimd asimddp\n", "aarch64") == {"fp-armv8", "neon", "dotprod"}
    arm = "Features\t: half thumb neon vfpv3 vfpv4 vfpd32 idiva\n"
    assert cpu_features.parse_cpuinfo(arm, "arm") == {"neon", "vfp3d16", "vfp4d16", "fp16", "d32", "hwdiv-arm"}
    assert cpu_features.parse_cpuinfo("isa\t: rv64imafdcv_zicsr_zba\n", "riscv64") == {*"mafdcv", "zba"}
    both = "isa\t: rv64gcv\n\nisa\t: rv64gc_zbb\n"
    assert cpu_features.parse_cpuinfo(both, "riscv64") == {*"mafdc"}, "what all of its processors have"
    ibm = cpu_features.parse_cpuinfo("facilities      : 0 1 37 129 135\n", "s390x")
    assert ibm == {"fp-extension", "vector", "vector-enhancements-1"}
    for name in ("x86_64", "i386", "aarch64", "arm", "riscv32", "riscv64", "s390x"):
        assert cpu_features.known_features(name) and cpu_features.known_features("mips") == frozenset()
    assert cpu_features.known_features("x86_64-windows") == cpu_features.known_features("x86_64")
    assert cpu_features.missing_features(["flux"]) == ("flux",)
    assert cpu_features.host_features() <= cpu_features.known_features()


def test_cpu_features_agree_with_llvm() -> None:
    from llvmlite import binding

    llvm = {name for name, on in binding.get_host_cpu_features().items() if on}
    names = set(binding.get_host_cpu_features())
    told = cpu_features.host_features() & names
    # Linux says nothing of an instruction that it has turned off: rdseed of processors where it is broken.
    assert told <= llvm and (llvm & cpu_features.known_features()) - told <= {"rdseed"}
