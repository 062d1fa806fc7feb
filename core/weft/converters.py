"""What plugins give a frontend beyond its own: converters of vendors' operators, and of versions that it does not
know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from weft.errors import PluginError
from weft.hooks import Converter
from weft.plugins import Contribution, PluginHost, claimed, host


class Converters:
    """The converters for one frontend, from the hook `converters`, which is called once.

    Args:
        frontend: its name.
        passing: exceptions that converters raise for the frontend; others that are no WeftError become one that names
            the plugin.
        plugins: the plugin host; None: the process's.
        check: (context, result) → what is wrong with what a converter returned, None if nothing is: an error that names
            the plugin.
        domains: other names of domains → those that the frontend looks for.
    """

    def __init__(
        self,
        frontend: str,
        passing: tuple[type[Exception], ...] = (),
        plugins: PluginHost | None = None,
        check: Callable[[Any, Any], str | None] | None = None,
        domains: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.frontend, self.passing, self.plugins, self.check = frontend, passing, plugins or host(), check
        self._given: dict[tuple[str, str], list[Contribution]] = {}
        for item in self.plugins.items("converters", frontend=frontend):
            given: Converter = item.value
            if given.frontend == frontend:
                self._given.setdefault((domains.get(given.domain, given.domain), given.operator), []).append(item)

    def newest(self, domain: str) -> int:
        """The newest version of a domain that a converter is made for; 0 if there is none."""
        versions = (i.value.since_version for (d, _), found in self._given.items() if d == domain for i in found)
        return max(versions, default=0)

    def find(self, domain: str, operator: str, version: int, known: bool = False) -> Callable[[Any], Any] | None:
        """The function for an operator at a version of its domain: that of the newest version up to it.

        Args:
            known: the frontend reads the operator at this version itself.

        Raises:
            PluginError: two plugins claim the operator, or one claims what the frontend reads itself.
        """
        fitting = [i for i in self._given.get((domain, operator), ()) if i.value.since_version <= version]
        if not fitting:
            return None
        newest = max(i.value.since_version for i in fitting)
        found = [i for i in fitting if i.value.since_version == newest]
        name = f"{domain}.{operator}" if domain else operator
        if len(found) > 1 or known:
            what = f"the operator {name} (version {version}) of frontend '{self.frontend}'"
            owners = [i.plugin for i in self.plugins.items("frontends") if known and i.value.name == self.frontend]
            error = claimed(what, [*(owners or [self.plugins.core] * known), *(i.plugin for i in found)])
            for item in found:
                self.plugins.failed(item.plugin, "converters", error, warn=False)
            raise error
        return self._guarded(found[0], f"to read the operator {name}")

    def _guarded(self, item: Contribution, doing: str) -> Callable[[Any], Any]:
        def convert(context: Any) -> Any:
            try:
                result = item.value.function(context)
            except self.passing:
                raise
            except Exception:
                with self.plugins.blame(item.plugin.name, doing):
                    raise
            wrong = None if self.check is None else self.check(context, result)
            if wrong is not None:
                raise PluginError(f"{item.plugin} failed {doing}", why=wrong, hint="this is a defect of the plugin")
            return result

        return convert


__all__ = ["Converters"]
