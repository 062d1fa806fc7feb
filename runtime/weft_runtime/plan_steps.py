"""The parts of a manifest: values, steps, the plans of branches and loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, get_args


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
    """A value whose form is known only at run time: a sequence, an optional, or a tensor of any sizes (`rank` None: of
    any rank, too).

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
    overwrites: tuple[tuple[int, int], ...] = ()
    """Outputs with inputs whose very memory they may have: an element is written after its last read there."""

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
"""The host's memory, in copies."""
ANY = "any"
SEQUENCE = -1
"""In the place of an axis: what a loop takes items from, or collects, is a sequence."""
Step: TypeAlias = Native | Copy | DeviceCall | HostCall | Branch | Repeat
"""What a plan runs, one after another."""
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
