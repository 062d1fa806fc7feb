"""What an executable is made of, as data: the manifest and the plan in it. Read from JSON with every field checked."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from weft_runtime.abi import ABI_VERSION
from weft_runtime.dtypes import dtype
from weft_runtime.errors import ArchiveError, ExecutionError, WeftError
from weft_runtime.formulas import from_postfix, to_postfix

FORMAT_VERSION = 6
"""2: the weights' hash is that of their pieces' hashes, and tasks know their thread. Code of 1 cannot share a pool with
it, and is not read. 3: plans have several steps, on several devices. 4: steps that are host functions, branches and
loops; values that are no tensors. 5: the worker pool is the runtime's; code sections carry the manifest's signature. 6:
sizes are postfix code over numbered symbols (`names`).

`loops` came later; what does not know it, or lacks it, runs the same plan without."""
_MAX_INT = (1 << 63) - 1
_MOST_ALIGN = 1 << 30


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. A dimension is an int or the text of a formula over symbols; equal texts, equal sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ObjectInfo(TensorInfo):
    """A value whose form only a run knows: a sequence, an optional, or a tensor of any sizes (`rank` None: of any rank,
    too).

    `within` says what is around the tensors, outermost first; `shape` is empty.
    """

    within: tuple[str, ...] = ()
    rank: int | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}[{'...' if self.rank is None else f'rank {self.rank}'}]"
        for word in reversed(self.within):
            text = f"{word}({text})"
        return f"{self.name}: {text}"


@dataclass(frozen=True)
class ConstantInfo:
    """An entry of the table `ctx.constants`; its data lie in the weights under its name."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Native:
    """One call into native code: segment `entry` of code section `section`. `kernels` names its items in order, for
    people and errors."""

    kind: ClassVar[str] = "native"
    section: str
    entry: str
    items: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    """Its table of constants, by name, in order."""
    checks: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Error code → (what, hint), templates over {0} … {7}."""

    def __str__(self) -> str:
        lines = [f"native {self.section}:{self.entry}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})"]
        return "\n".join(lines + [f"  {number:4} {item}" for number, item in enumerate(self.items)])


@dataclass(frozen=True)
class Copy:
    """A value's data go from one memory to another: `source` and `target` name devices, "host" is the host's memory."""

    kind: ClassVar[str] = "copy"
    value: str
    source: str
    target: str

    def __str__(self) -> str:
        return f"copy {self.value} from {self.source} to {self.target}"


PlaceKind = Literal["value", "constant", "arena"]
PLACES: tuple[PlaceKind, ...] = get_args(PlaceKind)


@dataclass(frozen=True)
class Place:
    """Where a kernel's buffer lies: a value of the plan, a constant, or `bytes` at `offset` of the device's arena
    (numbers or formulas)."""

    where: PlaceKind
    name: str = ""
    offset: int | str = 0
    bytes: int | str = 0

    def __str__(self) -> str:
        return self.name if self.where != "arena" else f"arena+{self.offset}"


@dataclass(frozen=True)
class Launch:
    """One kernel of a device step: `kernel` is an entry of the section, `buffers` number the step's places, `dims` are
    numbers or formulas."""

    kernel: str
    buffers: tuple[int, ...]
    dims: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Condition:
    """What must hold before a device step starts: else an error of `what` and `hint`, templates over the values of
    `args`."""

    holds: str
    what: str
    hint: str = ""
    args: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class DeviceCall:
    """Kernels launched one after another on a device. Its inputs are in the device's memory already, its outputs stay
    there.

    `align`: bytes of which all buffers begin at multiples, by what the machine declares and the kernels take for
    granted: a power of two, 1 if it declares nothing.
    """

    kind: ClassVar[str] = "device"
    device: str
    section: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    launches: tuple[Launch, ...] = ()
    conditions: tuple[Condition, ...] = ()
    arena: int | str = 0
    align: int = 1

    def __str__(self) -> str:
        lines = [f"{self.device} {self.section}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})"]
        for number, launch in enumerate(self.launches):
            lines.append(f"  {number:4} {launch.kernel}({', '.join(str(self.places[b]) for b in launch.buffers)})")
        return "\n".join(lines)


@dataclass(frozen=True)
class HostCall:
    """A function of `weft_runtime.host`, of values of the host or constants; "" for an input that is not given, or an
    output that nothing needs."""

    kind: ClassVar[str] = "host"
    function: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = ", ".join(f"{k}={v!r}"[:60] for k, v in self.attributes.items())
        return (
            f"host {self.function}({shown})({', '.join(n or '_' for n in self.inputs)}) -> ({', '.join(self.outputs)})"
        )


@dataclass(frozen=True)
class Branch:
    """One of two plans, by number: `then` if the first input, a bool, holds. The next inputs are those of `then`, the
    last those of `orelse`."""

    kind: ClassVar[str] = "if"
    then: int
    orelse: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"if plan {self.then} else plan {self.orelse} ({', '.join(n or '_' for n in self.inputs)}) ->"
            f" ({', '.join(self.outputs)})"
        )


@dataclass(frozen=True)
class Repeat:
    """A plan again and again, by number; inputs, outputs and the other fields are those of `weft_ops.Loop`."""

    kind: ClassVar[str] = "loop"
    body: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    carried: int = 0
    tests: bool = False
    item_axes: tuple[int, ...] = ()
    item_backward: tuple[bool, ...] = ()
    result_axes: tuple[int, ...] = ()
    result_backward: tuple[bool, ...] = ()

    def __str__(self) -> str:
        return f"loop plan {self.body} ({', '.join(n or '_' for n in self.inputs)}) -> ({', '.join(self.outputs)})"


@dataclass(frozen=True)
class DataSymbol:
    """A size that data say: element `index` (flat) of the integer `value`, which is on the host."""

    name: str
    value: str
    index: int


HOST = "host"
ANY = "any"
SEQUENCE = -1
"""In the place of an axis: what a loop takes items from, or collects, is a sequence."""
Step: TypeAlias = Native | Copy | DeviceCall | HostCall | Branch | Repeat
STEPS: dict[str, type[Step]] = {s.kind: s for s in (Native, Copy, DeviceCall, HostCall, Branch, Repeat)}


@dataclass(frozen=True)
class Plan:
    """What a branch or a loop runs: as a manifest's own, with its sections and constants. It may run plans of smaller
    numbers."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    steps: tuple[Step, ...]
    values: tuple[TensorInfo, ...] = ()
    symbols: tuple[DataSymbol, ...] = ()


