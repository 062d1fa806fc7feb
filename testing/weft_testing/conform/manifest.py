"""Level 1: what a plugin says of itself, before anything is compiled."""

from __future__ import annotations

import dataclasses
import inspect
import json
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from weft.dtypes import dtype
from weft.errors import TargetError, WeftError
from weft.hooks import Specifications
from weft.machine import Machine
from weft.target import Target, parse_target
from weft_testing.conform.kit import Kit
from weft_testing.conform.processes import python

IMPORT_SECONDS = 0.25
"""Processor time that importing a plugin's module may take; milliseconds are meant, and a slow machine is no defect."""

OURS = frozenset(
    {"weft", "weft_c_family", "weft_interpreter", "weft_ops", "weft_queues", "weft_runtime", "weft_testing"}
)
LIGHT = OURS | {"numpy", "ml_dtypes", "pluggy", "packaging", "safetensors", "typer", "rich"}
"""What Weft itself depends on: no plugin pays for it."""

IMPORT = """
import importlib, json, sys, time
import numpy, ml_dtypes, weft.hooks, weft.target, weft.machine, weft.errors
before = set(sys.modules)
began = time.process_time()
importlib.import_module(sys.argv[1])
seconds = time.process_time() - began
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([seconds, sorted(n for n in new if n not in sys.stdlib_module_names)]))
"""


def test_weft_range(kit: Kit) -> None:
    """`Requires-Dist: weft-core` (or `weft`) with a range: a later Weft that changes the contract leaves the plugin
    out, by name."""
    try:
        requires = metadata.distribution(kit.plugin.distribution).requires or []
    except metadata.PackageNotFoundError:
        kit.skip("the plugin was registered by hand: it has no metadata")
    asked = [r for r in map(Requirement, requires) if canonicalize_name(r.name) in ("weft-core", "weft")]
    if not any(r.specifier for r in asked):
        kit.fail(
            "its metadata give no range of Weft",
            f"Requires-Dist: {', '.join(requires) or 'nothing'}",
            'write dependencies = ["weft-core>=0.1,<0.2"]',
        )


def test_import_cost(kit: Kit) -> None:
    """The module imports in milliseconds and pulls in nothing heavy."""
    if kit.importable is None:
        kit.skip("the plugin is no module that another process can import")
    found: list[tuple[float, list[str]]] = []
    for _ in range(3):
        done = python("-c", IMPORT, kit.importable)
        if done.returncode:
            kit.fail(f"module '{kit.importable}' does not import in a fresh process", done.stderr.strip()[-500:])
        found.append(tuple(json.loads(done.stdout.splitlines()[-1])))
        if found[-1][0] < IMPORT_SECONDS:
            break
    seconds, packages = min(found)
    heavy = [p for p in packages if p not in LIGHT | {kit.importable.partition(".")[0]} and not p.startswith("_")]
    if seconds >= IMPORT_SECONDS:
        kit.fail(
            f"importing '{kit.importable}' takes {seconds:.2f} s",
            f"{IMPORT_SECONDS} s are allowed; import heavy packages inside functions",
        )
    if heavy:
        kit.fail(
            f"importing '{kit.importable}' imports {', '.join(heavy)}",
            "import them inside the functions that need them",
        )


def test_hooks(kit: Kit) -> None:
    """Names and arguments are those of `weft.hooks`; each answers, for its own target only."""
    wrong = [*kit.plugin.notes]
    known = {n: s for n, s in vars(Specifications).items() if not n.startswith("_")}
    implemented = [
        (hook, i)
        for hook in known
        for i in getattr(kit.target.plugins.manager.hook, hook).get_hookimpls()
        if i.plugin_name == kit.target.owner
    ]
    other = Target("somebody_elses", kit.target.target.options)
    for hook, implementation in implemented:
        unknown = [a for a in implementation.argnames if a not in inspect.signature(known[hook]).parameters]
        if unknown:
            wrong.append(f"hook '{hook}' takes '{unknown[0]}', which it is not given")
        elif implementation.argnames in (("target",), ["target"]):
            try:
                answer = implementation.function(other)
            except Exception as error:  # noqa: BLE001 - foreign code
                wrong.append(
                    f"hook '{hook}' raises {type(error).__name__} when it is asked for a target of others: {error}"
                )
                continue
            if answer:
                wrong.append(f"hook '{hook}' answers for targets of others")
    if wrong:
        kit.fail(*wrong)


