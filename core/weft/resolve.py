"""Targets with everything that a compilation asks of their plugins."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from weft.choices import listed
from weft.errors import (
    InputError,
    PluginError,
    ScheduleWarning,
    TargetError,
    WeftError,
    expect,
)
from weft.forks import cached_property
from weft.plugins import KNOWN_TARGETS, Contribution, PluginHost, claimed, host
from weft.record_store import load_records, read_store
from weft.records import Record, Records, machine_key
from weft.settings import RECORDS
from weft.target import CPU, Target, TargetKind, parse_targets
from weft_runtime.plan import HOST

# What a compilation needs beyond this is imported when there is one: a model from the cache starts without the
# compiler.
if TYPE_CHECKING:
    from weft.codegen.base import Codegen
    from weft.loop.nodes import Program
    from weft.loop.pipeline import LoopPass
    from weft.machine import Machine, Transfer
    from weft.passes.capabilities import Capabilities
    from weft.passes.pipeline import GraphPass
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule

T = TypeVar("T")


@dataclass(frozen=True)
class ResolvedTarget:
    """A target with the contributions of all plugins for it."""

    target: Target
    kind: TargetKind
    fingerprint: str
    threads: int | None  # that the target string asked for; None: as many as the process may use, wherever it runs
    plugins: PluginHost
    owner: str  # the plugin of the kind: its failures are fatal
    given: Records = field(default_factory=Records)  # of the caller; those of installed packages are found beside them
    tuned: bool = True  # whether the user's own records (WEFT_RECORDS) are followed, too
    refused: list[Record] = field(default_factory=list, compare=False)  # those that compilations for it did not follow
    applied: set[Record] = field(default_factory=set, compare=False)  # those of what was compiled for it

    @cached_property
    def machine(self) -> Machine:
        from weft.machine import GLOBAL_ALIGN, Machine

        found = self._asked(self.kind.machine, "to describe its machine", Machine)
        if self.native and found.alignment() > GLOBAL_ALIGN:
            what = (
                f"the target '{self.target.kind}' declares that global memory is aligned to {found.alignment()} bytes"
            )
            why = "its kernels run on the host's processor, where callers' arrays begin at any element"
            raise PluginError(
                what,
                where=str(self.target),
                why=why,
                hint="bring what has to be aligned to a scope of the target's own: cache_read",
            )
        return found

    @property
    def plugin(self) -> str:
        """The plugin of the kind and its distribution, for people."""
        return next((str(p) for p in self.plugins.plugins if p.name == self.owner), self.owner)

    @cached_property
    def device(self) -> str:
        """The name of the device that runs its code."""
        name = self._asked(self.kind.device, "to name its device", str)
        if name == HOST:
            raise PluginError(
                f"the target '{self.target.kind}' names '{HOST}' as its device, which is the host's memory in plans",
                hint="name it otherwise",
            )
        return name

    @property
    def native(self) -> bool:
        """Whether the host's own processor runs its code."""
        return self.device == CPU

    @property
    def transfer(self) -> Transfer:
        """What copies to its device and back take."""
        from weft.machine import Transfer

        return self._asked(self.kind.transfer, "to say what copies take", Transfer)

    @property
    def description(self) -> str:
        """A short description for people."""
        return self._asked(self.kind.describe, "to describe itself", str)

    def exceeds(self, program: Program) -> str | None:
        """Where a scheduled Program exceeds the target's limits, as the end of a sentence; None if it does not."""
        from weft.scheduling.scopes import exceeds

        with self.blame("to list where a schedule exceeds it"):
            wrong = self.kind.exceeds(program, self.machine)
        return "; ".join(filter(None, (exceeds(program, self.machine), wrong))) or None

    def codegen(self) -> Codegen:
        """A code generator of its own."""
        with self.blame("to make its code generator"):
            return self.kind.codegen(self.target)

    def taken(self, lowered: Program) -> Program:
        """A lowered program for the code generator: with `-threads=1` in the target string, its parallel loops are
        serial."""
        from weft.codegen.base import in_one_thread

        return in_one_thread(lowered) if self.threads == 1 else lowered

    @cached_property
    def capabilities(self) -> Capabilities:
        from weft.passes.capabilities import Capabilities

        found = self.plugins.call("capabilities", required=self.owner, target=self.target)
        # The plugin of the target knows it best; of others none is before another.
        found = [c for c in found if c.plugin.name == self.owner] or found
        if len(found) > 1:
            raise self._claimed(f"what graph passes may assume of target '{self.target.kind}'", found)
        return found[0].value if found else Capabilities()

    @cached_property
    def intrinsics(self) -> dict[str, Intrinsic]:
        """The tensor intrinsics that the machine has, by name.

        Raises:
            PluginError: two plugins claim one name.
        """
        items = self.plugins.items("intrinsics", required=self.owner, target=self.target)
        return {
            c.value.name: c.value
            for c in self._apart(
                "intrinsics", "intrinsic", [c for c in items if self.machine.features.issuperset(c.value.requires)]
            )
        }

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The schedule rules of all plugins.

        Raises:
            PluginError: one name is claimed more than once; records identify rules by name.
        """
        items = self.plugins.items("schedules", required=self.owner, target=self.target)
        return tuple(item.value for item in self._apart("schedules", "schedule rule", items))

    @cached_property
    def records(self) -> Records:
        """Recorded choices: the caller's, then those that the user has tuned (WEFT_RECORDS), then those of plugins.
        Records in which two plugins differ are not used; the caller's and the user's have precedence."""
        found: dict[tuple[str, str, str], list[tuple[Contribution, Record]]] = {}
        for item in self.plugins.items("records", required=self.owner, target=self.target):
            for record in self._read(item).records:
                found.setdefault((record.subject, record.key, record.machine), []).append((item, record))
        kept = []
        for offers in found.values():
            if all(r == offers[0][1] for _, r in offers):
                kept.append(offers[0][1])
                continue
            owners = " and ".join(dict.fromkeys(f"{i.plugin.distribution} ({i.plugin.name})" for i, _ in offers))
            text = (
                f"{offers[0][1]} is not followed: {owners} record different choices; give one of them as `records`,"
                " which stands over both"
            )
            warnings.warn(text, ScheduleWarning, stacklevel=2)
        return self.given.over(self._tuned()).over(Records(tuple(kept)))

    def _tuned(self) -> Records:
        """The user's own records for this machine and these versions; none, with a warning, if they cannot be read."""
        file = RECORDS.get() if self.tuned else None
        # Not by `Path.is_file`, which raises where a folder of the path may not be searched.
        if file is None or not os.path.isfile(file):
            return Records()
        try:
            return read_store(file, self.machine_key, self.versions)
        except InputError as error:
            why = "; ".join(filter(None, (error.what, error.why, error.hint)))
            warnings.warn(f"the records in {RECORDS.name} are not followed: {why}", ScheduleWarning, stacklevel=2)
            return Records()

    @cached_property
    def versions(self) -> str:
        """Releases of the core and of the target's plugin, which a tuner's records are of."""
        owner = next((p for p in self.plugins.plugins if p.name == self.owner), None)
        return f"{self.plugins.api_version}" + (f" {owner.distribution} {owner.version}" if owner is not None else "")

    def _read(self, item: Contribution) -> Records:
        """The records that a plugin gives, as such or by their file; none, with a warning, where they cannot be read.

        Raises:
            PluginError: they cannot be read, and the plugin is the target's own.
        """
        try:
            with self.plugins.blame(item.plugin.name, "to read its records"):
                return item.value if isinstance(item.value, Records) else load_records(item.value)
        except WeftError as error:
            self.plugins.failed(item.plugin, "records", error, warn=False)
            what = f"the records of {item.plugin} cannot be read"
            why = "; ".join(filter(None, (error.what, error.where, error.why)))
            hint = f"install another version of {item.plugin.distribution}, or uninstall it"
            if item.plugin.name == self.owner:
                raise PluginError(what, where=str(self.target), why=why, hint=hint) from error
            warnings.warn(f"{what}, and are not followed: {why}", ScheduleWarning, stacklevel=2)
            return Records()

    @cached_property
    def machine_key(self) -> str:
        """What records of its machine are known by."""
        return machine_key(self.target.kind, self.machine)

    def graph_passes(self) -> list[GraphPass]:
        """Of all plugins. An exception in one is an error that names its plugin.

        Raises:
            PluginError: two plugins claim one name, or one claims the name of a pass of the core.
        """
        from weft.passes.pipeline import CORE

        return self._passes("graph_passes", "graph", [p.name for p in CORE])

    def loop_passes(self) -> list[LoopPass]:
        """Of all plugins, as `graph_passes`.

        Raises:
            PluginError: also if the target has instructions of queues, and no pass that awaits them.
        """
        from weft.loop.pipeline import STAGES
        from weft.loop.queues import AWAIT_QUEUES
        from weft.scheduling.intrinsic import queued

        queues = queued(self.intrinsics.values())
        taken = [s.name for s in STAGES]
        found = self._passes("loop_passes", "loop", taken, intrinsics=list(self.intrinsics.values()))
        if queues and not any(p.name == AWAIT_QUEUES for p in found):
            raise PluginError(
                f"the target '{self.target.kind}' has instructions of queues, and no loop pass awaits them",
                where=", ".join(queues),
                why=f"the pass '{AWAIT_QUEUES}' is of a package that is not in use",
                hint='pip install "weft-queues"',
            )
        return found

    def _passes(self, hook: str, what: str, taken: Sequence[str], **arguments: Any) -> list[Any]:
        items = self.plugins.items(hook, required=self.owner, target=self.target, **arguments)
        found = self._apart(hook, f"{what} pass", items, taken)
        return [
            replace(c.value, function=self.plugins.blamed(c, c.value.function, f"in its {what} pass '{c.value.name}'"))
            for c in found
        ]

    def _apart(
        self, hook: str, what: str, items: Sequence[Contribution], taken: Sequence[str] = ()
    ) -> Sequence[Contribution]:
        """`items`, which the target uses all.

        Args:
            taken: names of the core's own.

        Raises:
            PluginError: one name is claimed more than once.
        """
        for item in items:
            same = [i for i in items if i.value.name == item.value.name]
            core = [Contribution(self.plugins.core, None)] if item.value.name in taken else []
            if len(same) + len(core) > 1:
                raise self._claimed(
                    f"the {what} '{item.value.name}' of target '{self.target.kind}'", [*core, *same], hook
                )
        return items

    def _claimed(self, what: str, items: Sequence[Contribution], hook: str = "capabilities") -> PluginError:
        error = claimed(what, [i.plugin for i in items])
        for item in items:
            if not item.plugin.kept:
                self.plugins.failed(item.plugin, hook, error, warn=False)
        return error

    def _asked(self, method: Callable[[Target], Any], doing: str, kind: type[T]) -> T:
        """What a method of the target's kind says of the target: an error of its plugin if it fails, or gives something
        else."""
        with self.blame(doing):
            found = method(self.target)
            if not isinstance(found, kind):
                raise TypeError(f"{method.__name__} gave {found!r}, which is no {kind.__name__}")
            return found

    def blame(self, doing: str) -> AbstractContextManager[None]:
        """What the target's plugin contributed is at work: `PluginHost.blame`."""
        return self.plugins.blame(self.owner, doing)