@dataclass(frozen=True)
class SectionInfo:
    """A code section: what it is checked against and where its entries lie.

    In an archive `sha256` and `bytes` are those of the image and the manifest's signature behind it; of an executable,
    those of the image.
    """

    sha256: str
    bytes: int
    entries: Mapping[str, int] = field(default_factory=dict)
    plugin: str = ""
    version: str = ""


@dataclass(frozen=True)
class Manifest:
    """Everything about an executable but its code and weights.

    Attributes:
        target: the resolved target string.
        machine: the architecture that the native code is for ("x86_64", "aarch64"); `ANY` if there is none.
        features: CPU features (LLVM's names) that the code needs.
        values: what steps hand on to one another, without inputs and outputs.
        symbols: sizes of the plan that data say.
        plans: what branches and loops run.
        parallel: whether the native code has parallel loops, which the process's worker pool runs.
        loops: the code section that runs iterations of loops, if any; without it the runtime starts each iteration.
        arena: the size of the native arenas as text, for people.
        threads: threads that the target string asked for; None: as many as the process may use.
        weights: sha256 and size of the weights section, if there are constants; set when it is written.
    """

    name: str
    target: str
    machine: str
    features: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    steps: tuple[Step, ...]
    sections: Mapping[str, SectionInfo] = field(default_factory=dict)
    constants: tuple[ConstantInfo, ...] = ()
    values: tuple[TensorInfo, ...] = ()
    symbols: tuple[DataSymbol, ...] = ()
    plans: tuple[Plan, ...] = ()
    parallel: bool = False
    loops: str | None = None
    arena: str = "0"
    threads: int | None = None
    weights: SectionInfo | None = None
    weft: str = ""
    format: int = FORMAT_VERSION

    def with_(self, **changes: Any) -> Manifest:
        return replace(self, **changes)

    def of_plan(self, number: int) -> Manifest:
        """The manifest as if one of its plans were its own, which may run those before it."""
        p = self.plans[number]
        parts = replace(
            self,
            inputs=p.inputs,
            outputs=p.outputs,
            steps=p.steps,
            values=p.values,
            symbols=p.symbols,
            plans=self.plans[:number],
        )
        return parts.with_(name=f"{self.name}, plan {number}")

    @property
    def single(self) -> bool:
        """Whether the plan is one native step over the model's own inputs and outputs."""
        if len(self.steps) != 1 or not isinstance(self.steps[0], Native):
            return False
        step = self.steps[0]
        return step.inputs == tuple(i.name for i in self.inputs) and step.outputs == tuple(o.name for o in self.outputs)

    def runs_natively(self, step: Repeat) -> bool:
        """Whether native code runs the iterations of a loop, from the second on, as long as sizes stay what they are:
        its body is one native step."""
        if self.loops is None or SEQUENCE in (*step.item_axes, *step.result_axes):
            return False
        if step.body >= len(self.plans) or not self.of_plan(step.body).single:
            return False
        body = self.plans[step.body]
        # Native code reads what an iteration gave as what the next one takes, without a look at its type.
        pairs = zip(body.inputs[1 : 1 + step.carried], body.outputs[step.tests :])
        told = not step.tests or body.outputs[0].dtype == "bool"
        return told and all(
            taken.dtype == given.dtype and len(taken.shape) == len(given.shape) for taken, given in pairs
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the plan needs beside the host, in order of first use."""
        return tuple(dict.fromkeys(s.device for s in self.steps if isinstance(s, DeviceCall)))

    def trouble(self) -> str | None:
        """What is wrong with the plans: names that nothing has, values that are not where a step looks for them. None
        if all is well."""
        for number, plan in enumerate(self.plans):
            found = self.of_plan(number)._trouble()
            if found is None and any(isinstance(s, (Copy, DeviceCall)) for s in plan.steps):
                found = "what branches and loops run is on the host"
            if found is not None:
                return f"plan {number}: {found}"
        return self._trouble()

    def _trouble(self) -> str | None:
        known = {t.name for t in (*self.inputs, *self.values, *self.outputs)}
        constants = {c.name for c in self.constants}
        there = {(HOST, t.name) for t in self.inputs}
        twice = [
            n for n, count in Counter(t.name for t in (*self.inputs, *self.values, *self.outputs)).items() if count > 1
        ]
        if twice and not self.single:
            return f"two values are called '{twice[0]}'"
        integers = {t.name for t in (*self.inputs, *self.values, *self.outputs) if dtype(t.dtype).is_integer}
        integers -= {t.name for t in (*self.inputs, *self.values, *self.outputs) if isinstance(t, ObjectInfo)}
        lost = [s.value for s in self.symbols if s.value not in integers]
        if lost:
            return (
                f"a size is read from '{lost[0]}', which is no value of"
                f" {'integers' if lost[0] in known else 'the plan'}"
            )
        places = {HOST, *self.devices}
        for number, step in enumerate(self.steps):
            if isinstance(step, Copy):
                if step.value not in known:
                    return f"step {number} copies '{step.value}', which is no value of the plan"
                if (step.source, step.value) not in there:
                    return f"step {number} copies '{step.value}' from {step.source}, where nothing has put it"
                if step.target not in places or (step.source == HOST) == (step.target == HOST):
                    between = "copies are between the host and a device that a step runs on"
                    return f"step {number} copies '{step.value}' from {step.source} to {step.target}: {between}"
                there.add((step.target, step.value))
                continue
            if isinstance(step, (HostCall, Branch, Repeat)):
                lost = [n for n in step.outputs if n and n not in known]
                if lost:
                    return f"step {number} names '{lost[0]}', which is no value of the plan"
                late = [n for n in step.inputs if n and n not in constants and (HOST, n) not in there]
                if late:
                    return f"step {number} needs '{late[0]}' on {HOST}, where nothing has put it"
                wrong = self._misfit(step)
                if wrong is not None:
                    return f"step {number} {wrong}"
                there.update((HOST, n) for n in step.outputs)
                continue
            place = HOST if isinstance(step, Native) else step.device
            entries = {step.entry} if isinstance(step, Native) else {launch.kernel for launch in step.launches}
            missing = (
                sorted(entries - set(self.sections[step.section].entries))
                if step.section in self.sections
                else sorted(entries)
            )
            if missing:
                return f"step {number} names {step.section}:{missing[0]}, which no section has"
            lost = [n for n in (*step.inputs, *step.outputs) if n not in known]
            if lost:
                return f"step {number} names '{lost[0]}', which is no value of the plan"
            late = [n for n in step.inputs if (place, n) not in there]
            if late:
                return f"step {number} needs '{late[0]}' on {place}, where nothing has put it"
            if isinstance(step, Native):
                wanted = list(step.constants)
            else:
                wanted = [p.name for p in step.places if p.where == "constant"]
                foreign = [
                    p.name for p in step.places if p.where == "value" and p.name not in (*step.inputs, *step.outputs)
                ]
                if foreign:
                    return f"step {number} uses '{foreign[0]}', which is neither its input nor its output"
            lost = [n for n in wanted if n not in constants]
            if lost:
                return f"step {number} names '{lost[0]}', which is no constant of the plan"
            there.update((place, n) for n in step.outputs)
        unmade = [o.name for o in self.outputs if (HOST, o.name) not in there]
        return f"no step gives the output '{unmade[0]}'" if unmade else None

    def _misfit(self, step: HostCall | Branch | Repeat) -> str | None:
        """How a step does not fit what it runs; None if it does."""
        if isinstance(step, HostCall):
            from weft_runtime.host import find

            try:
                return find(step.function).trouble(step.attributes)
            except ExecutionError as error:
                return error.what
        numbers = (step.then, step.orelse) if isinstance(step, Branch) else (step.body,)
        lost = [n for n in numbers if n >= len(self.plans)]
        if lost:
            return f"runs plan {lost[0]}, which is not before it"
        plans = [self.plans[n] for n in numbers]
        if isinstance(step, Branch):
            takes = 1 + sum(len(p.inputs) for p in plans)
            gives = {len(p.outputs) for p in plans}
        else:
            if len(step.item_axes) != len(step.item_backward) or len(step.result_axes) != len(step.result_backward):
                return "does not say of every item whether it goes backward"
            if len(plans[0].inputs) < 1 + step.carried + len(step.item_axes):
                return f"runs plan {numbers[0]}, which takes fewer values than the loop has"
            takes = 1 + len(plans[0].inputs)
            gives = {len(plans[0].outputs) - step.tests}
        wanted = len(step.outputs) if isinstance(step, Branch) else step.carried + len(step.result_axes)
        if len(step.inputs) != takes or gives != {wanted} or len(step.outputs) != wanted:
            return f"has {len(step.inputs)} inputs and {len(step.outputs)} outputs, which are not those of what it runs"
        return None

    def signature(self) -> bytes:
        """32 bytes by which code knows the manifest that it was made for: all of it counts, but the hashes of the
        sections that carry the signature."""
        bare = {name: replace(s, sha256="", bytes=0) for name, s in self.sections.items()}
        return hashlib.sha256(b"weft abi %d\n" % ABI_VERSION + self.with_(sections=bare).to_json()).digest()

    # -- text
    def plan(self) -> str:
        """The steps, for people."""
        head = f"{self.name}({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        narrow = Counter(c.dtype for c in self.constants if dtype(c.dtype).is_float and dtype(c.dtype).bits < 32)
        stored = f" ({', '.join(f'{n} of {name}' for name, n in sorted(narrow.items()))})" if narrow else ""
        facts = f"target {self.target!r}, {len(self.constants)} constants{stored}, arena {self.arena} bytes"
        lines = [head, facts, *self._shown(self.steps)]
        for number, plan in enumerate(self.plans):
            lines.append(f"plan {number}({', '.join(map(str, plan.inputs))}) -> ({', '.join(map(str, plan.outputs))})")
            lines += self._shown(plan.steps)
        return "\n".join(lines)

    def _shown(self, steps: Sequence[Step]) -> list[str]:
        natively = [isinstance(s, Repeat) and self.runs_natively(s) for s in steps]
        return [
            f"step {i}: {step}{', its trips in native code' if native else ''}"
            for i, (step, native) in enumerate(zip(steps, natively))
        ]

    # -- JSON
    def to_json(self) -> bytes:
        """Raises ArchiveError if a size of a device step is no formula that an archive can hold."""
        sizes = _Writer()
        data: dict[str, Any] = {
            "format": self.format,
            "weft": self.weft,
            "name": self.name,
            "target": self.target,
            "machine": self.machine,
            "features": list(self.features),
            **sizes.plan(self),
            "plans": [sizes.plan(p) for p in self.plans],
            "names": list(sizes.numbers),
            "sections": {name: _section(s) for name, s in self.sections.items()},
            "constants": [{"name": c.name, "dtype": c.dtype, "shape": c.shape} for c in self.constants],
            "parallel": self.parallel,
            "loops": self.loops,
            "arena": self.arena,
            "threads": self.threads,
            "weights": _section(self.weights) if self.weights else None,
        }
        return json.dumps(data, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """The manifest, every field checked.

        Raises:
            ArchiveError: not a manifest, or one of a newer format.
        """
        try:
            data = json.loads(text)
            if b"\\ud" in text.lower():
                json.dumps(
                    data, ensure_ascii=False
                ).encode()  # half of a surrogate pair is no text that could be shown or saved
        except (ValueError, RecursionError) as error:
            raise ArchiveError(f"{where} has an unreadable manifest", why=str(error)) from None
        reader = _Reader(where)
        root = reader.mapping(data, "manifest")
        version = reader.integer(root.get("format"), "format", 1)
        if version < FORMAT_VERSION:
            raise ArchiveError(
                f"{where} was written by an older Weft",
                why=f"its format is {version}, this Weft reads {FORMAT_VERSION}",
                hint="compile the model again",
            )
        if version > FORMAT_VERSION:
            raise ArchiveError(
                f"{where} was written by a newer Weft",
                why=f"its format is {version}, this Weft reads up to {FORMAT_VERSION}",
                hint="upgrade weft",
            )
        reader.names = reader.symbols(root.get("names"), "names")
        return cls(
            name=reader.text(root.get("name"), "name"),
            target=reader.text(root.get("target"), "target"),
            machine=reader.text(root.get("machine"), "machine"),
            features=reader.texts(root.get("features"), "features"),
            **vars(reader.plan(root, "")),
            plans=tuple(
                reader.plan(reader.mapping(p, f"plans[{i}]"), f"plans[{i}].")
                for i, p in enumerate(reader.sequence(root.get("plans"), "plans"))
            ),
            sections={
                name: reader.section(s, f"sections[{name}]")
                for name, s in reader.mapping(root.get("sections"), "sections").items()
            },
            constants=tuple(
                reader.constant(c, f"constants[{i}]")
                for i, c in enumerate(reader.sequence(root.get("constants"), "constants"))
            ),
            parallel=reader.flag(root.get("parallel"), "parallel"),
            loops=None if root.get("loops") is None else reader.text(root["loops"], "loops"),
            arena=reader.text(root.get("arena"), "arena"),
            threads=None if root.get("threads") is None else reader.integer(root["threads"], "threads", 1, 4096),
            weights=None if root.get("weights") is None else reader.section(root["weights"], "weights"),
            weft=reader.text(root.get("weft"), "weft"),
            format=version,
        )


class _Writer:
    """Writes plans with their sizes as postfix code, in which symbols are numbered in the order of `numbers`."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def plan(self, p: Plan | Manifest) -> dict[str, Any]:
        return {
            "inputs": [self.tensor(t) for t in p.inputs],
            "outputs": [self.tensor(t) for t in p.outputs],
            "values": [self.tensor(t) for t in p.values],
            "symbols": [asdict(s) for s in p.symbols],
            "steps": [self.step(s) for s in p.steps],
        }

    def code(self, size: int | str) -> int | str:
        return (
            size
            if isinstance(size, int)
            else to_postfix(size, lambda name: self.numbers.setdefault(name, len(self.numbers)))
        )

    def size(self, size: int | str) -> int | str | dict[str, str]:
        """A dimension. A size that only native code can compute is text for people."""
        try:
            return self.code(size)
        except ArchiveError:
            return {"text": str(size)}

    def tensor(self, t: TensorInfo) -> dict[str, Any]:
        found: dict[str, Any] = {"name": t.name, "dtype": t.dtype, "shape": [self.size(d) for d in t.shape]}
        return {**found, "within": t.within, "rank": t.rank} if isinstance(t, ObjectInfo) else found

    def step(self, s: Step) -> dict[str, Any]:
        if not isinstance(s, DeviceCall):
            return {"kind": s.kind, **asdict(s)}
        changed = replace(
            s,
            places=tuple(replace(p, offset=self.code(p.offset), bytes=self.code(p.bytes)) for p in s.places),
            launches=tuple(replace(x, dims=tuple(map(self.code, x.dims))) for x in s.launches),
            conditions=tuple(
                replace(c, holds=str(self.code(c.holds)), args=tuple(map(self.code, c.args))) for c in s.conditions
            ),
            arena=self.code(s.arena),
        )
        return {"kind": s.kind, **asdict(changed)}


def _section(s: SectionInfo) -> dict[str, Any]:
    return {"sha256": s.sha256, "bytes": s.bytes, "entries": dict(s.entries), "plugin": s.plugin, "version": s.version}


class _Reader:
    """Checks JSON values one by one; an archive may come from anybody."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.names: tuple[str, ...] = ()

    def bad(self, field: str, wanted: str, value: object) -> ArchiveError:
        shown = repr(value)
        return ArchiveError(
            f"{self.where} has a malformed manifest",
            why=f"'{field}' should be {wanted}, got {shown if len(shown) < 80 else shown[:77] + '...'}",
        )

    def mapping(self, value: object, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.bad(field, "an object", value)
        return value

    def sequence(self, value: object, field: str) -> Sequence[Any]:
        if not isinstance(value, list):
            raise self.bad(field, "a list", value)
        return value

    def text(self, value: object, field: str) -> str:
        if not isinstance(value, str):
            raise self.bad(field, "text", value)
        return value

    def texts(self, value: object, field: str) -> tuple[str, ...]:
        return tuple(self.text(v, f"{field}[{i}]") for i, v in enumerate(self.sequence(value, field)))

    def integer(self, value: object, field: str, low: int = 0, high: int = _MAX_INT) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.bad(field, f"an integer from {low} to {high}", value)
        return value

    def power(self, value: object, field: str) -> int:
        """A power of two, of bytes that buffers begin at multiples of."""
        found = self.integer(value, field, 1, _MOST_ALIGN)
        if found & (found - 1):
            raise self.bad(field, "a power of two", value)
        return found

    def code(self, value: str) -> int:
        return self.integer(int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value, "checks")

    def template(self, value: object, field: str) -> tuple[str, str]:
        texts = self.texts(value, field)
        if len(texts) != 2:
            raise self.bad(field, "two texts", value)
        return texts[0], texts[1]

    def flag(self, value: object, field: str) -> bool:
        if not isinstance(value, bool):
            raise self.bad(field, "true or false", value)
        return value

    def dtype(self, value: object, field: str, strings: bool = False) -> str:
        name = self.text(value, field)
        try:
            known = dtype(name)
        except WeftError:
            known = None
        if known is None or known.lanes != 1 or known.kind == "handle" or (known.kind == "string" and not strings):
            raise self.bad(field, "an element type", value)
        return name

    def plan(self, data: dict[str, Any], field: str) -> Plan:
        def each(key: str, read: Callable[[object, str], Any]) -> tuple[Any, ...]:
            return tuple(read(v, f"{field}{key}[{i}]") for i, v in enumerate(self.sequence(data.get(key), field + key)))

        inputs, outputs, values = (each(key, self.value) for key in ("inputs", "outputs", "values"))
        return Plan(inputs, outputs, each("steps", self.step), values, each("symbols", self.symbol))

    def value(self, value: object, field: str) -> TensorInfo:
        data = self.mapping(value, field)
        if "within" not in data:
            return self.tensor(value, field, strings=True)
        within = self.texts(data["within"], field + ".within")
        if len(within) > 8 or not set(within) <= {"sequence", "optional"}:
            raise self.bad(field + ".within", "at most 8 of sequence, optional", within)
        rank = None if data.get("rank") is None else self.integer(data["rank"], field + ".rank", 0, 64)
        return ObjectInfo(
            self.text(data.get("name"), field + ".name"),
            self.dtype(data.get("dtype"), field + ".dtype", True),
            (),
            within,
            rank,
        )

    def tensor(self, value: object, field: str, strings: bool = False) -> TensorInfo:
        data = self.mapping(value, field)
        dims = self.sequence(data.get("shape"), field + ".shape")
        if len(dims) > 64:
            raise self.bad(field + ".shape", "at most 64 dimensions", len(dims))
        shape = tuple(self.size(d, field + ".shape") for d in dims)
        return TensorInfo(
            self.text(data.get("name"), field + ".name"),
            self.dtype(data.get("dtype"), field + ".dtype", strings),
            shape,
        )

    def constant(self, value: object, field: str) -> ConstantInfo:
        t = self.tensor(value, field)
        if not all(isinstance(d, int) for d in t.shape):
            raise self.bad(field + ".shape", "constant", t.shape)
        return ConstantInfo(t.name, t.dtype, tuple(int(d) for d in t.shape))

    def section(self, value: object, field: str) -> SectionInfo:
        data = self.mapping(value, field)
        digest = self.text(data.get("sha256"), field + ".sha256")
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise self.bad(field + ".sha256", "64 hexadecimal digits", digest)
        size = self.integer(data.get("bytes"), field + ".bytes")
        entries = self.mapping(data.get("entries"), field + ".entries")
        return SectionInfo(
            sha256=digest,
            bytes=size,
            entries={
                name: self.integer(at, f"{field}.entries[{name}]", 0, max(0, size - 1)) for name, at in entries.items()
            },
            plugin=self.text(data.get("plugin"), field + ".plugin"),
            version=self.text(data.get("version"), field + ".version"),
        )

    def symbol(self, value: object, field: str) -> DataSymbol:
        data = self.mapping(value, field)
        name, source = (self.text(data.get(key), f"{field}.{key}") for key in ("name", "value"))
        return DataSymbol(name, source, self.integer(data.get("index"), field + ".index"))

    def symbols(self, value: object, field: str) -> tuple[str, ...]:
        """Names of symbols, by their numbers."""
        names = self.texts(value, field)
        if any("`" in n for n in names):
            raise self.bad(field, "names without backquotes", next(n for n in names if "`" in n))
        return names

    def size(self, value: object, field: str) -> int | str:
        if isinstance(value, dict):
            return self.text(value.get("text"), field)
        return self.formula(value, field)

    def formula(self, value: object, field: str) -> int | str:
        if not isinstance(value, str):
            return self.integer(value, field)
        try:
            return from_postfix(value, self.names)
        except ArchiveError as error:
            raise self.bad(field, f"postfix code ({error.what}: {error.why})", value) from None

    def formulas(self, value: object, field: str) -> tuple[int | str, ...]:
        return tuple(self.formula(v, f"{field}[{i}]") for i, v in enumerate(self.sequence(value, field)))

    def step(self, value: object, field: str) -> Step:
        data = self.mapping(value, field)
        kind = self.text(data.get("kind"), field + ".kind")
        if kind not in STEPS:
            raise self.bad(field + ".kind", "one of " + ", ".join(STEPS), kind)
        read: Callable[[dict[str, Any], str], Step] = getattr(self, f"_{kind}")
        return read(data, field)

    def _native(self, data: dict[str, Any], field: str) -> Step:
        return Native(
            section=self.text(data.get("section"), field + ".section"),
            entry=self.text(data.get("entry"), field + ".entry"),
            items=self.texts(data.get("items"), field + ".items"),
            inputs=self.texts(data.get("inputs"), field + ".inputs"),
            outputs=self.texts(data.get("outputs"), field + ".outputs"),
            constants=self.texts(data.get("constants"), field + ".constants"),
            checks={
                self.code(k): self.template(v, f"{field}.checks[{k}]")
                for k, v in self.mapping(data.get("checks"), field + ".checks").items()
            },
        )

    def _copy(self, data: dict[str, Any], field: str) -> Step:
        return Copy(*(self.text(data.get(key), f"{field}.{key}") for key in ("value", "source", "target")))

    def _device(self, data: dict[str, Any], field: str) -> Step:
        places = tuple(
            self._place(p, f"{field}.places[{i}]")
            for i, p in enumerate(self.sequence(data.get("places"), field + ".places"))
        )
        launches, conditions = (self.sequence(data.get(key), f"{field}.{key}") for key in ("launches", "conditions"))
        return DeviceCall(
            device=self.text(data.get("device"), field + ".device"),
            section=self.text(data.get("section"), field + ".section"),
            inputs=self.texts(data.get("inputs"), field + ".inputs"),
            outputs=self.texts(data.get("outputs"), field + ".outputs"),
            places=places,
            launches=tuple(self._launch(v, f"{field}.launches[{i}]", len(places)) for i, v in enumerate(launches)),
            conditions=tuple(self._condition(v, f"{field}.conditions[{i}]") for i, v in enumerate(conditions)),
            arena=self.formula(data.get("arena"), field + ".arena"),
            align=self.power(data.get("align", 1), field + ".align"),
        )

    def _host(self, data: dict[str, Any], field: str) -> Step:
        attributes = {
            k: tuple(v) if isinstance(v, list) else v
            for k, v in self.mapping(data.get("attributes"), field + ".attributes").items()
        }
        function = self.text(data.get("function"), field + ".function")
        return HostCall(function, *self._ends(data, field), attributes)

    def _if(self, data: dict[str, Any], field: str) -> Step:
        then, orelse = (self.integer(data.get(key), f"{field}.{key}") for key in ("then", "orelse"))
        return Branch(then, orelse, *self._ends(data, field))

    def _loop(self, data: dict[str, Any], field: str) -> Step:
        def each(key: str, read: Callable[..., Any], *limits: int) -> tuple[Any, ...]:
            return tuple(
                read(v, f"{field}.{key}[{i}]", *limits)
                for i, v in enumerate(self.sequence(data.get(key), f"{field}.{key}"))
            )

        return Repeat(
            self.integer(data.get("body"), field + ".body"),
            *self._ends(data, field),
            carried=self.integer(data.get("carried"), field + ".carried"),
            tests=self.flag(data.get("tests"), field + ".tests"),
            item_axes=each("item_axes", self.integer, -1, 64),
            item_backward=each("item_backward", self.flag),
            result_axes=each("result_axes", self.integer, -1, 64),
            result_backward=each("result_backward", self.flag),
        )

    def _ends(self, data: dict[str, Any], field: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        inputs, outputs = (self.texts(data.get(key), f"{field}.{key}") for key in ("inputs", "outputs"))
        return inputs, outputs

    def _place(self, value: object, field: str) -> Place:
        data = self.mapping(value, field)
        given = self.text(data.get("where"), field + ".where")
        where = next((w for w in PLACES if w == given), None)
        if where is None:
            raise self.bad(field + ".where", "value, constant or arena", given)
        name, offset, size = self.text(data.get("name"), field + ".name"), data.get("offset"), data.get("bytes")
        return Place(where, name, self.formula(offset, field + ".offset"), self.formula(size, field + ".bytes"))

    def _launch(self, value: object, field: str, places: int) -> Launch:
        data = self.mapping(value, field)
        numbers = self.sequence(data.get("buffers"), field + ".buffers")
        buffers = tuple(self.integer(b, f"{field}.buffers[{i}]", 0, places - 1) for i, b in enumerate(numbers))
        return Launch(
            self.text(data.get("kernel"), field + ".kernel"), buffers, self.formulas(data.get("dims"), field + ".dims")
        )

    def _condition(self, value: object, field: str) -> Condition:
        data = self.mapping(value, field)
        what, hint = (self.text(data.get(key), f"{field}.{key}") for key in ("what", "hint"))
        holds = str(self.formula(data.get("holds"), f"{field}.holds"))
        return Condition(holds, what, hint, self.formulas(data.get("args"), field + ".args"))
