"""Target strings: "llvm -mcpu=znver5 -threads=2" ⇄ Target(kind, options); the base class of target kinds.

    targets := target (", " target)*          in order of preference
    target  := kind option*                   options as weft.options has them

Printing leaves out options that have their default value, in the order of the fields.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from weft.errors import TargetError, nearest
from weft.machine import Transfer
from weft.options import parse_options, print_options

if TYPE_CHECKING:
    from weft.codegen.base import Codegen, KernelCode
    from weft.codegen.segment import SegmentSpec
    from weft.loop.nodes import Program
    from weft.machine import Machine
    from weft_runtime.executable import NativeCode


CPU = "cpu"
"""The kind of device that is this process's memory."""


@dataclass(frozen=True)
class Target:
    """A kind's name and its options (an instance of the kind's options dataclass)."""

    kind: str
    options: Any

    def __str__(self) -> str:
        return " ".join([self.kind, *print_options(self.options)])


class TargetKind(ABC):
    """A kind of target, contributed by a plugin. Methods import expensive modules themselves."""

    name: ClassVar[str]
    options: ClassVar[type]
    keywords: ClassVar[tuple[str, ...]] = ()
    """Other words for the target, in lower case: the error about an unknown target with such a word suggests the
    target's name."""

    def resolve(self, target: Target) -> Target:
        """`target` with every option that means "this machine" written out; caches are keyed by the result."""
        return target

    def describe(self, target: Target) -> str:
        """A short description of a resolved target for people, which distinguishes it from others."""
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

    def exceeds(self, program: Program, machine: Machine) -> str | None:
        """Where a scheduled Program exceeds the target's limits, as the end of a sentence such as "needs 2048 threads
        in a group, there are 1024 at most"; None if there is nothing.

        Scopes, alignments and levels of `machine` are checked for every target, before this. A rule whose program
        exceeds a limit leaves it to the next rule.
        """
        return None

    def link(self, target: Target, segment: SegmentSpec, kernels: Mapping[str, KernelCode]) -> Mapping[str, Any]:
        """The code sections (name → runtime NativeCode) of a native segment: "main", with the entry "run".

        Its `parallel` says whether kernels run parallel loops by `ctx.parallel_for`.

        Only kinds whose kernels run on the host's CPU have native segments.
        """
        raise TargetError(f"target '{self.name}' has no native segments", where=str(target))

    def loops(self, target: Target) -> NativeCode | None:
        """A code section with the entry "repeat", which runs the iterations of a loop whose body is a native segment;
        see `weft_runtime.abi.Trips` for its argument.

        None: the runtime starts every iteration, with the same results, about 20 µs slower each.
        """
        return None

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        """One code section of all kernels, each an entry by its name, as the device's `load` takes it.

        Only kinds whose device is not the host's CPU have such sections.
        """
        raise TargetError(f"target '{self.name}' has no kernels of its own device", where=str(target))

    def transfer(self, target: Target) -> Transfer:
        """The time of copies between the device's memory and the host's; by default that of the machine."""
        return self.machine(target).transfer

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
        raise TargetError(
            "no target given", where=text or None, hint="available: " + ", ".join(sorted(table)) if table else None
        )
    for i, t in enumerate(targets):
        if t.kind in {u.kind for u in targets[:i]}:
            raise TargetError(
                f"target '{t.kind}' is named twice", where=text, hint="give each kind once, in order of preference"
            )
    return targets


def print_targets(targets: Iterable[Target]) -> str:
    """Targets as one text, as `parse_targets` reads it."""
    return ", ".join(str(t) for t in targets)


def _parse_one(part: str, table: Mapping[str, TargetKind], text: str) -> Target:
    try:
        words = shlex.split(part)
    except ValueError as error:
        raise TargetError("the target string does not parse", where=text, why=str(error)) from None
    kind = table.get(words[0])
    if kind is None:
        meant = [name for name, k in sorted(table.items()) if words[0].lower() in k.keywords]
        close = " or ".join(f"'{name}'" for name in meant or filter(None, [nearest(words[0], table)]))
        hint = f"did you mean {close}?" if close else "available: " + (", ".join(sorted(table)) or "none")
        raise TargetError(f"unknown target '{words[0]}'", where=text, hint=hint)
    return Target(kind.name, parse_options(kind.options, words[1:], f"target '{kind.name}'", text, TargetError))
