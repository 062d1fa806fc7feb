"""The table of functions that a plan may name, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weft_runtime.errors import ExecutionError, WeftError, nearest

Attribute: TypeAlias = "bool | int | float | str | tuple[int, ...] | tuple[str, ...]"
KINDS: dict[str, str] = {
    "bool": "true or false",
    "int": "an integer",
    "str": "text",
    "ints": "a list of integers",
    "strs": "a list of texts",
}


@dataclass(frozen=True)
class HostFunction:
    """A function of values.

    Attributes:
        attributes: name → kind, a key of `KINDS`; all of them are given.
    """

    name: str
    function: Callable[..., tuple[Any, ...]]
    attributes: Mapping[str, str]

    def trouble(self, given: Mapping[str, Any]) -> str | None:
        """What is wrong with attributes, which may come from anybody; None if they are of the names and kinds that the
        function has."""
        if set(given) != set(self.attributes):
            return (
                f"{self.name} takes the attributes {', '.join(sorted(self.attributes)) or 'none'}, got"
                f" {', '.join(sorted(map(str, given))) or 'none'}"
            )
        wrong = next((n for n, kind in self.attributes.items() if not _is(given[n], kind)), None)
        return None if wrong is None else f"{self.name} takes {KINDS[self.attributes[wrong]]} as '{wrong}'"


def _is(value: Any, kind: str) -> bool:
    if kind.endswith("s"):
        return isinstance(value, (list, tuple)) and all(_is(v, kind[:-1]) for v in value)
    wanted: dict[str, type] = {"bool": bool, "int": int, "str": str}
    return type(value) is wanted[kind]


_FUNCTIONS: dict[str, HostFunction] = {}


def host_function(name: str, **attributes: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function in the table: of the inputs by position and of `attributes` (name=kind) by name; it gives one
    value, or a tuple of several."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def results(*values: Any, **given: Any) -> tuple[Any, ...]:
            found = function(*values, **given)
            return found if isinstance(found, tuple) else (found,)

        _FUNCTIONS[name] = HostFunction(name, results, attributes)
        return function

    return register


def names() -> Iterable[str]:
    """Every function of the table."""
    return sorted(_FUNCTIONS)


def find(name: str) -> HostFunction:
    """The function of a name.

    Raises:
        ExecutionError: there is none.
    """
    if name not in _FUNCTIONS:
        close = nearest(name, _FUNCTIONS)
        raise ExecutionError(f"there is no host function '{name}'", hint=f"did you mean '{close}'?" if close else None)
    return _FUNCTIONS[name]


def call(name: str, attributes: Mapping[str, Any], values: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a function.

    Raises:
        ExecutionError: the values are not what it takes; says what it was given.
    """
    function = find(name)
    try:
        return function.function(*values, **attributes)
    except WeftError:
        raise
    except (
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        ArithmeticError,
        MemoryError,
        OSError,
        RecursionError,
    ) as error:
        raise ExecutionError(f"{name} failed", why=f"{type(error).__name__}: {error}"[:500]) from None
