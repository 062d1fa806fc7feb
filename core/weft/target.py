"""Target strings: "llvm -mcpu=znver5 -threads=2" ⇄ Target(kind, options); the base class of target kinds.

    targets := target (", " target)*          in order of preference
    target  := kind option*
    option  := -name=value | -name            the second for a bool that is on

The options of a kind are the fields of a frozen dataclass, typed int, float, bool, str, Literal[...] or tuple[T, ...] (written a,b,c),
each possibly `| None`. Printing leaves out options that have their default value, in the order of the fields.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from weft.errors import TargetError, nearest
from weft.machine import Transfer

if TYPE_CHECKING:
    from weft.codegen.base import Codegen, KernelCode
    from weft.codegen.segment import SegmentSpec
    from weft.machine import Machine
    from weft.runtime.executable import NativeCode


CPU = "cpu"


@dataclass(frozen=True)
class Target:
    """A kind's name and its options (an instance of the kind's options dataclass)."""

    kind: str
    options: Any

    def __str__(self) -> str:
        words = [self.kind]
        for f in dataclasses.fields(self.options):
            value = getattr(self.options, f.name)
            if value != _default(f):
                name = f.name.replace("_", "-")
                words.append(f"-{name}" if value is True else f"-{name}={_print_value(value)}")
        return " ".join(words)


class TargetKind(ABC):
    """What a plugin contributes to be compiled for. Everything heavy is imported inside the methods."""

    name: ClassVar[str]
    options: ClassVar[type]

    def resolve(self, target: Target) -> Target:
        """`target` with every option that means "this machine" written out; caches are keyed by the result."""
        return target

    def describe(self, target: Target) -> str:
        """A resolved target for people: what tells it from others, no more."""
        return str(target)

    @abstractmethod
    def machine(self, target: Target) -> Machine:
        """The processor that schedules are chosen for."""

    @abstractmethod
    def codegen(self, target: Target) -> Codegen:
        """Turns lowered Programs into code."""

    @abstractmethod
    def device(self, target: Target) -> str:
        """The name of the device kind that runs the code; `CPU` is the host's own processor."""

    def link(self, target: Target, segment: SegmentSpec, kernels: Mapping[str, KernelCode]) -> Mapping[str, Any]:
        """The code sections (name → runtime NativeCode) of a native segment: "main" with the entry "run", and "pool" if it has parallel loops.

        Only kinds whose kernels run on the host's CPU have native segments.
        """
        raise TargetError(f"target '{self.name}' has no native segments", where=str(target))

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        """One code section of all kernels, each an entry by its name, as the device's `load` takes it.

        Only kinds whose device is not the host's CPU have such sections.
        """
        raise TargetError(f"target '{self.name}' has no kernels of its own device", where=str(target))

    def transfer(self, target: Target) -> Transfer:
        """What copies between the device's memory and the host's take."""
        return Transfer()

    @abstractmethod
    def fingerprint(self, target: Target) -> str:
        """Changes whenever the same Program may give other code."""


def parse_target(text: str, kinds: Mapping[str, TargetKind] | Iterable[TargetKind]) -> Target:
    """The one target that `text` names.

    Raises:
        TargetError: unknown kind or option, a value that does not fit, or more than one target.
    """
    found = parse_targets(text, kinds)
    if len(found) != 1:
        raise TargetError(f"expected one target, got {len(found)}", where=text)
    return found[0]


