"""Level 7: one input, one result; one program, one code."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress

from weft.codegen.base import require
from weft.errors import WeftError
from weft.loop.nodes import Program
from weft.loop.pipeline import lower_program
from weft.resolve import ResolvedTarget
from weft.scheduling.rule import select_rule
from weft.scheduling.schedule import Schedule
from weft_testing.conform.cases import GRAPHS
from weft_testing.conform.codes import PROBES, hashes
from weft_testing.conform.kit import Declined, Kit
from weft_testing.conform.processes import python


def _compare(kit: Kit, a: dict[str, str], b: dict[str, str], when: str) -> None:
    different = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    if different:
        kit.fail(f"{different[0]} is another {when}", *(f"so is {name}" for name in different[1:5]))


def test_code_twice(kit: Kit) -> None:
    """Compiling again gives the same bytes."""
    _compare(kit, hashes(kit), hashes(kit), "when it is compiled again")


def test_code_under_hash_seeds(kit: Kit) -> None:
    """So does another process whose hashes, and with them the order of sets, are others."""
    if kit.importable is None:
        kit.skip("the plugin is no module that another process can import")
    found = []
    for seed in ("1", "4242"):
        done = python(
            "-m", "weft_testing.conform.codes", kit.text, kit.plugin.name, kit.importable, PYTHONHASHSEED=seed
        )
        if done.returncode:
            kit.fail(f"compiling in a fresh process fails (PYTHONHASHSEED={seed})", done.stderr.strip()[-1000:])
        found.append(json.loads(done.stdout.splitlines()[-1]))
    _compare(kit, found[0], found[1], "under another PYTHONHASHSEED")


def test_results_twice(kit: Kit) -> None:
    """The same result bit for bit: in another call, and of another executable."""
    for name in PROBES:
        case = GRAPHS[name]
        try:
            with kit.watched():
                runs: list[list[bytes]] = []
                for _ in range(2):
                    executable = kit.compile(case.build()).executable
                    for _ in range(2):
                        runs.append([a.tobytes() for inputs in case.inputs() for a in executable.run(inputs).values()])
        except Declined:
            continue
        if any(r != runs[0] for r in runs):
            kit.fail(f"the results of '{name}' are not the same every time")


def test_fingerprint_follows_code(kit: Kit) -> None:
    """Where an option changes the code of a program, it changes the fingerprint: caches are keyed by it."""
    programs = _programs(kit)
    mine = _codes(kit, kit.target, programs)
    for option in kit.options:
        for target in kit.variants_of(option):
            other = dataclasses.replace(kit.target, target=target, fingerprint=kit.target.kind.fingerprint(target))
            if other.fingerprint == kit.target.fingerprint and _codes(kit, other, programs) != mine:
                kit.fail(
                    f"another value of option '-{option}' gives other code of the same program, and the same"
                    " fingerprint",
                    "caches would confuse them",
                )


def _programs(kit: Kit) -> list[Program]:
    """Naive programs of the probes that the target takes."""
    found = []
    for name in PROBES:
        with suppress(Declined):
            found += [k.naive for k in kit.compile(GRAPHS[name].build()).kernels.values()]
    return found


def _codes(kit: Kit, target: ResolvedTarget, programs: list[Program]) -> list[bytes | str]:
    """The code of each, or why there is none."""
    codegen = target.kind.codegen(target.target)
    found: list[bytes | str] = []
    for program in programs:
        try:
            rule, _ = select_rule(target.rules, program, target.machine, target.intrinsics)
            s = Schedule(program, target.machine, intrinsics=target.intrinsics)
            rule.apply(s)
            lowered = lower_program(s.program, codegen.functions, extra=target.loop_passes())
            require(codegen, lowered, str(target.target))
            found.append(codegen.compile(lowered).object)
        except WeftError as error:
            found.append(str(error))
    return found
