"""Coverage-guided fuzz runs: one process feeds a target with inputs, another starts it again after whatever ends it,
until the time is over.

A finding is an exception that is no WeftError, a WeftError without a text, a crash, a hang of more than ten seconds, or
more than 1 GiB of memory. Each is kept in a folder, the input beside what happened; exceptions that were raised at one
place are one finding.

Needs `atheris` (the extra `fuzz`), which instruments the sources as they are imported. Inputs are made by libFuzzer's
mutations and by those of the target, which know the format.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS, MEGABYTES = 10, 1024
ROOT = Path(__file__).parents[2]
INSTRUMENTED = ["weft", "weft_frontend", "weft_onnx", "weft_darknet"]
# What libFuzzer writes for an input that ends the process.
ENDS = ("crash-", "timeout-", "oom-")


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Args:
        module: that runs it with `-m`.
        seeds: writes inputs to begin with into a folder.
        one: takes an input; raises what is a finding.
        change: another input made of one, by its format; None if it does not have it.
    """

    module: str
    seeds: Callable[[Path], None]
    one: Callable[[bytes], None]
    change: Callable[[bytes, random.Random], bytes | None]


def main(target: Callable[[], Target], arguments: Sequence[str] | None = None) -> None:
    """The command line of a target, which is made where its imports are instrumented.

    Raises:
        SystemExit: 1 if there are findings.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="of the corpus and the findings; kept, and used again")
    parser.add_argument("--again", type=Path, nargs="*", help="inputs to run once, without the fuzzer")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.again is not None:
        one = target().one
        for path in options.again:
            one(path.read_bytes())
            print(f"{path}: nothing found")
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="weft-fuzz-"))
    corpus, findings = folder / "corpus", folder / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    if options.child:
        _fuzz(target, corpus, findings, options.seconds, options.seed)
        return
    made = target()
    made.seeds(corpus)
    print(f"corpus and findings: {folder}", flush=True)
    found, runs = _watch(made.module, folder, findings, options.seconds, options.seed)
    print(
        f"{runs} inputs in {options.seconds} s, {len(found)} finding(s), {len(list(corpus.iterdir()))} inputs of new"
        " coverage"
    )
    for path in found:
        print(f"  {path}")
    raise SystemExit(1 if found else 0)


def _watch(module: str, folder: Path, findings: Path, seconds: int, seed: int) -> tuple[list[Path], int]:
    """Starts the fuzzer until the time is over; what was found, and how many inputs ran."""
    before = set(findings.iterdir())
    end = time.monotonic() + seconds
    runs = 0
    while (left := round(end - time.monotonic())) > 0:
        words = [
            sys.executable,
            "-m",
            module,
            "--child",
            "--folder",
            str(folder),
            "--seconds",
            str(left),
            "--seed",
            str(seed),
        ]
        ended = subprocess.run(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False, errors="replace")
        runs += max(
            (
                int(line[1:].split()[0])
                for line in ended.stderr.splitlines()
                if line[:1] == "#" and line[1:].split()[0].isdigit()
            ),
            default=0,
        )
        seed += 1
        fresh = [p for p in findings.iterdir() if p.name.startswith(ENDS) and not p.with_suffix(".txt").exists()]
        for path in fresh:
            path.with_suffix(".txt").write_text(ended.stderr[-20_000:])
            print(f"{path.name}: it ended the process", flush=True)
        if ended.returncode and not fresh and "Done" not in ended.stderr:
            raise SystemExit(f"the fuzzer ended with {ended.returncode}:\n{ended.stderr[-4000:]}")
    return (
        sorted(
            p for p in set(findings.iterdir()) - before if p.suffix != ".txt" and not p.name.startswith("slow-unit-")
        ),
        runs,
    )


def _fuzz(target: Callable[[], Target], corpus: Path, findings: Path, seconds: int, seed: int) -> None:
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        made = target()

    def one(data: bytes) -> None:
        try:
            made.one(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            _keep(findings, data, error)

    def change(data: bytes, most: int, number: int) -> bytes:
        chance = random.Random(number)
        changed = made.change(data, chance) if chance.random() < 0.8 else None
        return atheris.Mutate(data, most) if changed is None or len(changed) > most else changed  # type: ignore[no-any-return]

    limits = [
        f"-max_total_time={seconds}",
        f"-timeout={SECONDS}",
        f"-rss_limit_mb={MEGABYTES}",
        "-max_len=65536",
        "-len_control=0",
        f"-seed={seed}",
    ]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={findings}/", str(corpus)], one, custom_mutator=change)
    atheris.Fuzz()


def _keep(findings: Path, data: bytes, error: Exception) -> None:
    """Writes down an exception, unless one of its kind came from the same place before."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "weft" in f.filename]
    place = frames[-1] if frames else None
    name = f"{type(error).__name__}-{Path(place.filename).stem}-{place.lineno}" if place else type(error).__name__
    path = findings / f"{name}.input"
    if not path.exists():
        path.write_bytes(data)
        path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))
        print(f"{path.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
