"""The plugin host: finds plugins through entry points, keeps broken ones apart, and calls hooks one implementation at a
time.

pluggy gives specifications and validation. Its own entry-point loading stops at the first bad plugin and its calls mix
all results, so both are done here: entry points are loaded one by one, sorted; a failure is kept as data and named when
that plugin is needed.
"""

from __future__ import annotations

import importlib.metadata as metadata
import itertools
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from weft import forks
from weft.contributions import misdeclared, misfit, unmarked
from weft.errors import ExecutionError, PluginError, PluginWarning, WeftError, from_signal, no_thread, raised_in
from weft.hooks import PROJECT, EngineKind, Specifications

if TYPE_CHECKING:
    from weft.graph.operator import Operator
    from weft.target import Target
    from weft_runtime.device import Device, DeviceKind

GROUP = "weft.plugins"
CORE = "core"
BY_HAND = "(registered by hand)"

# Only for error texts: which distribution of Weft's repository brings a target or a frontend, and what installs it
# there.
KNOWN_TARGETS = {
    "llvm": "weft-llvm",
    "c": "weft-c",
    "cuda": "weft-cuda",
    "opencl": "weft-opencl",
    "metal": "weft-metal",
    "webgpu": "weft-webgpu",
}
KNOWN_FRONTENDS = {
    ".onnx": "weft-onnx",
    ".cfg": "weft-darknet",
    ".ubj": "weft-sklearn",
    ".pt2": "weft-torch",
    ".tflite": "weft-tflite",
    ".prototxt": "weft-caffe",
    ".caffemodel": "weft-caffe",
    ".params": "weft-mxnet",
    ".pdmodel": "weft-paddle",
    **dict.fromkeys((".mlmodel", ".mlpackage"), "weft-coreml"),
    ".pb": "weft-tensorflow",
    **dict.fromkeys((".mlir", ".mlirbc"), "weft-stablehlo"),
    **dict.fromkeys((".keras", ".h5", ".hdf5"), "weft-keras"),
}
INSTALLS = {
    **dict.fromkeys(
        (
            "weft-llvm",
            "weft-c",
            "weft-onnx",
            "weft-darknet",
            "weft-sklearn",
            "weft-torch",
            "weft-tflite",
            "weft-caffe",
            "weft-mxnet",
            "weft-paddle",
            "weft-coreml",
            "weft-caffe2",
            "weft-tensorflow",
            "weft-stablehlo",
            "weft-keras",
        ),
        "pip install .",
    ),
    **dict.fromkeys(("weft-cuda", "weft-opencl", "weft-metal", "weft-webgpu", "weft-gpu"), 'pip install ".[gpu]"'),
}
KEPT = frozenset({"weft", "weft-core", "weft-ops"})  # nobody is told to uninstall them
# Formats that nothing here reads, and whose they are.
FOREIGN_FORMATS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".safetensors"), "PyTorch"),
    ".gguf": "llama.cpp",
    **dict.fromkeys((".pkl", ".joblib"), "Python's pickle"),
}  # fmt: skip


@dataclass
class Plugin:
    """One entry point: loaded, or quarantined with the reason in `failure`. `notes`: what looks like a mistake and
    harms nobody. `serial` tells it from others of this process, such as one that was registered by hand under this name
    before."""

    name: str
    distribution: str
    version: str
    requires: str
    origin: str
    object: Any = None
    failure: str | None = None
    error: BaseException | None = field(default=None, repr=False)
    notes: list[str] = field(default_factory=list)
    serial: int = field(default_factory=itertools.count().__next__)

    @property
    def healthy(self) -> bool:
        return self.failure is None

    @property
    def kept(self) -> bool:
        """Whether Weft cannot compile without it: if another plugin claims one of its names, that is not its
        failure."""
        return self.name == CORE or self.distribution in KEPT

    @property
    def package(self) -> str:
        """The top-level package of its code."""
        module = (
            getattr(self.object, "__name__", "")
            if isinstance(self.object, ModuleType)
            else type(self.object).__module__
            if self.object
            else self.origin
        )
        return module.partition(".")[0]

    def __str__(self) -> str:
        return f"plugin '{self.name}' ({' '.join(filter(None, (self.distribution.strip('()'), self.version)))})"


@dataclass
class Contribution:
    """One result of a hook, with the plugin it came from."""

    plugin: Plugin
    value: Any


