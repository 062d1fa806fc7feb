"""Which function converts which operator of a format.

    registry: Registry[Context] = Registry("weft_acme.converters")

    @registry.op("LeakyRelu")
    def leaky_relu(c: Context) -> Result:
        return c(LeakyRelu(c.real("alpha", 0.01)), c.value(0))

A converter returns what stands for the outputs: a Value, a Content (integers known as formulas), None for an output it
does not make, or a sequence of these. It raises through `c.unsupported(reason)` what it cannot do.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from weft.graph.nodes import Value
from weft_frontend.contents import Content

C = TypeVar("C")
Result: TypeAlias = "Value | Content | Sequence[Value | Content | None] | None"
"""What a converter returns."""


@dataclass(frozen=True)
class Registered(Generic[C]):
    """A converter for the versions first … last of a domain; `refuses`: it only says why there is none."""

    function: Callable[[C], Any]
    first: int
    last: int
    refuses: bool = False


class Registry(Generic[C]):
    """The converters of a frontend.

    Args:
        modules: the package whose import registers them, imported when one is first asked for.
    """

    def __init__(self, modules: str) -> None:
        self.modules = modules
        self._converters: dict[tuple[str, str], list[Registered[C]]] = {}
        self._formulas: dict[tuple[str, str], Callable[[C], Any]] = {}

    def op(
        self, *names: str, domain: str = "", versions: tuple[int, int] = (1, 10_000), refuses: bool = False
    ) -> Callable[[Callable[[C], Any]], Callable[[C], Any]]:
        """Registers a converter for operators of `domain` ("" is the format's own), for the versions first … last;
        `refuses`: of operators that cannot be read, whose converter says why."""

        def register(function: Callable[[C], Any]) -> Callable[[C], Any]:
            for name in names:
                entry = Registered(function, *versions, refuses)
                self._converters.setdefault((domain, name), []).append(entry)
            return function

        return register

    def formula(self, *names: str, domain: str = "") -> Callable[[Callable[[C], Any]], Callable[[C], Any]]:
        """Registers what computes operators on contents, tried where every operand has one; it returns None to leave it
        to the converter."""

        def register(function: Callable[[C], Any]) -> Callable[[C], Any]:
            for name in names:
                self._formulas[domain, name] = function
            return function

        return register

    def find(self, domain: str, name: str, version: int = 1) -> Callable[[C], Any] | None:
        """The converter of an operator at a version; of several, that for the fewest versions."""
        entry = self._entry(domain, name, version)
        return None if entry is None else entry.function

    def find_formula(self, domain: str, name: str) -> Callable[[C], Any] | None:
        self._load()
        return self._formulas.get((domain, name))

    def reaches(self, domain: str, name: str, version: int) -> int:
        """The newest version that the converter for a version is for; 0 if there is none."""
        entry = self._entry(domain, name, version)
        return 0 if entry is None else entry.last

    def supported(self) -> list[tuple[str, str]]:
        """Every (domain, operator) that is read."""
        self._load()
        return sorted(key for key, found in self._converters.items() if not all(entry.refuses for entry in found))

    def _entry(self, domain: str, name: str, version: int) -> Registered[C] | None:
        self._load()
        fitting = [e for e in self._converters.get((domain, name), ()) if e.first <= version <= e.last]
        return min(fitting, key=lambda entry: entry.last - entry.first, default=None)

    def _load(self) -> None:
        importlib.import_module(self.modules)


__all__ = ["Registered", "Registry", "Result"]
