"""Fuzz runs whose inputs may end the process: each is tried in a child of its own, which has limits, until the time is
over.

A finding is a signal, more than ten seconds of its own processor time (sixty by the clock), more than 1 GiB of memory,
or an exception that is no WeftError with a text. Each is kept in a folder, the input beside what happened; exceptions
that were raised at one place are one finding.

Needs nothing but fork. Inputs are changes of those to begin with, by a fixed seed: the same numbers give the same
inputs.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS, BYTES = 10, 1 << 30
_CLOCK = 6  # by the clock so many times as long
_ROOM = 4 << 30  # of addresses: what asks for more is refused by the system, and has to say so


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Args:
        seeds: inputs to begin with, by name.
        change: another input made of one.
        one: takes an input, and the name of the one that it was made of; gives a word for what came of it, and raises
            what is a finding.
    """

    seeds: dict[str, bytes]
    change: Callable[[bytes, random.Random], bytes]
    one: Callable[[bytes, str], str]


@dataclass(frozen=True)
class Outcome:
    """A word, or a finding with a name that tells it from others and a text."""

    word: str
    finding: str = ""
    text: str = ""


def attempt(one: Callable[[], str], seconds: int = SECONDS, memory: int = BYTES, room: int = _ROOM) -> Outcome:
    """What comes of a call, in a child, which has `room` bytes of addresses beyond those there are."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _child(one, theirs, seconds, memory, room)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGPROF, signal.SIGALRM):
            return Outcome("finding", "hang", f"it took more than {seconds} seconds")
        return Outcome("finding", signal.Signals(number).name, "it ended the process")
    name, _, text = said.partition("\n")
    if os.WEXITSTATUS(status) or not name:
        return Outcome("finding", "exit", f"it ended with status {os.WEXITSTATUS(status)}")
    return Outcome("finding", name, text) if text else Outcome(name)


def _pages(field: int) -> int:
    """Bytes of this process: 0 its addresses, 1 its memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * resource.getpagesize()


def _child(one: Callable[[], str], pipe: int, seconds: int, memory: int, room: int) -> None:
    try:
        before = _pages(1)
        faulthandler.disable()  # a test's tool, which would tell of each
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        most = _pages(0) + room
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # A busy machine takes its time; what waits for ever uses none of the processor's.
        for number, timer, limit in (
            (signal.SIGPROF, signal.ITIMER_PROF, seconds),
            (signal.SIGALRM, signal.ITIMER_REAL, _CLOCK * seconds),
        ):
            signal.signal(number, signal.SIG_DFL)
            signal.setitimer(timer, limit)
        said = one()
        took = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        if took > memory:
            said = f"memory\nit took {took >> 20} MiB"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "weft" in f.filename or "tests" in f.filename]
        place = f"-{Path(frames[-1].filename).stem}-{frames[-1].lineno}" if frames else ""
        said = f"{type(error).__name__}{place}\n" + "".join(traceback.format_exception(error))
    os.write(pipe, said.encode(errors="replace")[:60_000])
    os._exit(0)


def fuzz(
    target: Target, seed: int, until: Callable[[int], bool], found: Callable[[bytes, Outcome], None]
) -> Counter[str]:
    """Tries inputs until the time is over, by how many there were; what came of them, by word. `found` gets the
    findings."""
    words: Counter[str] = Counter()
    names = sorted(target.seeds)
    number = 0
    while not until(number):
        chance = random.Random(f"{seed}/{number}")
        name = chance.choice(names)
        data = target.change(target.seeds[name], chance)
        outcome = attempt(lambda data=data, name=name: target.one(data, name))  # type: ignore[misc]
        words[outcome.word] += 1
        if outcome.finding:
            found(data, outcome)
        number += 1
    return words


def main(target: Callable[[], Target], arguments: Sequence[str] | None = None) -> None:
    """The command line of a target.

    Raises:
        SystemExit: 1 if there are findings.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="of the findings")
    parser.add_argument(
        "--again",
        nargs=2,
        metavar=("SEED-INPUT", "FILE"),
        help="an input that was made of one to begin with: runs it once, in this process",
    )
    options = parser.parse_args(arguments)
    made = target()
    if options.again is not None:
        print(made.one(Path(options.again[1]).read_bytes(), options.again[0]))
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="weft-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    kinds: set[str] = set()

    def found(data: bytes, outcome: Outcome) -> None:
        count = sum(1 for k in kinds if k.startswith(outcome.finding))
        if outcome.finding in kinds and (not outcome.finding.startswith("SIG") or count > 20):
            return
        name = outcome.finding if outcome.finding not in kinds else f"{outcome.finding}-{count}"
        kinds.add(name)
        (folder / f"{name}.input").write_bytes(data)
        (folder / f"{name}.txt").write_text(outcome.text)
        print(f"{name}: {outcome.text[-300:].strip()}", flush=True)

    end = time.monotonic() + options.seconds
    words = fuzz(made, options.seed, lambda number: time.monotonic() > end, found)
    print(
        f"{sum(words.values())} inputs in {options.seconds} s"
        f" ({', '.join(f'{n} {w}' for w, n in sorted(words.items()))}), {len(kinds)} finding(s)"
    )
    if kinds:
        print(f"findings: {folder}")
    raise SystemExit(1 if kinds else 0)
