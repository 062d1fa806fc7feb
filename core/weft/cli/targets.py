"""`weft targets`: what can be compiled for here."""

from __future__ import annotations

import dataclasses
import typing
from typing import TYPE_CHECKING, Any

from weft.cli.terminal import say

if TYPE_CHECKING:
    from weft.target import TargetKind


def targets() -> None:
    """Lists the installed targets.

    For each target: its options with their defaults, and the machine that it finds.
    """
    from weft.cli.terminal import brief, print_table, size
    from weft.errors import WeftError
    from weft.plugins import KNOWN_TARGETS, host
    from weft.resolve import resolve_target, target_kinds

    kinds = target_kinds()
    for name in sorted(kinds):
        try:
            resolved = resolve_target(name)
            machine = resolved.machine
            facts = [
                ("resolves to", brief(str(resolved.target))),
                (
                    "machine",
                    (
                        f"{machine.kind}, {machine.cores} cores, vectors of {machine.vector_bits} bits,"
                        f" {machine.vector_registers} vector registers"
                    ),
                ),
                ("caches", ", ".join(size(c) for c in machine.caches)),
                ("features", ", ".join(sorted(machine.features)) or "none"),
                ("schedule rules", ", ".join(r.name for r in resolved.rules) or "none"),
            ]
        except WeftError as error:
            facts = [("cannot be used here", str(error))]
        about = (kinds[name].__doc__ or "").strip().partition("\n")[0]
        print_table(": ".join(filter(None, (name, about))), ["", ""], facts)
        print_table("", ["option", "takes", "default"], options(kinds[name]))
    for name in sorted(KNOWN_TARGETS.keys() - kinds.keys()):
        say(f"{name}: not here ({host().missing(name, KNOWN_TARGETS[name])})")
    if not kinds:
        say("no target is installed")


def options(kind: TargetKind) -> list[tuple[str, str, str]]:
    """Name, type and default of every option of a kind."""
    from weft.options import written

    hints = typing.get_type_hints(kind.options)
    return [
        ("-" + f.name.replace("_", "-"), written(hints[f.name]), _default(f)) for f in dataclasses.fields(kind.options)
    ]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else ""
    return (
        "this machine's"
        if field.default is None
        else ",".join(map(str, field.default))
        if isinstance(field.default, tuple)
        else str(field.default)
    )
