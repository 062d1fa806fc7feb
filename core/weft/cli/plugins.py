"""`weft plugins`: what is installed, what it contributes, and what is out of use and why."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from weft.cli.terminal import say

if TYPE_CHECKING:
    from weft.plugins import Plugin, PluginHost


def plugins(
    context: typer.Context,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="TARGET",
            help="Show who contributes what to this target, what is used, and why: the command `explain`.",
        ),
    ] = None,
) -> None:
    """Lists installed plugins and their state.

    For each plugin: distribution, version, range of Weft versions, contributions, and, if it is not in use, the reason.
    """
    from weft.cli.terminal import print_table
    from weft.plugins import host, note_claims

    if explain is not None:
        _explain(context, explain)
        return
    found = host()
    rows = [
        (
            p.name,
            f"{p.distribution} {p.version}",
            f"weft{p.requires}" if p.requires else "any weft",
            "\n".join(contributions(found, p)),
            "in use" if p.healthy else "quarantined",
        )
        for p in found.plugins
    ]
    note_claims(found)
    print_table(
        f"plugins of weft {found.api_version}", ["plugin", "distribution", "needs", "contributes", "health"], rows
    )
    for line in health(found):
        say(line)


def _explain(context: typer.Context, target: str) -> None:
    """Runs the command `explain`, which a plugin brings."""
    group = context.find_root().command
    assert isinstance(group, TyperGroup)
    command = group.commands["explain"]
    with command.make_context("explain", ["--", target], parent=context.find_root()) as inner:
        command.invoke(inner)


def health(host: PluginHost) -> list[str]:
    """A line for every plugin that is out of use, failed, or looks mistaken."""
    lines = [f"{p.distribution} {p.version} ({p.origin}) is out of use: {p.failure}" for p in host.quarantined()]
    lines += [
        f"{p.distribution}: hook '{hook}' failed: {type(error).__name__}: {error}" for p, hook, error in host.failures
    ]
    return lines + [f"{p.distribution}: {note}" for p in host.plugins for note in p.notes]


def contributions(host: PluginHost, plugin: Plugin) -> list[str]:
    """One line per hook that a plugin implements; hooks without arguments are asked what they give."""
    from weft.hooks import Specifications

    lines = []
    for hook in (n for n in vars(Specifications) if not n.startswith("_")):
        caller = getattr(host.manager.hook, hook)
        if not any(i.plugin_name == plugin.name for i in caller.get_hookimpls()):
            continue
        if caller.spec.argnames:
            lines.append(hook)
            continue
        names = [_describe(hook, c.value) for c in host.items(hook) if c.plugin.name == plugin.name]
        shown = f"{len(names)}" if len(names) > 8 else ", ".join(names) or "none"
        lines.append(f"{hook}: {shown}")
    return lines


def _describe(hook: str, value: Any) -> str:
    if hook == "frontends":
        options = "".join(f" -{f.name.replace('_', '-')}" for f in dataclasses.fields(value.options))
        return f"{value.name} ({', '.join(value.suffixes)}){options}"
    if hook == "exporters":
        options = "".join(f" --{o.name} {'|'.join(o.values) or 'TEXT'}" for o in value.options)
        return f"{value.name} ({value.suffix}): {value.about}{options}"
    if hook == "engines":
        version = value.available()
        return f"{value.name} {version}" if version else f"{value.name} (not installed)"
    return str(getattr(value, "name", None) or getattr(value, "__name__", value))