class PluginHost:
    """The plugins of this process. `entry_points` and `api_version` are given by tests only."""

    def __init__(
        self, entry_points: Sequence[metadata.EntryPoint] | None = None, api_version: str | None = None
    ) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(Specifications)
        self.api_version = api_version or _own_version()
        self.plugins: list[Plugin] = []
        self.failures: list[tuple[Plugin, str, BaseException]] = []
        self._warned: set[tuple[str, str]] = set()  # names of plugins, and what was said of them
        found = list(metadata.entry_points(group=GROUP)) if entry_points is None else list(entry_points)
        for entry in sorted(found, key=lambda e: (e.name, e.value)):
            self._load(entry)

    def _load(self, entry: metadata.EntryPoint) -> None:
        dist = entry.dist
        name = dist.name if dist is not None else "(no distribution)"
        version = dist.version if dist is not None else "?"
        plugin = Plugin(entry.name, name, version, "", entry.value)
        twins = [p for p in self.plugins if p.name == plugin.name]
        if any((p.distribution, p.origin) == (plugin.distribution, plugin.origin) for p in twins):
            return  # the same distribution seen twice on the path
        self.plugins.append(plugin)
        if twins:
            owners = " and ".join(p.distribution for p in (*twins, plugin))
            kept = [p for p in (*twins, plugin) if p.kept]  # a part of Weft itself keeps its name
            for p in (*twins, plugin):
                if not kept or p is not kept[0]:
                    p.failure = (
                        f"the plugin '{entry.name}' is provided by {owners}:"
                        f" {'rename this one' if kept else 'keep one'}"
                    )
            here = self.manager.has_plugin(plugin.name)
            if here and (not kept or plugin is kept[0]):
                self.manager.unregister(name=plugin.name)
            if not kept or plugin is not kept[0]:
                return
        try:
            plugin.requires, fits = _weft_requirement(dist, self.api_version)
        except ValueError as error:
            plugin.failure = f"its metadata cannot be read: {str(error).splitlines()[0]}"
            return
        if not fits:
            remedy = f"install another version of {name}, or weft{plugin.requires}"
            plugin.failure = f"needs weft{plugin.requires}, this is weft {self.api_version}: {remedy}"
            return
        forks.need(entry.module.rpartition(".")[0] or entry.module)
        try:
            plugin.object = entry.load()
            self._register(plugin)
        except (Exception, SystemExit) as error:  # any failure of foreign code quarantines that plugin alone
            if from_signal(error):
                raise
            if self.manager.has_plugin(entry.name):
                self.manager.unregister(name=entry.name)
            plugin.failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            plugin.error = error

    def _register(self, plugin: Plugin) -> None:
        wrong = misdeclared(plugin.object)
        if wrong is not None:
            raise PluginError(wrong)
        self.manager.register(plugin.object, name=plugin.name)
        if not self.manager.get_hookcallers(plugin.object):
            plugin.notes.append("it implements no hook")
        plugin.notes += [
            f"'{name}' has the name of a hook and is not marked with @hookimpl" for name in unmarked(plugin.object)
        ]

    # -- calls
    def call(self, hook: str, *, required: str | None = None, **arguments: Any) -> list[Contribution]:
        """Calls every implementation of a hook singly, sorted by plugin name. An exception, or a result that the hook
        may not give, loses that plugin's result only.

        Args:
            required: the plugin that the user named: its failure is fatal.

        Raises:
            PluginError: `required` failed; names it and its distribution.
        """
        return [c for c in self.each(hook, required=required, **arguments) if c.value is not None]

    def each(self, hook: str, *, required: str | None = None, **arguments: Any) -> Iterator[Contribution]:
        """As `call`, one implementation per step, for hooks that act on their arguments: None stands for no result, or
        none that the hook may give."""
        caller = getattr(self.manager.hook, hook)
        by_name = {p.name: p for p in self.plugins}
        for implementation in sorted(caller.get_hookimpls(), key=lambda i: i.plugin_name):
            plugin = by_name.get(implementation.plugin_name) or Plugin(implementation.plugin_name, BY_HAND, "", "", "")
            try:
                value = implementation.function(*(arguments[a] for a in implementation.argnames))
                wrong = misfit(hook, value)
                if wrong is not None:
                    raise PluginError(wrong)
            except (Exception, SystemExit) as error:  # foreign code
                if from_signal(error):
                    raise
                # Without a part of Weft itself results would be others, without a word.
                fatal = required == plugin.name or plugin.kept
                self.failed(plugin, hook, error, arguments.get("target"), warn=not fatal)
                if fatal:
                    # An error of ours says what is wrong by itself, unless it is about the plugin's own result.
                    if isinstance(error, WeftError) and not isinstance(error, PluginError):
                        raise
                    raise PluginError(
                        f"{plugin} failed in hook '{hook}'", why=_placed(_one_line(error), error, plugin)
                    ) from error
                value = None
            yield Contribution(plugin, value)

    def failed(
        self, plugin: Plugin, hook: str, error: BaseException, target: Target | None = None, *, warn: bool = True
    ) -> None:
        """Keeps a failure, once, for `weft plugins` and for errors that it may explain; and warns, once for each
        target, that what follows goes on without the plugin.

        Args:
            target: what the hook was asked about, if it is asked about targets.
            warn: False where the caller raises an error, or says by itself what is left out.
        """
        if not any(p.name == plugin.name and h == hook and str(e) == str(error) for p, h, e in self.failures):
            self.failures.append((plugin, hook, error))
        asked = f" for the target '{target}'" if target is not None else ""
        why = _placed(_one_line(error, kind=True), error, plugin)
        said = f"{plugin} failed in hook '{hook}'{asked}, and is left out there: {why}"
        if warn and (plugin.name, said) not in self._warned:
            warnings.warn(PluginWarning(said), stacklevel=3)
            self._warned.add((plugin.name, said))

    @contextmanager
    def blame(self, plugin: str, doing: str) -> Iterator[None]:
        """What a plugin contributed is at work: an exception that is no error of Weft's becomes one that names the
        plugin and its distribution.

        Raises:
            PluginError: something else than a WeftError was raised.
        """
        try:
            yield
        except (WeftError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if from_signal(error) or no_thread(error):
                raise
            found = next((p for p in self.plugins if p.name == plugin), None)
            defect = not isinstance(error, OSError)  # else the system may have had no room, no file or no process left
            hint = f"{'this is a defect of the plugin; ' if defect else ''}--traceback shows the whole way"
            raise PluginError(
                f"{found or plugin} failed {doing}", why=_placed(_one_line(error, kind=True), error, found), hint=hint
            ) from error

    def blamed(self, contribution: Contribution, function: Callable[..., Any], doing: str) -> Callable[..., Any]:
        """`function`, which a plugin contributed, under `blame`."""

        @wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            with self.blame(contribution.plugin.name, doing):
                return function(*arguments, **named)

        return guarded

    def items(self, hook: str, **arguments: Any) -> list[Contribution]:
        """The elements of every sequence that a hook's implementations return."""
        return [Contribution(c.plugin, item) for c in self.call(hook, **arguments) for item in c.value]

    def named(self, hook: str, what: str, **arguments: Any) -> tuple[dict[str, Contribution], dict[str, PluginError]]:
        """The elements of every sequence by name, and an error for each name that is claimed more than once: who uses
        such a name raises it.

        Args:
            what: one of them in an error, e.g. "target".
        """
        return self.apart(hook, what, self.items(hook, **arguments))

    def apart(
        self,
        hook: str,
        what: str,
        items: Sequence[Contribution],
        named: Callable[[Any], str] = operator.attrgetter("name"),
        otherwise: str = "",
    ) -> tuple[dict[str, Contribution], dict[str, PluginError]]:
        """As `named`, of contributions that the caller has.

        Args:
            named: the name of an element.
            otherwise: what may be done instead of uninstalling a plugin.
        """
        found: dict[str, list[Contribution]] = {}
        for item in items:
            found.setdefault(named(item.value), []).append(item)
        clashes = {
            name: claimed(f"the {what} '{name}'", [i.plugin for i in same], otherwise)
            for name, same in found.items()
            if len(same) > 1
        }
        for name, error in clashes.items():
            for item in found[name]:
                if not item.plugin.kept:
                    self.failed(item.plugin, hook, error, warn=False)  # who uses the name raises it
        return {name: same[0] for name, same in found.items() if name not in clashes}, clashes

    @property
    def core(self) -> Plugin:
        """The plugin of what the core itself brings."""
        return next(
            (p for p in self.plugins if p.name == CORE),
            Plugin(CORE, "weft-core", self.api_version, "", "weft.core_plugin"),
        )

    def quarantined(self) -> list[Plugin]:
        return [p for p in self.plugins if not p.healthy]

    def register(self, plugin: object, name: str) -> None:
        """Adds a plugin object by hand (tests, notebooks).

        Raises:
            PluginError: a hook of it is not as it should be, or a plugin of this name is there.
        """
        if self.manager.has_plugin(name):
            raise PluginError(f"there is a plugin '{name}' already", hint="unregister it before, or give another name")
        added = Plugin(name, BY_HAND, "", "", repr(plugin), plugin)
        self._register(added)
        self.plugins.append(added)

    def unregister(self, name: str) -> None:
        self.manager.unregister(name=name)
        self.plugins = [p for p in self.plugins if p.name != name]
        self.failures = [f for f in self.failures if f[0].name != name]
        self._warned = {w for w in self._warned if w[0] != name}

    def missing(self, wanted: str, distribution: str | None) -> str:
        """The hint for something that no plugin offers: what installs it, or why an installed one is out."""
        for p in self.quarantined():
            if p.distribution == distribution or p.name == wanted:
                return f"{p.distribution} {p.version} is installed but out of use: {p.failure}"
        for p, hook, error in self.failures:
            if p.distribution == distribution:
                return f"{p.distribution} {p.version} is installed but failed in hook '{hook}': {_one_line(error)}"
        if distribution is not None:
            where = f", in Weft's repository: {INSTALLS[distribution]}" if distribution in INSTALLS else ""
            return f"{distribution} is not part of this installation{where}"
        broken = "; ".join(f"{p.distribution}: {p.failure}" for p in self.quarantined())
        return "see `weft plugins`" + (f" ({broken})" if broken else "")

    def trouble(self, hook: str) -> str | None:
        """Which plugins might have offered something through `hook` and do not, and why; None if all are well."""
        lines = [f"{p.distribution} {p.version} is out of use: {p.failure}" for p in self.quarantined()]
        lines += [
            f"{p.distribution} {p.version} failed in hook '{h}': {_one_line(error)}"
            for p, h, error in self.failures
            if h == hook
        ]
        return "; ".join(dict.fromkeys(lines)) or None


def _own_version() -> str:
    try:
        return metadata.version("weft-core")
    except metadata.PackageNotFoundError:
        return "0.0.0"


def _weft_requirement(dist: metadata.Distribution | None, version: str) -> tuple[str, bool]:
    """The range of `Requires-Dist: weft-core…`, or of `weft`, and whether `version` is in it; read before the plugin is
    imported.

    Raises:
        ValueError: the line is no requirement.
    """
    for line in (dist.requires or []) if dist is not None else []:
        # The pattern only saves parsing every other requirement.
        if not re.match(r"weft([-_.]+core)?(?![\w.-])", line, re.IGNORECASE):
            continue
        from packaging.requirements import Requirement

        found = Requirement(line)
        if found.marker is None or found.marker.evaluate({"extra": ""}):
            return str(found.specifier), found.specifier.contains(version, prereleases=True)
    return "", True


@cache
def host() -> PluginHost:
    """The process's plugin host, made at first use."""
    return PluginHost()


def _one_line(error: BaseException, kind: bool = False) -> str:
    """What an exception says; `kind`: and what it is, which an error of Weft's need not say."""
    if isinstance(error, WeftError):
        return "; ".join(filter(None, (error.what, error.why)))
    text = " ".join(str(error).split())
    name = type(error).__name__
    return (f"{name}: {text}" if kind else text) if text else name


def _placed(text: str, error: BaseException, plugin: Plugin | None) -> str:
    """With the line of the plugin's own code that raised, if that is what happened."""
    place = None if isinstance(error, WeftError) else raised_in(error, plugin.package if plugin is not None else "")
    return f"{text} ({place})" if place else text


def claimed(what: str, owners: Sequence[Plugin], otherwise: str = "") -> PluginError:
    """The error about a name that several plugins claim, or one claims several times. No order decides it; using the
    name raises this.

    Args:
        what: for example "the target 'npu'".
        owners: a plugin per claim.
        otherwise: what may be done instead of uninstalling one.
    """
    apart = list({p.name: p for p in owners}.values())
    if len(apart) == 1:
        why = "nothing says which of the claims is meant, and the first is as good as the others"
        return PluginError(
            f"{apart[0]} claims {what} {'twice' if len(owners) == 2 else f'{len(owners)} times'}",
            why=why,
            hint="a defect of the plugin",
        )
    removable = [
        f"unregister '{p.name}'" if p.distribution == BY_HAND else f"uninstall {p.distribution}"
        for p in apart
        if not p.kept
    ]
    why = "nothing says which of them is meant, and the order of plugins decides nothing"
    hint = " or ".join(filter(None, (*dict.fromkeys(removable), otherwise)))
    return PluginError(f"{what} is claimed by {' and '.join(map(str, apart))}", why=why, hint=hint)


def device_kinds(plugins: PluginHost | None = None) -> dict[str, DeviceKind]:
    """Every kind of device that installed plugins offer, by name; one that two claim, or whose plugin fails, is not
    here, and says why."""
    plugins = plugins or host()
    found, clashes = plugins.named("devices", "device")
    kinds = {name: _guarded_device(plugins, item) for name, item in found.items()}
    for name, error in clashes.items():
        from weft_runtime.device import DeviceKind

        kinds[name] = DeviceKind(name, partial(_clash, error), _not_to_be_opened)
    return kinds


def _clash(error: PluginError) -> str:
    """What is wrong, as one sentence."""
    return f"{error.what}: {error.why}; {error.hint}"


def _guarded_device(plugins: PluginHost, item: Contribution) -> DeviceKind:
    from weft_runtime.device import Device

    kind: DeviceKind = item.value

    def missing() -> str | None:
        try:
            return kind.missing()
        except Exception as error:  # foreign code
            if from_signal(error):
                raise
            plugins.failed(item.plugin, "devices", error)
            return f"{item.plugin} failed to say whether it is: {_one_line(error, kind=True)}"

    def open_it() -> Device:
        with plugins.blame(item.plugin.name, f"to open the device '{kind.name}'"):
            device = kind.open()
        if not isinstance(device, Device):
            raise PluginError(
                f"{item.plugin} opened the device '{kind.name}' as {type(device).__name__}, which is no Device"
            )
        return device

    def named(which: str) -> DeviceKind:
        assert kind.named is not None
        with plugins.blame(item.plugin.name, f"to name the device '{kind.name}:{which}'"):
            one = kind.named(which)
        return _guarded_device(plugins, replace(item, value=one))

    return replace(kind, missing=missing, open=open_it, named=named if kind.named is not None else None)


def _not_to_be_opened() -> Device:
    raise ExecutionError("this device has two plugins")  # `missing` has said so before


def operator_claims(plugins: PluginHost | None = None) -> tuple[dict[str, type[Operator]], dict[str, PluginError]]:
    """Every class of operator by name, the core's and those of plugins, and an error for each name that is claimed more
    than once."""
    from weft.graph.group import Group
    from weft.graph.relayout import Relayout

    plugins = plugins or host()
    items = [Contribution(plugins.core, op) for op in (Group, Relayout)] + plugins.items("operators")
    found, clashes = plugins.apart(
        "operators", "operator", items, operator.attrgetter("operator_name"), "give one another `operator_name`"
    )
    return {name: item.value for name, item in found.items()}, clashes


def operator_classes(plugins: PluginHost | None = None) -> dict[str, type[Operator]]:
    """Every class of operator by name, but those whose name is claimed more than once."""
    return operator_claims(plugins)[0]


def engine_kinds() -> list[EngineKind]:
    """Every peer that installed plugins offer; one that fails to say whether it is here is not. One that two claim
    raises when it is asked.

    Raises:
        PluginError: by `available`, `open` and `values` of what two plugins claim.
    """
    plugins = host()

    def guarded(item: Contribution) -> EngineKind:
        kind: EngineKind = item.value

        def available() -> str | None:
            try:
                return kind.available()
            except Exception as error:  # foreign code
                if from_signal(error):
                    raise
                plugins.failed(item.plugin, "engines", error)
                return None

        return replace(kind, available=available)

    def refused(name: str, error: PluginError) -> EngineKind:
        def fails(*arguments: Any) -> Any:
            raise error

        return EngineKind(name, fails, fails, fails)

    found, clashes = plugins.named("engines", "engine")
    return [*map(guarded, found.values()), *itertools.starmap(refused, clashes.items())]


def note_claims(plugins: PluginHost) -> None:
    """Keeps a failure for every name that plugins claim more than once, for `weft plugins`; those of a target are found
    when it is used."""
    for hook, what in (
        ("frontends", "frontend"),
        ("targets", "target"),
        ("devices", "device"),
        ("engines", "engine"),
        ("exporters", "format"),
    ):
        plugins.named(hook, what)
    for frontend in plugins.items("frontends"):
        plugins.items("converters", frontend=frontend.value.name)
    operator_claims(plugins)
