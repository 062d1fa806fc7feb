"""The plugin host: finds plugins through entry points, keeps broken ones apart, and calls hooks one implementation at a time.

pluggy gives specifications and validation. Its own entry-point loading stops at the first bad plugin and its calls mix all results, so both are
done here: entry points are loaded one by one, sorted; a failure is kept as data and named when that plugin is needed.
"""

from __future__ import annotations

import importlib.metadata as metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import pluggy

from weft.errors import PluginError, WeftError, nearest
from weft.hooks import PROJECT, Specifications

if TYPE_CHECKING:
    from weft.runtime.device import DeviceKind

GROUP = "weft.plugins"

# Only for error texts: which distribution brings a target or a frontend.
KNOWN_TARGETS = {"llvm": "weft-llvm", "cuda": "weft-cuda", "opencl": "weft-opencl", "metal": "weft-metal"}
KNOWN_FRONTENDS = {
    ".onnx": "weft-onnx", ".pt2": "weft-torch", ".keras": "weft-keras", ".pb": "weft-tensorflow", ".mlmodel": "weft-coreml",
    ".caffemodel": "weft-caffe", ".cfg": "weft-darknet",
}  # fmt: skip


@dataclass
class Plugin:
    """One entry point: loaded, or quarantined with the reason in `failure`."""

    name: str
    distribution: str
    version: str
    requires: str
    origin: str
    object: Any = None
    failure: str | None = None
    error: BaseException | None = field(default=None, repr=False)

    @property
    def healthy(self) -> bool:
        return self.failure is None


@dataclass
class Contribution:
    """One result of a hook, with the plugin it came from."""

    plugin: Plugin
    value: Any


