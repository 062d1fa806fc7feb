"""What a plan needs of a device that is not the host's CPU: memory of its own, copies, and kernels to launch. Plugins
implement it.

A saved model runs without the compiler: a device is runtime, and so is what implements it.
"""

from __future__ import annotations

import importlib
import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from weft_runtime.arrays import ALIGNMENT, Array, aligned_empty
from weft_runtime.errors import ExecutionError, WeftError, from_signal, nearest, raised_in


@dataclass
class Memory:
    """A part of a device's memory: `size` bytes; `handle` belongs to the device. Released when no reference is left."""

    size: int
    handle: Any
    number: int = field(default_factory=itertools.count().__next__, init=False, repr=False, compare=False)
    """Of no other piece in this process, now or later."""


@dataclass(frozen=True)
class Slice:
    """`bytes` bytes of a device's memory from `offset` on."""

    memory: Memory
    offset: int
    bytes: int


@dataclass(frozen=True)
class Borrowed:
    """Another library's row-major tensor in a device's memory: where it is, and what its bytes mean. `owner` keeps it
    there."""

    place: Slice
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    owner: object


@dataclass(frozen=True)
class Started:
    """One kernel to be launched: its buffers (inputs, outputs, then scratch), and the sizes known only at run time."""

    kernel: str
    buffers: tuple[Slice, ...]
    dims: tuple[int, ...]


class Device(ABC):
    """One opened device. One thread at a time, which holds `lock`, calls its methods.

    Every failure is an ExecutionError, after which the device accepts the next call."""

    shares_memory: bool = False
    """Whether it works on the host's memory: values then come and go by `share`, and neither `write` nor `read` copies
    them."""

    align: int = 1
    """Bytes, a power of two: `allocate` promises memory whose address is a multiple of it. Of the host's arrays that it
    gets (`share`), those whose address is not are copied first. A target whose machine declares `Scope("global",
    align=…)` needs as much of its device, or a run is an error."""

    simulated: ClassVar[bool] = False
    """Whether a program on the host plays it: the time of a launch is the program's, not the chip's, and `weft conform`
    allows more of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Bytes of memory that it has."""

    @property
    @abstractmethod
    def free(self) -> int:
        """Bytes that can still be had."""

    @abstractmethod
    def allocate(self, size: int) -> Memory:
        """`size` bytes that begin at a multiple of `align`; `reserve` has checked that they are free."""

    @abstractmethod
    def write(self, target: Slice, data: Array) -> None:
        """The host's contiguous array into the device's memory. Whoever called may change the array afterwards."""

    @abstractmethod
    def read(self, source: Slice, data: Array) -> None:
        """The device's memory into the host's contiguous array, which is whole when this returns; `synchronize` has
        been called."""

    @abstractmethod
    def load(self, image: bytes, entries: Mapping[str, int]) -> Any:
        """A code section, ready for `launch`."""

    @abstractmethod
    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        """Starts a kernel after those started before: inputs, outputs, then scratch."""

    def prepare(self, module: Any, launches: Sequence[Started]) -> Callable[[], None]:
        """What starts these kernels one after another, as often as it is called. A device that takes a list of launches
        at once (a graph) overrides this.

        What it returns is called only while all the memory that the launches name is held.
        """

        def start() -> None:
            for each in launches:
                with blamed(self.name, f"kernel '{each.kernel}'"):
                    self.launch(module, each.kernel, each.buffers, each.dims)

        return start

    @abstractmethod
    def synchronize(self) -> None:
        """Returns when everything started is done."""

    def record(self, on: bool) -> None:  # noqa: B027 - a device may leave it so
        """Whether the device notes from now on when launches begin and end. One that cannot tell ignores this."""

    def recorded(self) -> list[tuple[str, float, float]]:
        """Of every `launch` since the last call of this or of `record`, in order: the kernel, and the seconds at which
        it began and ended by the device's clock. Waits until all are done.
        """
        return []

    def share(self, data: Array) -> Memory:
        """The host's contiguous array as memory of a device that `shares_memory`: the handle is its bytes. A driver
        that must be told is told here.

        Kernels only read inputs and constants, whose arrays may be read-only.
        """
        return Memory(data.nbytes, data.reshape(-1).view(np.uint8))

    def borrow(self, value: Any, name: str) -> Borrowed | None:
        """Another library's tensor that lies in this device's memory, to be read and written where it is; None if it
        lies somewhere else.

        Tensors at one address are one `Memory`, so that what was prepared for them is found again. What their library
        has started is done before what is launched from now on.

        Raises:
            InputError: it lies here, and not so that kernels can take it, at a multiple of `align` for instance; calls
                it `name`.
        """
        return None

    def reserve(self, size: int) -> Memory:
        """`size` bytes of the device's memory.

        Raises:
            ExecutionError: there is not as much; says how much is wanted and free.
        """
        if size > self.free:
            raise ExecutionError(
                f"device '{self.name}' has too little memory",
                why=f"{size} bytes are wanted, {self.free} of {self.capacity} are free",
                hint="run smaller inputs, or give up other models on the device",
            )
        return self.allocate(size)