def parse_targets(text: str, kinds: Mapping[str, TargetKind] | Iterable[TargetKind]) -> tuple[Target, ...]:
    """Every target of `text`, in order of preference.

    Raises:
        TargetError: no target, a kind named twice, unknown kind or option, or a value that does not fit.
    """
    table = dict(kinds) if isinstance(kinds, Mapping) else {k.name: k for k in kinds}
    # A comma also separates the elements of a list value, so it ends a target only before a blank or a kind's name.
    names = "|".join(re.escape(n) for n in table)
    parts = re.split(rf",\s+|,(?=(?:{names})(?:[\s,]|$))" if names else r",\s+", text.strip().rstrip(","))
    targets = tuple(_parse_one(part.strip(), table, text) for part in parts if part.strip())
    if not targets:
        raise TargetError("no target given", where=text or None, hint="available: " + ", ".join(sorted(table)) if table else None)
    for i, t in enumerate(targets):
        if t.kind in {u.kind for u in targets[:i]}:
            raise TargetError(f"target '{t.kind}' is named twice", where=text, hint="give each kind once, in order of preference")
    return targets


def print_targets(targets: Iterable[Target]) -> str:
    return ", ".join(str(t) for t in targets)


def _parse_one(part: str, table: Mapping[str, TargetKind], text: str) -> Target:
    try:
        words = shlex.split(part)
    except ValueError as error:
        raise TargetError("the target string does not parse", where=text, why=str(error)) from None
    kind = table.get(words[0])
    if kind is None:
        close = nearest(words[0], table)
        hint = f"did you mean '{close}'?" if close else "available: " + (", ".join(sorted(table)) or "none")
        raise TargetError(f"unknown target '{words[0]}'", where=text, hint=hint)
    fields = {f.name.replace("_", "-"): f for f in dataclasses.fields(kind.options)}
    hints = typing.get_type_hints(kind.options)
    values: dict[str, Any] = {}
    for word in words[1:]:
        name, given, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            raise TargetError(f"expected an option, got '{word}'", where=text, hint=f"options are written -name=value; '{kind.name}' has " + _options(fields))
        field = fields.get(name.replace("_", "-"))
        if field is None:
            close = nearest(name, fields)
            hint = f"did you mean '-{close}'?" if close else f"'{kind.name}' has " + _options(fields)
            raise TargetError(f"target '{kind.name}' has no option '-{name}'", where=text, hint=hint)
        if field.name in values:
            raise TargetError(f"option '-{name}' is given twice", where=text)
        values[field.name] = _parse_value(name, value if given else None, hints[field.name], text)
    try:
        return Target(kind.name, kind.options(**values))
    except TypeError as error:
        raise TargetError(f"target '{kind.name}' lacks an option", where=text, why=str(error)) from None
    except ValueError as error:  # of the options' own checks
        raise TargetError(f"target '{kind.name}' has no such options", where=text, why=str(error)) from error


def _options(fields: Mapping[str, Any]) -> str:
    return ", ".join("-" + n for n in fields) or "no options"


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else dataclasses.MISSING


def _parse_value(name: str, value: str | None, hint: Any, text: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        (hint,) = (a for a in typing.get_args(hint) if a is not type(None))
        origin = typing.get_origin(hint)
    if hint is bool:
        truth = {None: True, "true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
        if value not in truth:
            raise TargetError(f"option '-{name}' takes true or false, got '{value}'", where=text)
        return truth[value]
    if value is None:
        raise TargetError(f"option '-{name}' needs a value", where=text, hint=f"write -{name}=value")
    if hint is int:
        try:
            return int(value)
        except ValueError:
            raise TargetError(f"option '-{name}' takes an integer, got '{value}'", where=text) from None
    if hint is float:
        try:
            return float(value)
        except ValueError:
            raise TargetError(f"option '-{name}' takes a number, got '{value}'", where=text) from None
    if origin is typing.Literal:
        known = typing.get_args(hint)
        for k in known:
            if str(k) == value:
                return k
        close = nearest(value, known)
        raise TargetError(
            f"option '-{name}' is one of {', '.join(map(str, known))}, got '{value}'", where=text, hint=f"did you mean '{close}'?" if close else None
        )
    if origin is tuple:
        element = typing.get_args(hint)[0]
        return tuple(_parse_value(name, v, element, text) for v in value.split(",") if v)
    return value


def _print_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(_print_value(v) for v in value)
    return shlex.quote(str(value))
