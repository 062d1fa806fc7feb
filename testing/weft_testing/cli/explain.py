"""`weft explain TARGET`, which `weft plugins --explain TARGET` runs: who contributes what to compilations for a target,
who won each choice, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.plugins import Contribution, Plugin
    from weft.resolve import ResolvedTarget


@dataclass(frozen=True)
class Choice:
    """A row: of `what` this was chosen, whose it is, and why it and not another."""

    what: str
    chosen: str
    by: str
    why: str


CORE = "weft-core"
MANY = 6


def explain(target: ResolvedTarget) -> list[Choice]:
    """Every choice that a compilation for `target` makes among plugins, in the order in which it meets them. A part
    that fails is a row that says how."""
    parts = (_kind, _machine, _capabilities, _graph_passes, _offload, _rules, _intrinsics, _loop_passes, _code, _device)
    found: list[Choice] = []
    for part in parts:
        try:
            found += part(target)
        except WeftError as error:
            found.append(
                Choice(
                    part.__name__.strip("_").replace("_", " "),
                    "failed",
                    str(_owner(target)),
                    " ".join(str(error).split()),
                )
            )
    return found


def explain_targets(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A target string; several are separated by commas.")],
) -> None:
    """Shows who contributes what to a target, what is used, and why."""
    from weft.resolve import resolve_targets

    print_explanation(resolve_targets(target))


def print_explanation(targets: Sequence[ResolvedTarget]) -> None:
    """A table for each target, then how all plugins are."""
    from weft.cli.plugins import health
    from weft.cli.terminal import brief, print_table, say

    for number, t in enumerate(targets):
        found = explain(t)
        before = ["", *(c.what for c in found)]
        rows = [("" if c.what == last else c.what, c.chosen, c.by, c.why) for c, last in zip(found, before)]
        place = f", preferred {number + 1} of {len(targets)}" if len(targets) > 1 else ""
        print_table(f"{brief(str(t.target))}{place}", ["what", "chosen", "from", "why"], rows)
    lines = health(targets[0].plugins)
    say("\n".join(lines) if lines else f"all {len(targets[0].plugins.plugins)} plugins are in use")


# -- the parts --------------------------------------------------------------------------------------------------------


def _by(plugin: Plugin) -> str:
    return " ".join(filter(None, (plugin.distribution.strip("()"), plugin.version)))


def _owner(target: ResolvedTarget) -> str:
    found = next((p for p in target.plugins.plugins if p.name == target.owner), None)
    return _by(found) if found is not None else target.owner


def _kind(t: ResolvedTarget) -> list[Choice]:
    return [Choice("target", t.target.kind, _owner(t), "the only one that offers it")]


def _machine(t: ResolvedTarget) -> list[Choice]:
    m = t.machine
    scopes = f", memories {', '.join(m.scopes)}" if m.scopes else ""
    return [
        Choice(
            "machine",
            m.kind,
            _owner(t),
            f"{m.cores} cores, vectors of {m.vector_bits} bits, {m.vector_registers} registers{scopes}",
        )
    ]


def _capabilities(t: ResolvedTarget) -> list[Choice]:
    found = t.plugins.call("capabilities", required=t.owner, target=t.target)
    from weft.graph.operator import Operator

    c = t.capabilities
    said = [f"{'usual composites' if Operator in c.claims else f'{len(c.claims)} composites'} whole"]
    said += [f"channels in blocks of {c.channel_block}"] if c.channel_block else []
    said += [f"panels of {c.panel}"] if c.panel else []
    said += [f"constants in {c.precision.name}"] if c.precision is not None else []
    if not found:
        return [Choice("capabilities", ", ".join(said), CORE, "no plugin says more")]
    winner = next((x for x in found if x.plugin.name == t.owner), found[0])
    others = [_by(x.plugin) for x in found if x is not winner]
    why = "the only answer" if not others else f"the target is its own; not {', '.join(others)}"
    return [Choice("capabilities", ", ".join(said), _by(winner.plugin), why)]


def _graph_passes(t: ResolvedTarget) -> list[Choice]:
    from weft.passes.pipeline import pass_names

    return list(
        _ordered(
            "graph passes",
            pass_names(t.graph_passes()),
            t.plugins.items("graph_passes", required=t.owner, target=t.target),
        )
    )


def _loop_passes(t: ResolvedTarget) -> list[Choice]:
    from weft.loop.pipeline import ordered

    return list(
        _ordered(
            "loop passes",
            [s.name for s in ordered(t.loop_passes())],
            t.plugins.items("loop_passes", required=t.owner, target=t.target, intrinsics=list(t.intrinsics.values())),
        )
    )


def _ordered(what: str, names: Sequence[str], own: Sequence[Contribution]) -> Iterator[Choice]:
    """Runs of the core's passes in one row each, those of plugins between them."""
    plugins = {c.value.name: c for c in own}
    core: list[str] = []
    for name in [*names, None]:
        if name is not None and name not in plugins:
            core.append(name)
            continue
        if core:
            yield Choice(
                what, f"{core[0]} … {core[-1]}" if len(core) > 1 else core[0], CORE, f"{len(core)} in the core's order"
            )
            core = []
        if name is not None:
            after, before = plugins[name].value.after, getattr(plugins[name].value, "before", "")
            why = f"after {after}" if after else f"before {before}" if before else "first"
            yield Choice(what, name, _by(plugins[name].plugin), why)


