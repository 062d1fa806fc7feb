"""Runs a plan of several steps: native segments and functions on the host, kernels on devices, copies between their
memories, branches and loops.

What devices hold (constants, arenas, values) is made once and used again by later calls; a call holds the locks of all
its devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft_runtime import host
from weft_runtime.abi import LARGEST
from weft_runtime.arrays import Array, aligned, aligned_empty
from weft_runtime.control import Run, Trips, branch, repeat
from weft_runtime.device import Borrowed, Device, Memory, Slice, Started, blamed, open_device
from weft_runtime.dlpack import as_array, on_another_device
from weft_runtime.dtypes import dtype
from weft_runtime.errors import ExecutionError, InputError, WeftError, fill
from weft_runtime.formulas import Formula, formula, symbol_of
from weft_runtime.native import Segment, check_names, storage, wrong_type
from weft_runtime.plan import (
    HOST,
    Branch,
    Copy,
    DataSymbol,
    DeviceCall,
    HostCall,
    Manifest,
    Native,
    ObjectInfo,
    Repeat,
    TensorInfo,
)
from weft_runtime.values import as_object, as_strings, owned

_READY = 16
"""Sizes that a plan keeps its launches for, so that a call starts them as they are."""


@dataclass
class _Call:
    """What one call knows: the symbols bound so far, sizes that are not checked yet, the values in the host's memory,
    those in devices', and callers' storage for outputs in devices' memory.
    """

    symbols: dict[str, int] = field(default_factory=dict)
    open: list[tuple[TensorInfo, int, int]] = field(default_factory=list)  # a value, an axis, its size
    host: dict[str, Any] = field(default_factory=dict)  # arrays; of an `ObjectInfo` sequences and None, too
    there: dict[tuple[str, str], Slice] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # of values whose sizes have been checked, or will be
    storage: dict[str, tuple[str, Borrowed]] = field(default_factory=dict)  # an output → a device, where on it
    owners: list[object] = field(default_factory=list)


@dataclass
class _Held:
    """What a plan keeps on one device between calls."""

    device: Device
    modules: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Slice] = field(default_factory=dict)
    values: dict[str, Memory] = field(default_factory=dict)
    arena: Memory | None = None
    copies: list[object] = field(
        default_factory=list
    )  # of constants that do not begin where a device that shares the host's memory wants them
    ready: dict[tuple[Any, ...], Callable[[], None]] = field(
        default_factory=dict
    )  # by the number of a step, sizes and places: what starts its kernels


@dataclass(frozen=True)
class _Shape:
    """A value's dtype, and its dimensions as formulas."""

    info: TensorInfo
    of: np.dtype[Any]
    dims: tuple[Formula, ...]

    def size(self, env: Mapping[str, int]) -> tuple[int, ...]:
        try:
            found = tuple(int(d(env)) for d in self.dims)
        except OverflowError as error:
            raise ExecutionError(
                f"'{self.info.name}' would be larger than memory can be", where=str(self.info), why=str(error)
            ) from None
        if any(d < 0 for d in found):
            raise ExecutionError(
                f"'{self.info.name}' would have a negative size",
                where=str(self.info),
                why=f"its shape is {list(found)}",
            )
        if math.prod(found) * self.of.itemsize > LARGEST:
            raise ExecutionError(
                f"'{self.info.name}' would be larger than memory can be",
                where=str(self.info),
                why=f"its shape is {list(found)}",
            )
        return found

    def bytes(self, env: Mapping[str, int]) -> int:
        return math.prod(self.size(env)) * self.of.itemsize


@dataclass(frozen=True)
class _Device:
    """A DeviceCall with its formulas compiled."""

    step: DeviceCall
    arena: Formula
    places: tuple[tuple[Formula, Formula], ...]
    dims: tuple[tuple[Formula, ...], ...]
    conditions: tuple[tuple[Formula, tuple[Formula, ...]], ...]


