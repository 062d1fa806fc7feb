"""Which function converts which ONNX operator.

    @onnx_op("LeakyRelu")
    def leaky_relu(c: Context) -> Result:
        return c(LeakyRelu(c.real("alpha", 0.01)), c.value(0))

A converter returns what stands for the outputs: a Value, a Content (integers known as formulas), None for an output it
does not make, or a sequence of these. It raises through `c.unsupported(reason)` what it cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from weft.graph.nodes import Value
    from weft_onnx.contents import Content
    from weft_onnx.importer import Context

Result: TypeAlias = "Value | Content | Sequence[Value | Content | None] | None"
Converter: TypeAlias = "Callable[[Context], Any]"


@dataclass(frozen=True)
class Registered:
    """A converter for the operator-set versions first … last of a domain; `refuses`: it only says why there is none."""

    function: Converter
    first: int
    last: int
    refuses: bool = False


_CONVERTERS: dict[tuple[str, str], list[Registered]] = {}
_FORMULAS: dict[tuple[str, str], Converter] = {}


def onnx_op(
    *names: str, domain: str = "", versions: tuple[int, int] = (1, 10_000), refuses: bool = False
) -> Callable[[Converter], Converter]:
    """Registers a converter for operators of `domain` ("" is ONNX's own), for the operator-set versions first … last;
    `refuses`: of operators that cannot be read, whose converter says why."""

    def register(function: Converter) -> Converter:
        for name in names:
            _CONVERTERS.setdefault((domain, name), []).append(Registered(function, *versions, refuses))
        return function

    return register


def onnx_formula(*names: str, domain: str = "") -> Callable[[Converter], Converter]:
    """Registers what computes operators on contents, tried where every operand has one; it returns None to leave it to
    the converter."""

    def register(function: Converter) -> Converter:
        for name in names:
            _FORMULAS[domain, name] = function
        return function

    return register


def find(domain: str, name: str, version: int) -> Converter | None:
    """The converter of an operator at an operator-set version; of several, that for the fewest versions."""
    entry = _entry(domain, name, version)
    return None if entry is None else entry.function


def reaches(domain: str, name: str, version: int) -> int:
    """The newest operator set that the converter for a version is for; 0 if there is none."""
    entry = _entry(domain, name, version)
    return 0 if entry is None else entry.last


def _entry(domain: str, name: str, version: int) -> Registered | None:
    fitting = [entry for entry in _all().get((domain, name), ()) if entry.first <= version <= entry.last]
    return min(fitting, key=lambda entry: entry.last - entry.first, default=None)


def find_formula(domain: str, name: str) -> Converter | None:
    _all()
    return _FORMULAS.get((domain, name))


def supported() -> list[tuple[str, str]]:
    """Every (domain, operator) that is read."""
    return sorted(key for key, entries in _all().items() if not all(entry.refuses for entry in entries))


def _all() -> dict[tuple[str, str], list[Registered]]:
    import weft_onnx.converters  # noqa: F401 - registers them

    return _CONVERTERS