def test_hooks_answer(kit: Kit) -> None:
    """What a compilation asks for at first is there, and of the right kind."""
    t = kit.target
    if not kit.rules:
        kit.fail("it has no schedule rule", "a target's last rule should take everything that it can compute")
    for given in (t.capabilities, t.intrinsics, t.graph_passes(), t.loop_passes(), t.kind.codegen(t.target)):
        del given
    names = [r.name for r in t.rules]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        kit.fail(f"two schedule rules are called '{twice[0]}'", "traces and records name rules")
    failures = [
        f"hook '{hook}' failed: {type(error).__name__}: {error}"
        for p, hook, error in t.plugins.failures
        if p.name == t.owner
    ]
    if failures:
        kit.fail(*failures)


def test_options_are_frozen(kit: Kit) -> None:
    options = kit.target.kind.options
    parameters = getattr(options, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        kit.fail(f"{options.__name__} is no frozen dataclass", "targets are keys of caches")
    without = [
        f.name
        for f in dataclasses.fields(options)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if without:
        kit.fail(f"option '-{without[0]}' has no default", f"'{kit.target.target.kind}' alone should be a target")


def test_option_round_trip(kit: Kit, option: str) -> None:
    """A target prints as what parses to it, with each value of each option."""
    kinds = {kit.target.kind.name: kit.target.kind}
    for target in (kit.target.target, *kit.variants_of(option)):
        text = str(target)
        if parse_target(text, kinds) != target:
            kit.fail(
                f"'{text}' is not the target that prints like this",
                f"it is {parse_target(text, kinds).options}, printed was {target.options}",
            )
        if kit.target.kind.resolve(target) != target:
            kit.fail(f"'{text}' is resolved and resolves to something else", str(kit.target.kind.resolve(target)))


def test_unknown_option(kit: Kit) -> None:
    try:
        parse_target(f"{kit.target.kind.name} -no-such-option=1", {kit.target.kind.name: kit.target.kind})
    except TargetError:
        return
    kit.fail("an option that does not exist is taken")


def test_machine(kit: Kit) -> None:
    """The description of the machine makes sense, and is the same each time."""
    machine: Any = kit.target.machine
    if not isinstance(machine, Machine):
        kit.fail(f"machine() gives a {type(machine).__name__}, not a Machine")
    wrong = []
    if machine.vector_bits <= 0 or machine.vector_bits % 8:
        wrong.append(f"vectors of {machine.vector_bits} bits")
    if machine.vector_registers < 1 or machine.cores < 1 or machine.cache_line < 1:
        wrong.append(
            f"{machine.vector_registers} vector registers, {machine.cores} cores, cache lines of {machine.cache_line}"
            " bytes"
        )
    if (
        len(machine.caches) != 3
        or any(c <= 0 for c in machine.caches)
        or list(machine.caches) != sorted(machine.caches)
    ):
        wrong.append(f"caches of {machine.caches} bytes: three are wanted, none smaller than the one before")
    for name, flops in machine.flops_per_cycle.items():
        try:
            dtype(name)
        except WeftError:
            if name not in kit.target.intrinsics:
                wrong.append(f"flops_per_cycle names '{name}', which is no dtype and no intrinsic of the target")
        if flops <= 0:
            wrong.append(f"{flops} FLOP per cycle of {name}")
    for name, scope in machine.scopes.items():
        if scope.name != name:
            wrong.append(f"the scope '{scope.name}' is called '{name}'")
        if scope.align < 1 or scope.align & (scope.align - 1):
            wrong.append(f"scope '{name}' aligns to {scope.align} bytes, which is no power of two")
        if scope.size is not None and scope.size <= 0:
            wrong.append(f"scope '{name}' has {scope.size} bytes")
    if kit.target.kind.machine(kit.target.target) != machine:
        wrong.append("machine() gives another machine when it is called again")
    if wrong:
        kit.fail("the description of the machine makes no sense", *wrong)


def test_fingerprint(kit: Kit) -> None:
    """A fingerprint is the same each time, here and in a fresh process; another machine has another."""
    t = kit.target
    if not isinstance(t.fingerprint, str) or not t.fingerprint:
        kit.fail(f"the fingerprint is {t.fingerprint!r}")
    again = t.kind.fingerprint(t.target)
    if again != t.fingerprint:
        kit.fail(
            "the fingerprint is another when it is asked for again: nothing is ever found in a cache",
            t.fingerprint,
            again,
        )
    for option in kit.options:
        for target in kit.variants_of(option):
            if t.kind.machine(target) != t.machine and t.kind.fingerprint(target) == t.fingerprint:
                kit.fail(
                    f"another value of option '-{option}' gives another machine and the same fingerprint",
                    "caches would give one's code to the other",
                )
