"""`weft inspect` of an archive: what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.cli.terminal import say

if TYPE_CHECKING:
    from weft_runtime.plan import Manifest

ARCHIVE_STAGES = ("manifest", "sections", "plan")


def inspect_archive(model: str, stage: str | None) -> None:
    """Prints a stage of an archive; without one, what it holds.

    Raises:
        InputError: it has no such stage.
    """
    from weft_runtime.executable import Executable
    from weft_testing.cli.inspect import unknown

    manifest = Executable.inspect(model)
    if stage is None:
        print_archive(manifest)
    elif stage == "manifest":
        say(manifest.to_json().decode())
    elif stage == "plan":
        say(manifest.plan())
    elif stage == "sections":
        for name, s in manifest.sections.items():
            entries = ", ".join(f"{entry} at {place}" for entry, place in s.entries.items())
            say(
                f"code/{name}: {s.bytes} bytes, sha256 {s.sha256}, by"
                f" {' '.join((s.plugin, s.version)).strip() or 'unknown'}, entries {entries}"
            )
        if manifest.weights is not None:
            say(f"weights: {manifest.weights.bytes} bytes, sha256 {manifest.weights.sha256}")
        for c in manifest.constants:
            say(f"  {c.name}: {c.dtype}[{', '.join(map(str, c.shape))}]")
    else:
        raise unknown("stage", stage, ARCHIVE_STAGES)


def _plan_facts(manifest: Manifest) -> str:
    from weft_runtime.plan import Copy, DeviceCall, Native

    items = sum(len(s.items) for s in manifest.steps if isinstance(s, Native))
    facts = f"{len(manifest.steps)} step(s), {items} items"
    if manifest.devices:
        launches = sum(len(s.launches) for s in manifest.steps if isinstance(s, DeviceCall))
        copies = sum(isinstance(s, Copy) for s in manifest.steps)
        facts += f", {launches} launches on {', '.join(manifest.devices)}, {copies} copies"
    return facts


def print_archive(manifest: Manifest) -> None:
    """An archive in a few lines."""
    from weft.cli.terminal import brief, print_table, size

    rows = [
        ("target", brief(manifest.target)),
        ("machine", manifest.machine + (f" with {', '.join(manifest.features)}" if manifest.features else "")),
        ("written by", f"weft {manifest.weft}, format {manifest.format}"),
        ("inputs", "\n".join(map(str, manifest.inputs))),
        ("outputs", "\n".join(map(str, manifest.outputs))),
        ("plan", _plan_facts(manifest)),
        ("code", ", ".join(f"{name} {size(s.bytes)}" for name, s in manifest.sections.items())),
        ("weights", f"{len(manifest.constants)} constants, {size(manifest.weights.bytes if manifest.weights else 0)}"),
        ("arena", f"{manifest.arena} bytes"),
        ("stages", ", ".join(ARCHIVE_STAGES) + " (print one with --stage)"),
    ]
    print_table(manifest.name, ["", ""], rows)
