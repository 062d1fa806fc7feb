"""What plugins may contribute: how a hook is written, and what each may return. Whatever does not fit is refused with a
sentence that says so.

pluggy checks the names of arguments alone, and says little; what a hook returns it does not look at.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Literal

from weft.errors import nearest
from weft.hooks import PROJECT, Specifications
from weft.options import misdeclared_options
from weft.target import CPU
from weft_runtime.plan import HOST

HOOKS: tuple[str, ...] = tuple(n for n in vars(Specifications) if not n.startswith("_"))
"""The names of all hooks, in the order in which a compilation meets them."""


@dataclass(frozen=True)
class Result:
    """What a hook returns: a list of `kinds` ("module:Name" each), such a list or None, one value or None, or nothing
    that is looked at."""

    form: Literal["list", "list or None", "one or None", "nothing"]
    kinds: tuple[str, ...] = ()
    classes: bool = False  # the elements are classes derived from it
    named: bool = True  # they have a name


RESULTS: dict[str, Result] = {
    "frontends": Result("list", ("weft.hooks:Frontend",)),
    "converters": Result("list", ("weft.hooks:Converter",), named=False),
    "operators": Result("list", ("weft.graph.operator:Operator",), classes=True, named=False),
    "targets": Result("list", ("weft.target:TargetKind",)),
    "capabilities": Result("one or None", ("weft.passes.capabilities:Capabilities",), named=False),
    "graph_passes": Result("list", ("weft.passes.pipeline:GraphPass",)),
    "schedules": Result("list", ("weft.scheduling.rule:Rule",)),
    "records": Result("list", ("weft.records:Records", "pathlib:Path"), named=False),
    "intrinsics": Result("list", ("weft.scheduling.intrinsic:Intrinsic",)),
    "loop_passes": Result("list", ("weft.loop.pipeline:LoopPass",)),
    "offload": Result("list or None", ("weft.passes.place:Take", "weft.passes.place:Refuse"), named=False),
    "devices": Result("list", ("weft_runtime.device:DeviceKind",)),
    "engines": Result("list", ("weft.hooks:EngineKind",)),
    "exporters": Result("list", ("weft.hooks:Exporter",)),
    "commands": Result("nothing"),
    "stage_done": Result("nothing"),
}


def arguments(hook: str) -> tuple[str, ...]:
    """What a hook is given, in order."""
    return tuple(inspect.signature(getattr(Specifications, hook)).parameters)[1:]


# -- how hooks are written --------------------------------------------------------------------------------------------


def marked(plugin: object) -> Iterator[tuple[str, str, Any]]:
    """(attribute, hook, function) of everything in a plugin that `hookimpl` has marked."""
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        options = getattr(function, f"{PROJECT}_impl", None)
        if isinstance(options, dict):
            yield name, options.get("specname") or name, function


def misdeclared(plugin: object) -> str | None:
    """What is wrong with the hooks of a plugin, as written: one sentence of the first; None if all fit."""
    for name, hook, function in marked(plugin):
        if hook not in HOOKS:
            close = nearest(hook, HOOKS)
            return f"unknown hook '{hook}'" + (f", did you mean '{close}'?" if close else "")
        if not inspect.isroutine(function):
            return f"'{name}' is marked as a hook and is no function but a {type(function).__name__}"
        wrong = _misdeclared(hook, function)
        if wrong is not None:
            return f"hook '{hook}' {wrong}"
    return None


def _misdeclared(hook: str, function: Any) -> str | None:
    options = getattr(function, f"{PROJECT}_impl")
    if options.get("wrapper") or options.get("hookwrapper"):
        return "is a wrapper: hooks are called singly, so there is nothing to wrap"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is asynchronous: it returns its result itself"
    if inspect.isgeneratorfunction(function):
        return "is a generator: it returns its result, a list"
    known = arguments(hook)
    may = f"it may take {', '.join(known)}" if known else "it takes no arguments"
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            return f"takes '{'*' if p.kind is p.VAR_POSITIONAL else '**'}{p.name}', which stays empty: {may}"
        if p.name not in known:
            close = nearest(p.name, known)
            return f"takes '{p.name}', which it is not given: " + (f"did you mean '{close}'?" if close else may)
        if p.default is not p.empty or p.kind is p.KEYWORD_ONLY:
            return (
                f"takes '{p.name}' by keyword or with a default, and would not be given it: write ({', '.join(known)})"
            )
    return None


def unmarked(plugin: object) -> list[str]:
    """Functions of a plugin that have the name of a hook and no mark: perhaps forgotten."""
    if not isinstance(plugin, ModuleType):
        return []
    own = [(n, f) for n, f in vars(plugin).items() if isinstance(f, FunctionType) and f.__module__ == plugin.__name__]
    return [n for n, f in own if n in HOOKS and not hasattr(f, f"{PROJECT}_impl")]


# -- what hooks return ------------------------------------------------------------------------------------------------


def misfit(hook: str, value: object) -> str | None:
    """Why `value` is not what a hook may return, as a sentence; None if it is."""
    result = RESULTS[hook]
    names = [k.partition(":")[2] for k in result.kinds]
    wanted = " or ".join(names)
    if result.form == "nothing" or (value is None and result.form.endswith("or None")):
        return None
    if result.form == "one or None":
        return _misfit(result, names[0], value)
    elements = f"classes derived from {wanted}" if result.classes else wanted
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        hint = (
            ": return [] for nothing"
            if value is None
            else ": return a list of it"
            if _misfit(result, wanted, value) is None
            else ""
        )
        return f"gave {_shown(value)}, not a list of {elements}{hint}"
    for element in value:
        wrong = _misfit(result, wanted, element)
        if wrong is not None:
            return f"{wrong} (in a list of {len(value)})"
    return None


def _misfit(result: Result, wanted: str, value: object) -> str | None:
    kinds = tuple(_class(k) for k in result.kinds)
    if result.classes:
        if isinstance(value, type) and issubclass(value, kinds):
            return None
        hint = ": give the class itself" if isinstance(value, kinds) else ""
        return f"gave {_shown(value)}, which is no class derived from {wanted}{hint}"
    if not isinstance(value, kinds):
        hint = f": write {value.__name__}()" if isinstance(value, type) and issubclass(value, kinds) else ""
        return f"gave {_shown(value)}, which is no {wanted}{hint}"
    if not result.named:
        return None
    name = getattr(value, "name", None)
    if not isinstance(name, str) or not name:
        return f"gave {_shown(value)}, whose name is {name!r}"
    if wanted == "TargetKind" and not re.fullmatch(r"[A-Za-z_][\w.+-]*", name):
        return f"gave the target '{name}': a target's name is letters, digits, '_', '.', '+' and '-'"
    if wanted == "DeviceKind" and name in (CPU, HOST):
        return f"gave the device '{name}', which is the host's own name: call it otherwise"
    if wanted in ("TargetKind", "Frontend"):
        wrong = misdeclared_options(getattr(value, "options", None))
        return (
            wrong and f"gave the {'target' if wanted == 'TargetKind' else 'frontend'} '{name}', whose options {wrong}"
        )
    return None


def _class(kind: str) -> type:
    module, _, name = kind.partition(":")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, type)
    return found


def _shown(value: object) -> str:
    if value is None:
        return "None"
    if inspect.isgenerator(value):
        return "a generator"
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    return text if len(text) <= 60 and " at 0x" not in text else f"a {type(value).__name__}"