class Steps:
    """A plan, ready to be called by any number of threads.

    Args:
        segments: step number → what calls it, for native steps.
        code, constants: sections and constants by name.
        plans: what runs each of the manifest's plans.
        trips: step number → what runs many iterations at once, for loops that have it.
        owns: no result may lie in memory of the caller's, or of a constant.

    Raises:
        ArchiveError: a formula of the manifest that is none.
    """

    def __init__(
        self,
        manifest: Manifest,
        segments: Mapping[int, Segment],
        code: Mapping[str, bytes],
        constants: Mapping[str, Array],
        plans: Sequence[Run] = (),
        trips: Mapping[int, Trips] | None = None,
        owns: bool = True,
    ) -> None:
        self._manifest, self._segments, self._code, self._constants, self._plans = (
            manifest,
            segments,
            code,
            constants,
            plans,
        )
        self._trips = trips or {}
        infos = (*manifest.inputs, *manifest.values, *manifest.outputs)
        self._shapes = {i.name: _Shape(i, dtype(i.dtype).numpy, tuple(formula(d) for d in i.shape)) for i in infos}
        self._elements = {k: _elements(manifest, s) for k, s in enumerate(manifest.steps) if isinstance(s, Repeat)}
        alone = [s for s in manifest.steps if isinstance(s, (HostCall, Branch, Repeat))]
        self._handed = {n for s in alone for n in s.outputs} if owns else set()
        self._lent = [constants[n] for s in alone for n in s.inputs if n in constants]
        self._devices = {k: _compiled(s) for k, s in enumerate(manifest.steps) if isinstance(s, DeviceCall)}
        self._held: dict[str, _Held] = {}
        self._sources: dict[str, list[DataSymbol]] = {}
        for s in manifest.symbols:
            self._sources.setdefault(s.value, []).append(s)

    def execute(self, values: Sequence[Any], out: Mapping[str, Any] | None = None) -> list[Array]:
        """Inputs in order → outputs in order; `out` is storage by name for some of them."""
        call = _Call()
        for info, value in zip(self._manifest.inputs, values):
            self._bind(call, info, value)
        targets = self._targets(call, out or {})
        try:
            self._run(call)
        except (KeyError, ZeroDivisionError, OverflowError) as error:  # devices' own are caught where they happen
            raise self._incomputable(error) from None
        except MemoryError as error:
            raise ExecutionError(
                f"no memory for a call of '{self._manifest.name}'", why=str(error) or None, hint="run smaller inputs"
            ) from None
        given = {k: out[o.name] for k, o in enumerate(self._manifest.outputs) if o.name in call.storage} if out else {}
        results = [given[k] if k in given else call.host[o.name] for k, o in enumerate(self._manifest.outputs)]
        if self._handed:  # steps of the host hand on what they are given
            lent = [*self._lent, *(call.host.get(i.name) for i in self._manifest.inputs)]
            results = [owned(r, lent) if o.name in self._handed else r for r, o in zip(results, self._manifest.outputs)]
        for k, target in targets.items():
            if target.shape != results[k].shape:
                info = self._manifest.outputs[k]
                raise InputError(
                    f"storage for output '{info.name}' has shape {list(target.shape)}, the result has"
                    f" {list(results[k].shape)}",
                    where=str(info),
                )
            target[...] = results[k]
            results[k] = target
        return results

    def _run(self, call: _Call) -> None:
        devices = {name: open_device(name) for name in self._manifest.devices}
        locks = [
            devices[name].lock for name in sorted(devices)
        ]  # in one order everywhere, so that two plans never wait for one another
        _locked(locks, lambda: self._run_steps(call, devices))

    def _run_steps(self, call: _Call, devices: Mapping[str, Device]) -> None:
        for name, device in devices.items():
            if (
                name not in self._held or self._held[name].device is not device
            ):  # one that was opened anew holds nothing
                self._held[name] = _Held(device)
        held = self._held
        try:
            for k, step in enumerate(self._manifest.steps):
                if isinstance(step, Native):
                    self._native(call, k, step, held)
                elif isinstance(step, Copy):
                    self._copy(call, step, held)
                elif isinstance(step, (HostCall, Branch, Repeat)):
                    self._on_host_alone(call, k, step, held)
                else:
                    self._launch(call, k, self._devices[k], held[step.device])
            for name, (device_name, borrowed) in call.storage.items():
                self._store(call, name, held[device_name], borrowed)
        except BaseException:
            for name in devices:
                held[name].ready.clear()
                with suppress(Exception):  # the first error is the one to tell
                    held[name].device.synchronize()  # what was started uses memory that the next call writes to
            raise

    # -- inputs and outputs
    def _bind(self, call: _Call, info: TensorInfo, value: Any) -> None:
        if isinstance(info, ObjectInfo):
            call.host[info.name] = as_object(info, value)
            return
        if info.dtype == "string":
            value = as_strings(value, info.name)
        found = self._borrowed(call, info, value)
        if found is not None:
            device, borrowed = found
            if borrowed.dtype != self._shapes[info.name].of or len(borrowed.shape) != len(info.shape):
                raise wrong_type(
                    info, self._shapes[info.name].of, np.broadcast_to(np.empty((), borrowed.dtype), borrowed.shape)
                )
            call.there[device, info.name] = borrowed.place
            if info.name in self._sources:  # sizes are in its data
                self._keep(
                    call,
                    info,
                    self._read(
                        open_device(device), borrowed.place, np.empty(borrowed.shape, borrowed.dtype), info.name
                    ),
                )
                return
            call.shapes[info.name] = borrowed.shape
            call.open += [(info, axis, size) for axis, size in enumerate(borrowed.shape)]
            self._agree(call)
            return
        array = value if type(value) is np.ndarray else as_array(value, info.name)
        if array.dtype != self._shapes[info.name].of or array.ndim != len(info.shape):
            raise wrong_type(info, self._shapes[info.name].of, array)
        self._keep(call, info, np.ascontiguousarray(array).reshape(array.shape))

    def _borrowed(self, call: _Call, info: TensorInfo, value: Any) -> tuple[str, Borrowed] | None:
        """The device of the plan in whose memory a caller's tensor lies, and where; None if it lies in none."""
        if type(value) is np.ndarray or not on_another_device(value):
            return None
        for name in self._manifest.devices:
            device = open_device(name)
            with blamed(name, f"borrowing '{info.name}'"):
                found = device.borrow(value, info.name)
            if found is not None:
                call.owners.append(found.owner)
                return name, found
        return None

    def _read(self, device: Device, source: Slice, array: Array, name: str) -> Array:
        """The array, filled with what lies in a device's memory."""
        with device.lock, blamed(device.name, f"the copy of '{name}'"):
            device.synchronize()
            device.read(source, array)
        return array

    def _on_host(self, call: _Call, held: Mapping[str, _Held], name: str) -> Array:
        """A value as an array of the host; one that a caller gave or wants in a device's memory alone is read from
        there."""
        if name not in call.host:
            device = next(d for d, n in call.there if n == name)
            call.host[name] = self._read(held[device].device, call.there[device, name], self._fresh(call, name), name)
        found: Array = call.host[name]
        return found

    def _keep(self, call: _Call, info: TensorInfo, array: Array) -> None:
        """A value of the host, and the symbols that it binds or must agree with."""
        call.host[info.name] = array
        call.shapes[info.name] = array.shape
        call.open += [(info, axis, size) for axis, size in enumerate(array.shape)]
        for s in self._sources.get(info.name, ()):
            if s.index >= array.size:
                raise InputError(
                    f"input '{info.name}' has {array.size} elements, element {s.index} is needed", where=str(info)
                )
            size = int(array.reshape(-1)[s.index])
            if call.symbols.setdefault(s.name, size) != size:
                raise self._disagree(
                    info,
                    array.shape,
                    f"says in element {s.index} that {s.name} is {size}, expected {call.symbols[s.name]}",
                )
        self._agree(call)

    def _agree(self, call: _Call) -> None:
        """Binds symbols to sizes, and checks all sizes that the symbols known by now tell."""
        for info, axis, given in call.open:
            symbol = symbol_of(info.shape[axis])
            if symbol is not None:
                call.symbols.setdefault(symbol, given)
        later = []
        for info, axis, given in call.open:
            try:
                wanted = int(self._shapes[info.name].dims[axis](call.symbols))
            except KeyError:  # a symbol that a later step binds
                later.append((info, axis, given))
                continue
            except (ZeroDivisionError, OverflowError) as error:
                raise self._incomputable(error) from None
            if wanted != given:
                shown = str(wanted) if isinstance(info.shape[axis], int) else f"{wanted} ({info.shape[axis]})"
                raise self._disagree(info, call.shapes[info.name], f"has size {given} on axis {axis}, expected {shown}")
        call.open = later

    def _incomputable(self, error: Exception) -> ExecutionError:
        why = f"{error} is not known" if isinstance(error, KeyError) else str(error)
        return ExecutionError(
            f"a size that the plan of '{self._manifest.name}' needs cannot be computed",
            why=why,
            hint="compile the model again",
        )

    def _disagree(self, info: TensorInfo, shape: tuple[int, ...], what: str) -> WeftError:
        if info in self._manifest.inputs:
            return InputError(f"input '{info.name}' {what}", where=str(info), why=f"its shape is {list(shape)}")
        return ExecutionError(
            f"'{info.name}' of '{self._manifest.name}' {what}", where=str(info), hint="compile the model again"
        )

    def _targets(self, call: _Call, out: Mapping[str, Any]) -> dict[int, Array]:
        """Callers' arrays for outputs; those in devices' memory are noted in the call."""
        outputs = self._manifest.outputs
        check_names(self._manifest.name, out, outputs)
        targets = {}
        for k, info in enumerate(outputs):
            if info.name in out:
                if isinstance(info, ObjectInfo):
                    raise InputError(
                        f"output '{info.name}' is no tensor of known rank: there is no storage for it", where=str(info)
                    )
                found = self._borrowed(call, info, out[info.name])
                if found is not None:
                    if found[1].dtype != self._shapes[info.name].of or len(found[1].shape) != len(info.shape):
                        why = f"it is {found[1].dtype}{list(found[1].shape)}"
                        raise InputError(f"storage for output '{info.name}' does not fit", where=str(info), why=why)
                    call.storage[info.name] = found
                else:
                    targets[k] = storage(info, self._shapes[info.name].of, out[info.name])
        return targets

    def _place(self, call: _Call, name: str, borrowed: Borrowed) -> Slice:
        """A caller's storage in a device's memory.

        Raises:
            InputError: it has another size than the output.
        """
        shape = self._shapes[name]
        if shape.size(call.symbols) != borrowed.shape:
            what = (
                f"storage for output '{name}' has shape {list(borrowed.shape)}, the result has"
                f" {list(shape.size(call.symbols))}"
            )
            raise InputError(what, where=str(shape.info))
        return borrowed.place

    def _store(self, call: _Call, name: str, held: _Held, borrowed: Borrowed) -> None:
        """Brings an output to the caller's storage, where no kernel has written it there, and waits until it is
        there."""
        place = self._place(call, name, borrowed)
        with blamed(held.device.name, f"the copy of '{name}'"):
            if call.there.get((held.device.name, name)) != place:
                held.device.write(place, call.host[name])
            held.device.synchronize()

    # -- devices
    def _memory(self, held: _Held, name: str, size: int) -> Slice:
        """Room for a value, that of an earlier call if it is large enough."""
        memory = held.values.get(name)
        if memory is None or memory.size < size:
            held.values.pop(name, None)
            held.ready.clear()
            memory = held.values[name] = _reserve(held.device, size)
        return Slice(memory, 0, size)

    def _shared(self, held: _Held, array: Array, what: str) -> Slice:
        """An array of the host as memory of a device that takes it as it is."""
        with blamed(held.device.name, what):
            return Slice(held.device.share(array), 0, array.nbytes)

    def _read_there(self, held: _Held, array: Array, owners: list[object], what: str) -> Slice:
        """As `_shared`, of an array that is only read: one that does not begin where the device wants it is copied, for
        `owners`."""
        there = aligned(array, held.device.align)
        if there is not array:
            owners.append(there)
        return self._shared(held, there, what)

    def _fresh(self, call: _Call, name: str, alignment: int = 1) -> Array:
        """An array of the host for a value."""
        shape = self._shapes[name]
        try:
            return aligned_empty(shape.size(call.symbols), shape.of, alignment if alignment > 1 else None)
        except (MemoryError, ValueError, OverflowError) as error:
            raise ExecutionError(
                f"no memory for '{name}' of '{self._manifest.name}'", where=str(shape.info), why=str(error)
            ) from None

    # -- steps
    def _native(self, call: _Call, number: int, step: Native, held: Mapping[str, _Held]) -> None:
        results = self._segments[number].execute([self._on_host(call, held, name) for name in step.inputs])
        for name, array in zip(step.outputs, results):
            self._keep(call, self._shapes[name].info, array)

    def _on_host_alone(
        self, call: _Call, number: int, step: HostCall | Branch | Repeat, held: Mapping[str, _Held]
    ) -> None:
        values = [self._value(call, held, name) for name in step.inputs]
        if isinstance(step, HostCall):
            results: Sequence[Any] = host.call(step.function, step.attributes, values)
        elif isinstance(step, Branch):
            plans = self._plans
            results = branch(values, plans[step.then], plans[step.orelse], len(self._manifest.plans[step.then].inputs))
        else:
            empty = [(of, tuple(_known(d, call.symbols) for d in dims)) for of, dims in self._elements[number]]
            results = repeat(step, values, self._plans[step.body], empty, self._trips.get(number))
        if len(results) != len(step.outputs):
            raise ExecutionError(
                f"a step of '{self._manifest.name}' gives {len(results)} values, {len(step.outputs)} are expected",
                where=str(step),
            )
        for name, result in zip(step.outputs, results):
            if not name:
                continue
            info = self._shapes[name].info
            if isinstance(info, ObjectInfo):
                call.host[name] = result
                continue
            if (
                not isinstance(result, np.ndarray)
                or result.dtype != self._shapes[name].of
                or result.ndim != len(info.shape)
            ):
                got = f"{result.dtype}{list(result.shape)}" if isinstance(result, np.ndarray) else type(result).__name__
                raise ExecutionError(
                    f"'{name}' of '{self._manifest.name}' is {got}, expected {info.dtype} of {len(info.shape)}"
                    " dimension(s)",
                    where=str(info),
                )
            self._keep(call, info, result)

    def _value(self, call: _Call, held: Mapping[str, _Held], name: str) -> Any:
        """A value or a constant, as an array of the host or an object; None for one that is not given."""
        if not name or name in call.host:
            return call.host[name] if name else None
        return self._constants[name] if name in self._constants else self._on_host(call, held, name)

    def _copy(self, call: _Call, step: Copy, held: Mapping[str, _Held]) -> None:
        if step.source == HOST:
            if (step.target, step.value) in call.there:  # a caller's tensor lies there
                return
            array = self._on_host(call, held, step.value)
            if held[step.target].device.shares_memory:
                call.there[step.target, step.value] = self._read_there(
                    held[step.target], array, call.owners, f"sharing '{step.value}'"
                )
                return
            room = self._memory(held[step.target], step.value, array.nbytes)
            with blamed(step.target, f"the copy of '{step.value}'"):
                held[step.target].device.write(room, array)
            call.there[step.target, step.value] = room
            return
        device, place = held[step.source].device, call.there[step.source, step.value]
        if step.value in call.storage and call.storage[step.value][1].place == place:
            return  # the caller wants it where it is
        array = call.host[step.value] if device.shares_memory else self._fresh(call, step.value)
        with blamed(step.source, f"the copy of '{step.value}'"):
            device.synchronize()
            if not device.shares_memory:
                device.read(place, array)
        call.host[step.value] = array

    def _launch(self, call: _Call, number: int, compiled: _Device, held: _Held) -> None:
        step, env = compiled.step, call.symbols
        for condition, (holds, args) in zip(step.conditions, compiled.conditions):
            if not holds(env):
                numbers = [int(a(env)) for a in args]
                raise ExecutionError(
                    fill(condition.what, numbers), where=self._manifest.name, hint=fill(condition.hint, numbers) or None
                )
        if held.device.align % step.align:
            what = (
                f"the kernels of section '{step.section}' take memory aligned to {step.align} bytes, device"
                f" '{step.device}' gives {held.device.align}"
            )
            raise ExecutionError(what, where=self._manifest.name, hint="the device's class says what it gives: align")
        if step.section not in held.modules:
            with blamed(step.device, f"loading section '{step.section}'"):
                held.modules[step.section] = held.device.load(
                    self._code[step.section], self._manifest.sections[step.section].entries
                )
        arena = self._number(compiled.arena, env, step)
        if held.arena is not None and held.arena.size < arena:
            with blamed(step.device, "the wait before its arena grows"):
                held.device.synchronize()  # kernels of an earlier step may be at work in it
            held.ready.clear()
            held.arena = None  # gives it back before more is asked for
        if held.arena is None and any(p.where == "arena" for p in step.places):  # of no bytes, perhaps
            held.arena = _reserve(held.device, arena)
        for name in step.outputs:
            if held.device.shares_memory:
                call.host[name] = self._fresh(call, name, held.device.align)
                call.there[step.device, name] = self._shared(held, call.host[name], f"sharing '{name}'")
            elif name in call.storage and call.storage[name][0] == step.device:
                call.there[step.device, name] = self._place(call, name, call.storage[name][1])
            else:
                call.there[step.device, name] = self._memory(held, name, self._shapes[name].bytes(env))
        there = [call.there[step.device, name] for name in (*step.inputs, *step.outputs)]
        key = (
            number,
            *env.items(),
            *((s.memory.number, s.offset, s.bytes) for s in there),
        )  # the arena and constants stay where they are
        start = held.ready.get(key)
        if start is None:
            slices = [self._slice(call, held, step, k, compiled) for k in range(len(step.places))]
            launches = [
                Started(
                    launch.kernel,
                    tuple(slices[b] for b in launch.buffers),
                    tuple(self._number(d, env, step) for d in dims),
                )
                for launch, dims in zip(step.launches, compiled.dims)
            ]
            with blamed(step.device, f"preparing the kernels of section '{step.section}'"):
                start = held.device.prepare(held.modules[step.section], launches)
            if not held.device.shares_memory:  # there values lie somewhere else at every call
                while len(held.ready) >= _READY:
                    held.ready.pop(next(iter(held.ready)))
                held.ready[key] = start
        with blamed(step.device, f"the kernels of section '{step.section}'"):
            start()

    def _number(self, of: Formula, env: Mapping[str, int], step: DeviceCall) -> int:
        """A number that a device gets, in 64 bits or fewer."""
        try:
            found = int(of(env))
            why = f"it is {found}, at most {LARGEST}"
        except OverflowError as error:
            found, why = LARGEST + 1, str(error)
        if abs(found) > LARGEST:
            raise ExecutionError(
                f"a size that '{self._manifest.name}' needs on '{step.device}' is out of range", why=why
            )
        return found

    def _slice(self, call: _Call, held: _Held, step: DeviceCall, number: int, compiled: _Device) -> Slice:
        place = step.places[number]
        if place.where == "value":
            return call.there[step.device, place.name]
        if place.where == "constant":
            if place.name not in held.constants:
                array = self._constants[place.name]
                if held.device.shares_memory:
                    held.constants[place.name] = self._read_there(
                        held, array, held.copies, f"sharing constant '{place.name}'"
                    )
                    return held.constants[place.name]
                room = Slice(_reserve(held.device, array.nbytes), 0, array.nbytes)
                with blamed(step.device, f"the copy of constant '{place.name}'"):
                    held.device.write(room, array)
                held.constants[place.name] = room
            return held.constants[place.name]
        offset, size = (int(f(call.symbols)) for f in compiled.places[number])
        if held.arena is None or not 0 <= offset <= offset + size <= held.arena.size:
            raise ExecutionError(
                f"a buffer of '{self._manifest.name}' lies outside the arena of '{step.device}'",
                why=f"{size} bytes at {offset}",
            )
        return Slice(held.arena, offset, size)