class PluginHost:
    """The plugins of this process. `entry_points` and `api_version` are given by tests only."""

    def __init__(self, entry_points: Sequence[metadata.EntryPoint] | None = None, api_version: str | None = None) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(Specifications)
        self.api_version = api_version or _own_version()
        self.plugins: list[Plugin] = []
        self.failures: list[tuple[Plugin, str, BaseException]] = []
        found = list(metadata.entry_points(group=GROUP)) if entry_points is None else list(entry_points)
        for entry in sorted(found, key=lambda e: (e.name, e.value)):
            self._load(entry)

    def _load(self, entry: metadata.EntryPoint) -> None:
        dist = entry.dist
        name = dist.name if dist is not None else "(no distribution)"
        version = dist.version if dist is not None else "?"
        plugin = Plugin(entry.name, name, version, "", entry.value)
        twin = next((p for p in self.plugins if p.name == plugin.name and p.healthy), None)
        if twin is not None and (twin.distribution, twin.origin) == (plugin.distribution, plugin.origin):
            return  # the same distribution seen twice on the path
        self.plugins.append(plugin)
        if twin is not None:
            reason = f"two distributions provide the plugin '{entry.name}': {twin.distribution} and {plugin.distribution}; uninstall one"
            plugin.failure = twin.failure = reason
            if self.manager.has_plugin(twin.name):
                self.manager.unregister(name=twin.name)
            return
        try:
            plugin.requires, fits = _weft_requirement(dist, self.api_version)
        except ValueError as error:
            plugin.failure = f"its metadata cannot be read: {str(error).splitlines()[0]}"
            return
        if not fits:
            plugin.failure = f"needs weft{plugin.requires}, this is weft {self.api_version}"
            return
        try:
            plugin.object = entry.load()
            self.manager.register(plugin.object, name=entry.name)
            self._check_names(plugin)
        except Exception as error:  # noqa: BLE001 - any failure of foreign code quarantines that plugin alone
            if self.manager.has_plugin(entry.name):
                self.manager.unregister(name=entry.name)
            plugin.failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            plugin.error = error

    def _check_names(self, plugin: Plugin) -> None:
        known = {n for n in vars(Specifications) if not n.startswith("_")}
        for n in dir(plugin.object):
            if hasattr(getattr(plugin.object, n, None), f"{PROJECT}_impl") and n not in known:
                close = nearest(n, known)
                raise PluginError(f"unknown hook '{n}'" + (f", did you mean '{close}'?" if close else ""))

    # -- calls
    def call(self, hook: str, *, required: str | None = None, **arguments: Any) -> list[Contribution]:
        """Calls every implementation of a hook singly, sorted by plugin name; an exception loses that plugin's result only.

        Args:
            required: the plugin that the user named: its failure is fatal.
        """
        results: list[Contribution] = []
        caller = getattr(self.manager.hook, hook)
        by_name = {p.name: p for p in self.plugins}
        for implementation in sorted(caller.get_hookimpls(), key=lambda i: i.plugin_name):
            plugin = by_name.get(implementation.plugin_name) or Plugin(implementation.plugin_name, "(registered by hand)", "", "", "")
            try:
                value = implementation.function(*(arguments[a] for a in implementation.argnames))
            except Exception as error:  # foreign code
                if required == plugin.name:
                    if isinstance(error, WeftError):
                        raise  # it says what is wrong by itself
                    raise PluginError(f"plugin '{plugin.name}' ({plugin.distribution} {plugin.version}) failed in hook '{hook}'", why=str(error)) from error
                self.failures.append((plugin, hook, error))
                continue
            if value is not None:
                results.append(Contribution(plugin, value))
        return results

    def items(self, hook: str, **arguments: Any) -> list[Contribution]:
        """The elements of every sequence that a hook's implementations return."""
        return [Contribution(c.plugin, item) for c in self.call(hook, **arguments) for item in c.value]

    def quarantined(self) -> list[Plugin]:
        return [p for p in self.plugins if not p.healthy]

    def register(self, plugin: object, name: str) -> None:
        """Adds a plugin object by hand (tests, notebooks)."""
        self.manager.register(plugin, name=name)
        self.plugins.append(Plugin(name, "(registered by hand)", "", "", repr(plugin), plugin))

    def unregister(self, name: str) -> None:
        self.manager.unregister(name=name)
        self.plugins = [p for p in self.plugins if p.name != name]

    def missing(self, wanted: str, distribution: str | None) -> str:
        """The hint for something that no plugin offers: the package to install, or why an installed one is out."""
        for p in self.quarantined():
            if p.distribution == distribution or p.name == wanted:
                return f"{p.distribution} {p.version} is installed but out of use: {p.failure}"
        for p, hook, error in self.failures:
            if p.distribution == distribution:
                return f"{p.distribution} {p.version} is installed but failed in hook '{hook}': {error}"
        if distribution is not None:
            return f"pip install {distribution}"
        broken = "; ".join(f"{p.distribution}: {p.failure}" for p in self.quarantined())
        return "see `weft plugins`" + (f" ({broken})" if broken else "")

    def trouble(self, hook: str) -> str | None:
        """Which plugins might have offered something through `hook` and do not, and why; None if all are well."""
        lines = [f"{p.distribution} {p.version} is out of use: {p.failure}" for p in self.quarantined()]
        lines += [f"{p.distribution} {p.version} failed in hook '{h}': {error}" for p, h, error in self.failures if h == hook]
        return "; ".join(dict.fromkeys(lines)) or None


def _own_version() -> str:
    try:
        return metadata.version("weft")
    except metadata.PackageNotFoundError:
        return "0.0.0"


def _weft_requirement(dist: metadata.Distribution | None, version: str) -> tuple[str, bool]:
    """The range of `Requires-Dist: weft…`, read before the plugin is imported, and whether `version` is in it.

    Raises:
        ValueError: the line is no requirement.
    """
    for line in (dist.requires or []) if dist is not None else []:
        # The pattern only saves parsing every other requirement.
        if not re.match(r"weft(?![\w.-])", line, re.IGNORECASE):
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


def device_kinds() -> dict[str, DeviceKind]:
    """Every kind of device that installed plugins offer, by name.

    Raises:
        PluginError: two plugins offer one name.
    """
    found: dict[str, Contribution] = {}
    for item in host().items("devices"):
        twin = found.setdefault(item.value.name, item)
        if twin is not item:
            pair = f"{twin.plugin.distribution} and {item.plugin.distribution}"
            raise PluginError(f"two plugins offer the device '{item.value.name}': {pair}", hint="uninstall one")
    return {name: item.value for name, item in found.items()}