class HostDevice(Device):
    """A device on the host's memory, such as a library or a simulator. A subclass implements `load` and `launch`.

    Handles are arrays of bytes. `launch` returns when the kernel has ended. `capacity` limits arenas and copies; values
    are the host's arrays."""

    shares_memory = True

    def __init__(self, name: str, capacity: int = 1 << 30) -> None:
        super().__init__(name)
        self._capacity, self._used = capacity, 0

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def free(self) -> int:
        return self._capacity - self._used

    def allocate(self, size: int) -> Memory:
        memory = Memory(size, aligned_empty((size,), np.dtype(np.uint8), max(ALIGNMENT, self.align)))
        self._used += size
        weakref.finalize(memory, self._give_back, size)
        return memory

    def _give_back(self, size: int) -> None:
        self._used -= size

    def bytes(self, piece: Slice) -> Array:
        """A piece of its memory as an array of bytes."""
        memory: Array = piece.memory.handle
        return memory[piece.offset : piece.offset + piece.bytes]

    def write(self, target: Slice, data: Array) -> None:
        self.bytes(target)[: data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, source: Slice, data: Array) -> None:
        data.reshape(-1).view(np.uint8)[...] = self.bytes(source)[: data.nbytes]

    def synchronize(self) -> None:
        pass


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device, contributed by a plugin.

    Args:
        name: its name in plans.
        missing: None if it is available, else why not, as a sentence.
        open: the device, opened once a process.
        named: where a machine may have several: the kind of the one that plans call "name:WHICH", by WHICH. Its name is
            that whole text.
    """

    name: str
    missing: Callable[[], str | None]
    open: Callable[[], Device]
    named: Callable[[str], DeviceKind] | None = None


@contextmanager
def blamed(device: str, what: str) -> Iterator[None]:
    """Whatever a device's plugin raises becomes an error that names the device and what it was doing."""
    try:
        yield
    except WeftError:
        raise
    except Exception as error:
        if from_signal(error):
            raise
        place = raised_in(error)
        why = (f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) + (
            f" ({place})" if place else ""
        )
        raise ExecutionError(f"{what} failed on device '{device}'", why=why) from error


def _of_plugins() -> Mapping[str, DeviceKind]:
    # The runtime knows no plugin, but the one who knows them is at hand: this is the only way back, and it is taken
    # when a device is wanted.
    kinds: Mapping[str, DeviceKind] = importlib.import_module("weft.plugins").device_kinds()
    return kinds


_find: Callable[[], Mapping[str, DeviceKind]] = _of_plugins
_open: dict[str, Device] = {}
_opening = threading.RLock()  # a device may be made of others


def close_devices(then: Mapping[str, Device] | None = None) -> dict[str, Device]:
    """Forgets the process's devices, so that they are opened anew when they are wanted, and gives what was open; `then`
    is open from now on."""
    with _opening:
        before = dict(_open)
        _open.clear()
        _open.update(then or {})
        return before


def open_device(name: str) -> Device:
    """The process's device of this name.

    Raises:
        ExecutionError: no plugin offers it, or it is not here.
    """
    with _opening:
        if name in _open:
            return _open[name]
        kinds = dict(_find())
        family, _, which = name.partition(":")
        of_several = kinds[family].named if family in kinds else None
        if which and of_several is not None:
            kinds[name] = of_several(which)
        if name not in kinds:
            close = nearest(name, kinds)
            hint = (
                f"did you mean '{close}'?"
                if close
                else "install the plugin that the model was compiled with; see `weft plugins`"
            )
            raise ExecutionError(
                f"no plugin offers the device '{name}'",
                why="devices: " + (", ".join(sorted(kinds)) or "none but the host"),
                hint=hint,
            )
        missing = kinds[name].missing()
        if missing is not None:
            raise ExecutionError(f"the device '{name}' is not here", why=missing)
        device = _open[name] = kinds[name].open()
        return device