def _locked(locks: Sequence[AbstractContextManager[Any]], run: Callable[[], None]) -> None:
    """Runs while all locks are held. A handler of signals may raise between any two instructions; only `with` itself
    leaves no room between a lock and its release, which generators and stacks of contexts do.
    """
    if not locks:
        run()
        return
    with locks[0]:
        _locked(locks[1:], run)


def _elements(manifest: Manifest, step: Repeat) -> list[tuple[np.dtype[Any], tuple[Formula, ...]]]:
    """The dtypes of what a loop collects, and the dimensions of one."""
    outputs = manifest.plans[step.body].outputs[step.tests + step.carried :]
    return [
        (
            dtype(o.dtype).numpy,
            (formula(0),) * (o.rank or 0) if isinstance(o, ObjectInfo) else tuple(map(formula, o.shape)),
        )
        for o in outputs
    ]


def _known(d: Formula, env: Mapping[str, int]) -> int:
    """A dimension of what never came to be: 0 where nothing says it."""
    try:
        return max(0, int(d(env)))
    except KeyError:
        return 0


def _compiled(step: DeviceCall) -> _Device:
    return _Device(
        step,
        formula(step.arena),
        tuple((formula(p.offset), formula(p.bytes)) for p in step.places),
        tuple(tuple(formula(d) for d in launch.dims) for launch in step.launches),
        tuple((formula(c.holds), tuple(formula(a) for a in c.args)) for c in step.conditions),
    )


def _reserve(device: Device, size: int) -> Memory:
    with blamed(device.name, f"reserving {size} bytes"):
        return device.reserve(size)
