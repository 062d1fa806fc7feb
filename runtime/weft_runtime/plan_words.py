"""The plan as the C runtime reads it (libweft/src/core.h): words of 32 bits, little-endian.

A list is two words, the byte where its rows begin and how many they are; a text is the byte where it begins. Lists lie
in the order in which a reader meets them, at multiples of 8; texts, each ended with 0, lie behind them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from weft_runtime import support
from weft_runtime.abi import dlpack_type
from weft_runtime.errors import ArchiveError
from weft_runtime.feature_bits import question
from weft_runtime.formulas import OPERATORS, to_postfix
from weft_runtime.plan import FORMAT_VERSION, SEQUENCE, Branch, HostCall, Manifest, Native, Plan, Repeat, Step
from weft_runtime.plan_steps import ObjectInfo, TensorInfo

MAGIC = b"weft"
PLAIN = frozenset({"Sizes", "WithSizes"})
"""Functions of the host that the C runtime has."""
_LARGEST = 1 << 47
_DEEPEST = 64
_NATIVE, _SIZES, _SAME, _IF, _LOOP = range(5)
_ABSENT, _CONSTANT = -1, -2
_CODES = {name: 2 + k for k, name in enumerate(OPERATORS)}
"""Operators of formulas in code; 0 is a number, 1 a symbol, and the next word says which."""

_Row: TypeAlias = "list[int | str | bytes | list[_Row]]"
"""A word, a text, words, or a list."""


class _NeedsPython(Exception):
    """What only runs where Python is."""


@dataclass(frozen=True)
class Stretch:
    """Where something lies: of a file, or of the weights."""

    at: int
    bytes: int


@dataclass
class _Layout:
    """Lists in order, then texts."""

    out: bytearray = field(default_factory=bytearray)
    texts: list[tuple[int, str]] = field(default_factory=list)

    def rows(self, rows: Sequence[_Row]) -> tuple[int, int]:
        self.out.extend(bytes(-len(self.out) % 8))
        first = len(self.out)
        size = max((sum(map(_size, row)) for row in rows), default=0)
        self.out.extend(bytes(size * len(rows)))
        for k, row in enumerate(rows):
            at = first + k * size
            for part in row:
                if isinstance(part, list):
                    struct.pack_into("<II", self.out, at, *self.rows(part))
                elif isinstance(part, str):
                    self.texts.append((at, part))
                elif isinstance(part, bytes):
                    self.out[at : at + len(part)] = part
                else:
                    struct.pack_into("<I", self.out, at, part & 0xFFFFFFFF)
                at += _size(part)
        return first, len(rows)

    def finished(self) -> bytes:
        places: dict[str, int] = {}
        for at, text in self.texts:
            if text not in places:
                places[text] = len(self.out)
                self.out += text.replace("\0", "\ufffd").encode() + b"\0"
            struct.pack_into("<I", self.out, at, places[text])
        self.out.extend(bytes(1 + (-len(self.out) - 1) % 8))
        return bytes(self.out)


def _size(part: int | str | bytes | list[_Row]) -> int:
    return 8 if isinstance(part, list) else len(part) if isinstance(part, bytes) else 4


def _long(number: int) -> bytes:
    return struct.pack("<q", number)


class _Plans:
    """The rows of plans, with what they share."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.sections = {name: k for k, name in enumerate(manifest.sections)}
        self.constants = {c.name: k for k, c in enumerate(manifest.constants)}
        self.symbols: dict[str, int] = {}
        self.formulas: dict[str, int] = {}
        self.depths: list[int] = []
        self.natives = 0

    def formula(self, size: int | str) -> tuple[int, int]:
        """A size, -1 if it is open, and the number of its formula, 0 if it has none."""
        if isinstance(size, int):
            return size, 0
        known = len(self.symbols)
        try:
            code = to_postfix(size, lambda name: self.symbols.setdefault(name, len(self.symbols)))
        except ArchiveError:  # a size that only native code can compute
            while len(self.symbols) > known:  # each symbol is in a formula: readers refuse more than fit
                self.symbols.popitem()
            return -1, 0
        return -1, self.formulas.setdefault(code, len(self.formulas) + 1)

    def formula_rows(self) -> list[_Row]:
        def words(piece: str) -> tuple[int, ...]:
            if piece in _CODES:
                return (_CODES[piece],)
            return (1, int(piece[1:])) if piece[0] == "$" else (0, int(piece))

        return [[[[_long(w)] for piece in code.split(" ") for w in words(piece)]] for code in self.formulas]

    def value(self, t: TensorInfo, ends: bool) -> _Row:
        of_objects = isinstance(t, ObjectInfo)
        if t.dtype == "string" or (isinstance(t, ObjectInfo) and (t.within or ends)):
            raise _NeedsPython("the value", t.name)
        sizes = [self.formula(d) for d in t.shape]
        if isinstance(t, ObjectInfo):
            sizes = [(0, 0)] * (t.rank or 0)
        code, bits = dlpack_type(t.dtype)
        kind = bytes((code, bits, of_objects, max(1, bits // 8)))
        return [t.name, t.dtype, kind, [[_long(s)] for s, _ in sizes], [[f] for _, f in sizes]]

    def plan(self, p: Plan | Manifest) -> _Row:
        ends, infos = p is self.manifest, [*p.inputs, *p.values, *p.outputs]
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for k, t in enumerate(infos):
            first.setdefault(t.name, k)
            if k >= len(p.inputs):
                last.setdefault(t.name, k)  # an output may be called like an input, if the plan is one step alone

        def taken(name: str) -> int:
            if not name:
                return _ABSENT
            return first[name] if name in first else _CONSTANT - self.constants[name]

        def given(name: str) -> int:
            return last[name] if name else _ABSENT

        outside = len(p.inputs), len(infos) - len(p.outputs)
        values = [self.value(t, ends and not outside[0] <= k < outside[1]) for k, t in enumerate(infos)]
        self.depths.append(0)
        steps = [self.step(s, taken, given) for s in p.steps]
        symbols: list[_Row] = [
            [self.symbols.get(s.name, -1), first[s.value], min(s.index, (1 << 31) - 1), 0] for s in p.symbols
        ]
        return [values, len(p.inputs), len(p.outputs), steps, symbols, self.depths[-1], 0]

    def step(self, s: Step, taken: Callable[[str], int], given: Callable[[str], int]) -> _Row:
        def row(kind: int, *words: int, **lists: list[_Row]) -> _Row:
            ends: list[list[_Row]] = [[[taken(n)] for n in s.inputs], [[given(n)] for n in s.outputs]]  # type: ignore[union-attr]
            more = [lists.get(key, []) for key in ("items", "constants", "checks", "over", "rows")]
            return [kind, *words, *[0] * (3 - len(words)), *ends, *more]

        if isinstance(s, Native):
            self.natives += 1
            return row(
                _NATIVE,
                self.sections[s.section],
                self.manifest.sections[s.section].entries[s.entry],
                self.natives - 1,
                items=[[name] for name in s.items],
                constants=[[self.constants[name]] for name in s.constants],
                checks=[[code, _template(what, hint)] for code, (what, hint) in s.checks.items()],
            )
        if isinstance(s, Branch):
            self.inner(s.then, s.orelse)
            return row(_IF, s.then, s.orelse)
        if isinstance(s, Repeat):
            if SEQUENCE in (*s.item_axes, *s.result_axes):
                raise _NeedsPython("a loop over", "sequences")
            self.inner(s.body)
            over: list[_Row] = [[axis, int(back)] for axis, back in zip(s.item_axes, s.item_backward, strict=True)]
            rows: list[_Row] = [[axis, int(back)] for axis, back in zip(s.result_axes, s.result_backward, strict=True)]
            return row(_LOOP, s.body, s.carried, int(s.tests), over=over, rows=rows)
        if not isinstance(s, HostCall) or s.function not in PLAIN:
            raise _NeedsPython("the step", s.function if isinstance(s, HostCall) else s.kind)
        return row(_SIZES if s.function == "Sizes" else _SAME)

    def inner(self, *numbers: int) -> None:
        """Counts how deep plans are inside of each other."""
        self.depths[-1] = max(self.depths[-1], *(1 + self.depths[n] for n in numbers))
        if self.depths[-1] > _DEEPEST:
            raise _NeedsPython("a depth of plans of", str(self.depths[-1]))


def _template(what: str, hint: str) -> str:
    """The text of a condition with %0 for {0}, and %% for %."""
    text = (what + (f"\nhint: {hint}" if hint else "")).replace("%", "%%")
    for k in range(8):
        text = text.replace(f"{{{k}}}", f"%{k}")
    return text


def plan_words(
    manifest: Manifest,
    constants: Mapping[str, Stretch],
    sections: Mapping[str, Stretch] | None = None,
    weights: Stretch | None = None,
    pool: bool = False,
) -> bytes:
    """The plan of a manifest.

    Args:
        constants: where they lie in the weights.
        sections: where they lie in the archive; an export has no such places.
        weights: where they lie in the archive; None: there are none.
        pool: with the image of the worker pool, if the manifest has parallel loops.

    Raises:
        ArchiveError: the manifest names what it lacks.
        ExecutionError: this installation is damaged.
    """
    image = support.pool_image(manifest.machine) if pool and manifest.parallel else (b"", 0)
    try:
        return _plan_words(manifest, constants, sections or {}, weights, *image)
    except KeyError as error:
        raise ArchiveError(f"'{manifest.name}' has a malformed plan", why=f"it lacks {error}") from None


def _plan_words(
    manifest: Manifest,
    constants: Mapping[str, Stretch],
    sections: Mapping[str, Stretch],
    weights: Stretch | None,
    pool: bytes,
    pool_entry: int,
) -> bytes:
    plans, missing = _Plans(manifest), ("", "")
    try:
        rows: list[_Row] = [*map(plans.plan, manifest.plans), plans.plan(manifest)]
    except _NeedsPython as found:
        # The plan says what is missing, and nothing else.
        plans, missing = _Plans(manifest), (found.args[0], found.args[1])
        rows = [[[], 0, 0, [], [], 0, 0]]
    threads = manifest.threads if manifest.threads is not None and 0 < manifest.threads < 256 else -1
    features: list[_Row] = []
    for name in manifest.features:
        kind, place, bit, part, leaf, saved = question(manifest.machine, name)
        features.append([name, bytes((kind, place, bit, part)), leaf, saved])
    places: list[_Row] = []
    for name, s in manifest.sections.items():
        lies = sections.get(name, Stretch(0, s.bytes))
        places.append([name, 0, _long(lies.at), _long(lies.bytes), bytes.fromhex(s.sha256)])
    table: list[_Row] = [
        [max(1, dlpack_type(c.dtype)[1] // 8), 0, _long(constants[c.name].at), [[_long(d)] for d in c.shape]]
        for c in manifest.constants
    ]
    lies, digest = weights or Stretch(0, 0), manifest.weights.sha256 if manifest.weights is not None else "00" * 32
    head: _Row = [
        MAGIC, FORMAT_VERSION, 0, manifest.name, manifest.target, manifest.weft, manifest.machine,
        missing[0] or 0, missing[1], threads if manifest.parallel else 0, len(plans.symbols), pool_entry,
        _long(lies.at), _long(lies.bytes), bytes.fromhex(digest), manifest.signature(),
        features, places, table, plans.formula_rows(), rows,
        [[pool[k : k + 4].ljust(4, b"\0")] for k in range(0, len(pool), 4)],
    ]  # fmt: skip
    layout = _Layout()
    layout.rows([head])
    data = bytearray(layout.finished())
    struct.pack_into("<I", data, 8, len(data))
    return bytes(data)