def target_kinds(plugins: PluginHost | None = None) -> dict[str, TargetKind]:
    """Every kind of target that installed plugins offer, by name, but those that two claim."""
    return {name: offer.value for name, offer in (plugins or host()).named("targets", "target")[0].items()}


def resolve_target(text: str | Target, plugins: PluginHost | None = None) -> ResolvedTarget:
    """The one target of a string such as "llvm -mcpu=znver4 -threads=2".

    Raises:
        TargetError: unknown target or option, one whose plugin is not installed (names the package), or several
            targets.
    """
    found = resolve_targets(text, plugins)
    if len(found) > 1:
        raise TargetError(
            "one target is wanted here", where=str(text), hint=f'name one, for example "{found[0].target.kind}"'
        )
    return found[0]


def warn_if_unused(targets: Sequence[ResolvedTarget]) -> bool:
    """Gives a ScheduleWarning if the caller's records are of nothing that was compiled for the targets; whether it
    did."""
    given = targets[0].given.records
    if not given or any(r in t.applied for t in targets for r in given):
        return False
    machines, own = sorted({r.machine for r in given}), [t.machine_key for t in targets]
    why = (
        "no kernel, group or graph of the model has the key of one: the model, its sizes or the version of Weft differs"
        if set(machines) & set(own)
        else f"they are of {listed(machines)}, the target is {listed(own)}"
    )
    source = f" in {given[0].source}" if given[0].source else ""
    text = f"no record{source} is followed: {why}; `weft inspect --stage records` prints the records of a model"
    warnings.warn(text, ScheduleWarning, stacklevel=3)
    return True