def _offload(t: ResolvedTarget) -> list[Choice]:

    what = "offers of nodes"
    if t.native:
        return [Choice(what, "everything", _owner(t), "a host CPU computes the remaining nodes")]
    names = sorted(i.plugin_name for i in t.plugins.manager.hook.offload.get_hookimpls())
    own = [p for p in t.plugins.plugins if p.name in names]
    if not own:
        return [Choice(what, "what the schedule rules take", CORE, "no plugin implements offload")]
    return [Choice(what, "offload", _by(p), "asked first; where all answer None, the schedule rules are") for p in own]


def _rules(t: ResolvedTarget) -> list[Choice]:
    found = t.plugins.items("schedules", required=t.owner, target=t.target)
    found.sort(key=lambda c: (not c.value.by_default, -c.value.priority, c.value.name))
    if not found:
        return [Choice("schedule rules", "none", _owner(t), "nothing can be compiled")]
    rows = []
    for c in found:
        when = f"the cheapest offer wins, then priority {c.value.priority}"
        why = f"{when if c.value.by_default else 'only a record chooses it'}{_first_line(c.value)}"
        rows.append(Choice("schedule rules", c.value.name, _by(c.plugin), why))
    return rows


def _intrinsics(t: ResolvedTarget) -> list[Choice]:
    chosen = t.intrinsics
    rows = []
    for c in t.plugins.items("intrinsics", required=t.owner, target=t.target):
        lacks = [f for f in c.value.requires if f not in t.machine.features]
        why = (
            f"left out: the machine has no {', '.join(lacks)}"
            if lacks
            else "the machine has " + (", ".join(c.value.requires) or "all that it requires")
        )
        rows.append(
            Choice(
                "intrinsics",
                c.value.name if c.value.name in chosen and not lacks else f"({c.value.name})",
                _by(c.plugin),
                why,
            )
        )
    return _together(rows) or [Choice("intrinsics", "none", _owner(t), "no plugin offers one")]


def _together(rows: list[Choice]) -> list[Choice]:
    """Rows that say the same of many names as one."""
    alike: dict[tuple[str, str], list[Choice]] = {}
    for row in rows:
        alike.setdefault((row.by, row.why), []).append(row)
    found = []
    for same in alike.values():
        names = [row.chosen for row in same]
        found += (
            same
            if len(same) <= MANY
            else [replace(same[0], chosen=f"{', '.join(names[: MANY - 1])}, … {names[-1]}: {len(same)} in all")]
        )
    return found


def _code(t: ResolvedTarget) -> list[Choice]:
    codegen = t.codegen()
    name = f"{type(codegen).__module__}.{type(codegen).__qualname__}"
    return [
        Choice(
            "code generator", name, _owner(t), f"the target's own; {len(codegen.functions)} functions need no expansion"
        )
    ]


def _device(t: ResolvedTarget) -> list[Choice]:
    from weft.plugins import device_kinds

    name = t.device
    if t.native:
        return [Choice("device", name, CORE, "the host's own processor")]
    owners = [c.plugin for c in t.plugins.items("devices") if c.value.name == name]
    kind = device_kinds(t.plugins).get(name)
    if kind is None:
        return [Choice("device", f"({name})", "nobody", "no plugin offers it: what is compiled cannot run here")]
    missing = kind.missing()
    return [
        Choice("device", name if missing is None else f"({name})", ", ".join(map(_by, owners)), missing or "it is here")
    ]


def _first_line(value: Any) -> str:
    """What a rule says of itself, or, where that is in its module, what the module does."""
    texts = (type(value).__doc__ or "", sys.modules[type(value).__module__].__doc__ or "")
    lines = [t.strip().splitlines()[0] for t in texts if t.strip() and not t.startswith("See the module")]
    return f": {lines[0].rstrip('.')}" if lines else ""
