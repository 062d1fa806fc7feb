"""Changed copies of a model: each must be refused with a proper error or read, in bounded time and memory.

    check_changed_bytes(Path("m.tflite"), count=500)
    python -m weft_testing.changed m.tflite --seconds 600

A model may be several files: a folder, or a file and those beside it that its frontend reads with it (weights). Each
copy has one of them changed. Every copy has a number, from which it is made again: `--seed 1 --again 17`.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import weft
from weft.errors import PluginError, WeftError, from_signal
from weft.loading import model_files
from weft_testing.structures import changed_flatbuffer, changed_json, changed_message, changed_text

SECONDS, MEGABYTES = 10, 4096
"""What reading a changed model may take: seconds of processor time, and six times as long in all."""

_LARGE = 1 << 16
"""Bytes of a file most of which are weights."""
_NUMBERS = tuple(
    number.to_bytes(size, order)
    for size in (2, 4, 8)
    for number in (0, 1, 0x7F, 0xFF, (1 << (8 * size - 1)) - 1, 1 << (8 * size - 1), (1 << (8 * size)) - 1)
    for order in ("little", "big")
)
_WORDS = (b"0", b"-1", b"999999999999", b"1e308", b"null", b"[]", b'""', b"nan", b"true", b"{}")


def change(data: bytes, rng: random.Random) -> bytes:
    """A file with one to four changes. Of JSON, protocol buffers, FlatBuffers and texts usually what they describe is
    changed, and the form stays whole; of an archive a member, and its checksum is right. Else bytes, numbers, words
    are changed, parts cut, doubled or moved."""
    if data[:4] == b"PK\3\4" and rng.random() < 0.8:
        changed = _changed_member(data, rng)
        if changed is not None:
            return changed
    if rng.random() < 0.7:
        for form in (changed_json, changed_flatbuffer, changed_message, changed_text):
            changed = form(data, rng)
            if changed is not None:
                return changed
    result = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not result:
            break
        at = _place(len(result), rng)
        kind = rng.randrange(8)
        if kind == 0:
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            result[at] = rng.randrange(256)
        elif kind == 2:
            number = rng.choice(_NUMBERS)
            result[at : at + len(number)] = number
        elif kind == 3:
            del result[at : at + rng.choice((1, 4, 16, 256))]
        elif kind == 4:
            end = at + rng.choice((1, 4, 16, 256))
            result[at:at] = result[at:end]
        elif kind == 5:
            del result[at:]
        elif kind == 6:
            other, size = rng.randrange(len(result)), rng.choice((4, 16, 64))
            result[at : at + size] = result[other : other + size]
        else:
            found = list(re.finditer(rb"-?\d+(\.\d+)?", bytes(result[at : at + 4096])))
            if found:
                start, end = found[0].span()
                result[at + start : at + end] = rng.choice(_WORDS)
    return bytes(result)


def _place(size: int, rng: random.Random) -> int:
    """Where to change a file: what describes a large one is usually near its beginning or its end."""
    if size < _LARGE or rng.random() < 0.5:
        return rng.randrange(size)
    near = min(int(size ** rng.random()), size) - 1
    return near if rng.random() < 0.5 else size - 1 - near


def _changed_member(data: bytes, rng: random.Random) -> bytes | None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, ValueError, OSError):
        return None
    if not members:
        return None
    # Small members describe the model; large ones are weights.
    weights = [1 / (1 + len(content)) ** 0.5 for _, content in members]
    (chosen,) = rng.choices(range(len(members)), weights)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for k, (info, content) in enumerate(members):
            archive.writestr(info, change(content, rng) if k == chosen else content)
    return sink.getvalue()


@dataclass(frozen=True)
class Finding:
    """A changed file that was not refused properly: number `index` of the seed, and what happened."""

    index: int
    what: str


def changed_model(model: Path, seed: int, index: int, folder: Path, beside: Sequence[Path] = ()) -> Path:
    """Number `index` of the changed models of a seed, written into a folder: the path of the copy.

    Args:
        beside: further files of a model that is a file, from its folder or below.
    """
    rng = random.Random(seed * 1_000_003 + index)
    if not model.is_dir() and not beside:
        path = folder / model.name
        path.write_bytes(change(model.read_bytes(), rng))
        return path
    copy = folder / model.name
    if model.is_dir():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(model, copy)
        chosen = rng.choice(sorted(p for p in copy.rglob("*") if p.is_file()))
    else:
        for file in (model, *beside):
            target = folder / file.relative_to(model.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        chosen = folder / rng.choice((model, *beside)).relative_to(model.parent)
    chosen.write_bytes(change(chosen.read_bytes(), rng))
    return copy


def files_beside(model: Path, frontend: str | None = None) -> list[Path]:
    """The further files of a model that is a file, which lie beside or below it and are found without options."""
    if model.is_dir():
        return []
    folder = model.absolute().parent
    found = model_files(model, frontend)[1:]
    return [model.parent / file.relative_to(folder) for file in found if file.is_relative_to(folder) and file.is_file()]


def read_changed(path: Path, frontend: str | None = None) -> str | None:
    """What is wrong with how a changed model is refused; None: nothing, or it was read."""
    try:
        weft.load(path, frontend=frontend)
    except PluginError as error:
        return f"PluginError: {error}"
    except WeftError as error:
        return None if str(error).strip() else f"{type(error).__name__} without a text"
    except Exception as error:  # what a frontend must not let out
        if from_signal(error):
            raise
        return traceback.format_exc(limit=-6)
    return None


def check_changed_bytes(
    model: Path, *, frontend: str | None = None, count: int | None = None, seconds: float | None = None, seed: int = 1
) -> int:
    """Reads changed copies of a model in processes of their own, `count` of them or as many as `seconds` allow.

    Returns:
        How many were read.

    Raises:
        AssertionError: one ended in an exception that is no error of Weft, a crash, or took more than 10 seconds
            (of processor time) or 4 GiB.
        ValueError: neither a count nor seconds are given.
    """
    found: list[Finding] = []
    total = 0
    for number, finding in _changed(model, frontend, count, seconds, seed):
        total = number
        if finding is not None:
            found.append(finding)
    if found:
        listed = "\n".join(f"--- number {f.index} of seed {seed}\n{f.what}" for f in found[:5])
        raise AssertionError(f"{len(found)} of {total} changed files were not refused properly\n{listed}")
    return total


def _changed(
    model: Path, frontend: str | None, count: int | None, seconds: float | None, seed: int
) -> Iterator[tuple[int, Finding | None]]:
    """(How many were read so far, a finding or None), for each changed model."""
    if count is None and seconds is None:
        raise ValueError("neither a count nor seconds are given")
    end = None if seconds is None else time.monotonic() + seconds
    index = 0
    while (count is None or index < count) and (end is None or time.monotonic() < end):
        command = [
            sys.executable,
            "-m",
            "weft_testing.changed",
            str(model),
            "--child",
            str(index),
            "--seed",
            str(seed),
        ]
        command += [] if frontend is None else [f"--frontend={frontend}"]
        command += [] if count is None else ["--count", str(count)]
        command += [] if end is None else ["--seconds", str(max(end - time.monotonic(), 1))]
        with (
            tempfile.TemporaryFile("w+", errors="replace") as errors,  # a pipe that nobody reads fills up
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
        ):
            assert child.stdout is not None
            begun = None
            for line in child.stdout:
                word, _, rest = line.rstrip("\n").partition(" ")
                if word == "begin":
                    begun = int(rest)
                elif word == "end":
                    index, begun = int(rest) + 1, None
                    yield index, None
                elif word == "found":
                    number, _, what = rest.partition(" ")
                    index, begun = int(number) + 1, None
                    yield index, Finding(int(number), what.replace("\\n", "\n"))
            code = child.wait()
            errors.seek(0)
            said = errors.read()[-2000:]
        if begun is not None:
            index = begun + 1
            why = f"it took more than {SECONDS} s" if code == -signal.SIGXCPU else f"the process ended with {code}"
            yield index, Finding(begun, f"{why}: {said}")
        elif code:
            raise AssertionError(f"the reading process failed with {code}: {said}")
        elif count is None and end is None:
            return


@contextmanager
def _limits() -> Iterator[None]:
    """Ends the process, native code as well, when one model takes too long."""
    faulthandler.register(signal.SIGXCPU, chain=True)  # says where it is, and ends
    faulthandler.dump_traceback_later(6 * SECONDS, exit=True)
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS + 1, most))
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _child(model: Path, options: argparse.Namespace) -> None:
    weft.load(model, frontend=options.frontend)  # imports what reading needs
    limit = MEGABYTES << 20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    end = None if options.seconds is None else time.monotonic() + options.seconds
    index, beside = options.child, files_beside(model, options.frontend)
    with tempfile.TemporaryDirectory() as folder:
        while (options.count is None or index < options.count) and (end is None or time.monotonic() < end):
            path = changed_model(model, options.seed, index, Path(folder), beside)
            print("begin", index, flush=True)
            with _limits():
                wrong = read_changed(path, options.frontend)
            text = "" if wrong is None else wrong.replace("\n", "\\n")
            print(*(("end", index) if wrong is None else ("found", index, text)), flush=True)
            index += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: reads changed copies of a model and prints findings; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m weft_testing.changed", description=main.__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--frontend")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--again", type=int, help="reads the changed model of this number here, and shows where it ends"
    )
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.model.exists():
        parser.error(f"no model '{options.model}'")
    if options.child is not None:
        _child(options.model, options)
        return 0
    if options.again is not None:
        with tempfile.TemporaryDirectory() as folder:
            beside = files_beside(options.model, options.frontend)
            path = changed_model(options.model, options.seed, options.again, Path(folder), beside)
            print(read_changed(path, options.frontend) or "refused properly, or read")
        return 0
    if options.seconds is None and options.count is None:
        options.seconds = 600.0
    total = findings = 0
    for number, finding in _changed(options.model, options.frontend, options.count, options.seconds, options.seed):
        total = number
        if finding is not None:
            findings += 1
            print(
                f"--- number {finding.index} (--seed {options.seed} --again {finding.index})\n{finding.what}",
                flush=True,
            )
    print(f"{total} changed models, {findings} finding(s)")
    return 1 if findings else 0


__all__ = ["MEGABYTES", "SECONDS", "Finding", "change", "check_changed_bytes"]

if __name__ == "__main__":
    sys.exit(main())