def resolve_targets(
    text: str | Target, plugins: PluginHost | None = None, records: Records | str | os.PathLike[str] | None = None
) -> tuple[ResolvedTarget, ...]:
    """The targets of a string such as "npu, llvm -threads=2", in order of preference.

    Args:
        records: choices to follow, or a file of them.

    Raises:
        TargetError: unknown target or option, or one whose plugin is not installed (names the package).
        InputError: the file is not there, or is no file of records.
    """
    expect(
        records,
        (Records, str, os.PathLike, type(None)),
        "records",
        "the path of a file",
        InputError,
        "`weft inspect --stage records` prints such a file",
    )
    given = records if isinstance(records, Records) else Records() if records is None else load_records(records)
    plugins = plugins or host()
    if not isinstance(text, (str, Target)):
        raise TargetError(
            f"a target is a text, got {type(text).__name__}", hint='for example "llvm", which is this machine'
        )
    name = (text.split() or [""])[0].rstrip(",") if isinstance(text, str) else text.kind
    offered, clashes = plugins.named("targets", "target", required=name)
    for word in re.findall(r"(?:^|,)\s*([^\s,]+)", str(text) if isinstance(text, str) else text.kind):
        if word in clashes:
            raise clashes[word]
    kinds: dict[str, TargetKind] = {n: offer.value for n, offer in offered.items()}
    if name not in kinds and (name in KNOWN_TARGETS or any(p.name == name for p in plugins.quarantined())):
        raise TargetError(
            f"the plugin of target '{name}' is not in use",
            where=str(text),
            hint=plugins.missing(name, KNOWN_TARGETS.get(name)),
        )
    try:
        targets = (text,) if isinstance(text, Target) and name in kinds else parse_targets(str(text), kinds)
    except TargetError as error:
        if name and name not in kinds:
            error.why = plugins.trouble(
                "targets"
            )  # the kind may be one of a plugin that is out of use, whatever that plugin is called
        raise
    return tuple(replace(_resolved(t, offered[t.kind], plugins), given=given) for t in targets)


def _resolved(given: Target, offer: Contribution, plugins: PluginHost) -> ResolvedTarget:
    kind: TargetKind = offer.value
    for plugin in plugins.quarantined():
        if plugin.kept:
            hint = f"install it again: pip install --force-reinstall {plugin.distribution}"
            raise PluginError(f"{plugin}, a part of Weft itself, is out of use", why=plugin.failure, hint=hint)
    with plugins.blame(offer.plugin.name, f"to resolve the target '{given}'"):
        target = kind.resolve(given)
        fingerprint = kind.fingerprint(target)
        if not isinstance(target, Target) or not isinstance(fingerprint, str):
            raise TypeError(f"it gave {target!r} and the fingerprint {fingerprint!r}")
    threads = getattr(given.options, "threads", None)
    if threads == 1:  # other code than for one core whose runs may have several threads, see `ResolvedTarget.taken`
        fingerprint += "/one thread"
    return ResolvedTarget(target, kind, fingerprint, threads, plugins, offer.plugin.name)
