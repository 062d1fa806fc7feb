"""Runs a plan of several steps: native segments on the host, kernels on devices, copies between their memories.

What devices hold (constants, arenas, values) is made once and used again by later calls; a call holds the locks of all its devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.dtypes import dtype
from weft.errors import ExecutionError, InputError, WeftError, nearest
from weft.runtime.arrays import Array, aligned_empty
from weft.runtime.device import Device, Memory, Slice, open_device
from weft.runtime.dlpack import as_array
from weft.runtime.formulas import Formula, formula, symbol_of
from weft.runtime.native import NativeSegment, fill, wrong_type
from weft.runtime.plan import HOST, Copy, DataSymbol, DeviceCall, Manifest, Native, TensorInfo


@dataclass
class _Call:
    """What one call knows: the symbols bound so far, the values in the host's memory, those in devices'."""

    symbols: dict[str, int] = field(default_factory=dict)
    host: dict[str, Array] = field(default_factory=dict)
    there: dict[tuple[str, str], Slice] = field(default_factory=dict)


@dataclass
class _Held:
    """What a plan keeps on one device between calls."""

    device: Device
    modules: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Slice] = field(default_factory=dict)
    values: dict[str, Memory] = field(default_factory=dict)
    arena: Memory | None = None


@dataclass(frozen=True)
class _Shape:
    """A value's dtype, and its dimensions as formulas."""

    info: TensorInfo
    of: np.dtype[Any]
    dims: tuple[Formula, ...]

    def size(self, env: Mapping[str, int]) -> tuple[int, ...]:
        found = tuple(int(d(env)) for d in self.dims)
        if any(d < 0 for d in found):
            raise ExecutionError(f"'{self.info.name}' would have a negative size", where=str(self.info), why=f"its shape is {list(found)}")
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

    Raises:
        ArchiveError: a formula of the manifest that is none.
    """

    def __init__(
        self, manifest: Manifest, segments: Mapping[int, NativeSegment], code: Mapping[str, bytes], constants: Mapping[str, Array]
    ) -> None:
        self._manifest, self._segments, self._code, self._constants = manifest, segments, code, constants
        infos = (*manifest.inputs, *manifest.values, *manifest.outputs)
        self._shapes = {i.name: _Shape(i, dtype(i.dtype).numpy, tuple(formula(d) for d in i.shape)) for i in infos}
        self._devices = {k: _compiled(s) for k, s in enumerate(manifest.steps) if isinstance(s, DeviceCall)}
        self._held: dict[str, _Held] = {}
        self._sources: dict[str, list[DataSymbol]] = {}
        for s in manifest.symbols:
            self._sources.setdefault(s.value, []).append(s)

    def execute(self, values: Sequence[Any], out: Mapping[str, Any] | None = None) -> list[Array]:
        """Inputs in order → outputs in order; `out` is storage by name for some of them."""
        call = _Call()
        for i, (info, value) in enumerate(zip(self._manifest.inputs, values)):
            self._bind(call, i, info, value)
        targets = self._targets(out or {})
        try:
            self._run(call)
        except (KeyError, ZeroDivisionError) as error:  # devices' own are caught where they happen
            what = f"{error} is not known" if isinstance(error, KeyError) else str(error)
            message = f"a size that the plan of '{self._manifest.name}' needs cannot be computed"
            raise ExecutionError(message, why=what, hint="compile the model again") from None
        results = [call.host[o.name] for o in self._manifest.outputs]
        for k, target in targets.items():
            if target.shape != results[k].shape:
                info = self._manifest.outputs[k]
                raise InputError(f"storage for output '{info.name}' has shape {list(target.shape)}, the result has {list(results[k].shape)}", where=str(info))
            target[...] = results[k]
            results[k] = target
        return results

    def _run(self, call: _Call) -> None:
        with self._locked() as held:
            for k, step in enumerate(self._manifest.steps):
                if isinstance(step, Native):
                    self._native(call, k, step)
                elif isinstance(step, Copy):
                    self._copy(call, step, held)
                else:
                    self._launch(call, self._devices[k], held[step.device])

    # -- inputs and outputs
    def _bind(self, call: _Call, i: int, info: TensorInfo, value: Any) -> None:
        array = value if type(value) is np.ndarray else as_array(value, info.name)
        if array.dtype != self._shapes[info.name].of or array.ndim != len(info.shape):
            raise wrong_type(info, self._shapes[info.name].of, array)
        self._keep(call, info, np.ascontiguousarray(array).reshape(array.shape))

    def _keep(self, call: _Call, info: TensorInfo, array: Array) -> None:
        """A value of the host, and the symbols that it binds or must agree with."""
        call.host[info.name] = array
        self._learn(call, info, array.shape)
        for s in self._sources.get(info.name, ()):
            if s.index >= array.size:
                raise InputError(f"input '{info.name}' has {array.size} elements, element {s.index} is needed", where=str(info))
            call.symbols[s.name] = int(array.reshape(-1)[s.index])

    def _learn(self, call: _Call, info: TensorInfo, shape: tuple[int, ...]) -> None:
        """Binds symbols to the sizes of an array, or checks them."""
        for axis, (d, given) in enumerate(zip(info.shape, shape)):
            symbol = symbol_of(d)
            if symbol is not None and symbol not in call.symbols:
                call.symbols[symbol] = given
                continue
            try:
                wanted = int(self._shapes[info.name].dims[axis](call.symbols))
            except KeyError:  # a symbol that a later step binds, and checks
                continue
            if wanted != given:
                shown = str(wanted) if isinstance(d, int) else f"{wanted} ({d})"
                raise InputError(f"input '{info.name}' has size {given} on axis {axis}, expected {shown}", where=str(info), why=f"its shape is {list(shape)}")

    def _targets(self, out: Mapping[str, Any]) -> dict[int, Array]:
        names = [o.name for o in self._manifest.outputs]
        targets = {}
        for name, storage in out.items():
            if name not in names:
                close = nearest(name, names)
                hint = f"did you mean '{close}'?" if close else None
                raise InputError(f"'{self._manifest.name}' has no output '{name}'", where="\n".join(map(str, self._manifest.outputs)), hint=hint)
            array, shape = as_array(storage, name), self._shapes[name]
            if array.dtype != shape.of or array.ndim != len(shape.dims):
                raise InputError(f"storage for output '{name}' does not fit", where=str(shape.info), why=f"it is {array.dtype}{list(array.shape)}")
            if not array.flags.writeable:
                raise InputError(f"storage for output '{name}' must be writable", where=str(shape.info))
            targets[names.index(name)] = array
        return targets

    # -- devices
    @contextmanager
    def _locked(self) -> Iterator[dict[str, _Held]]:
        devices = {name: open_device(name) for name in self._manifest.devices}
        with ExitStack() as stack:
            for name in sorted(devices):  # in one order everywhere, so that two plans never wait for one another
                stack.enter_context(devices[name].lock)
                if name not in self._held:
                    self._held[name] = _Held(devices[name])
            yield self._held

    def _memory(self, held: _Held, name: str, size: int) -> Slice:
        """Room for a value, that of an earlier call if it is large enough."""
        memory = held.values.get(name)
        if memory is None or memory.size < size:
            held.values.pop(name, None)
            memory = held.values[name] = held.device.reserve(size)
        return Slice(memory, 0, size)

    # -- steps
    def _native(self, call: _Call, number: int, step: Native) -> None:
        results = self._segments[number].execute([call.host[name] for name in step.inputs])
        for name, array in zip(step.outputs, results):
            self._keep(call, self._shapes[name].info, array)

    def _copy(self, call: _Call, step: Copy, held: Mapping[str, _Held]) -> None:
        if step.source == HOST:
            array = call.host[step.value]
            room = self._memory(held[step.target], step.value, array.nbytes)
            with _blamed(step.target, f"the copy of '{step.value}'"):
                held[step.target].device.write(room, array)
            call.there[step.target, step.value] = room
            return
        shape = self._shapes[step.value]
        try:
            array = aligned_empty(shape.size(call.symbols), shape.of)
        except (MemoryError, ValueError, OverflowError) as error:
            raise ExecutionError(f"no memory for '{step.value}' of '{self._manifest.name}'", where=str(shape.info), why=str(error)) from None
        device = held[step.source].device
        with _blamed(step.source, f"the copy of '{step.value}'"):
            device.synchronize()
            device.read(call.there[step.source, step.value], array)
        call.host[step.value] = array

    def _launch(self, call: _Call, compiled: _Device, held: _Held) -> None:
        step, env = compiled.step, call.symbols
        for condition, (holds, args) in zip(step.conditions, compiled.conditions):
            if not holds(env):
                numbers = [int(a(env)) for a in args]
                raise ExecutionError(fill(condition.what, numbers), where=self._manifest.name, hint=fill(condition.hint, numbers) or None)
        if step.section not in held.modules:
            with _blamed(step.device, f"loading section '{step.section}'"):
                held.modules[step.section] = held.device.load(self._code[step.section], self._manifest.sections[step.section].entries)
        arena = int(compiled.arena(env))
        if arena and (held.arena is None or held.arena.size < arena):
            held.arena = None  # gives it back before more is asked for
            held.arena = held.device.reserve(arena)
        for name in step.outputs:
            call.there[step.device, name] = self._memory(held, name, self._shapes[name].bytes(env))
        slices = [self._slice(call, held, step, k, compiled) for k in range(len(step.places))]
        for launch, dims in zip(step.launches, compiled.dims):
            with _blamed(step.device, f"kernel '{launch.kernel}'"):
                held.device.launch(held.modules[step.section], launch.kernel, [slices[b] for b in launch.buffers], [int(d(env)) for d in dims])

    def _slice(self, call: _Call, held: _Held, step: DeviceCall, number: int, compiled: _Device) -> Slice:
        place = step.places[number]
        if place.where == "value":
            return call.there[step.device, place.name]
        if place.where == "constant":
            if place.name not in held.constants:
                array = self._constants[place.name]
                room = Slice(held.device.reserve(array.nbytes), 0, array.nbytes)
                with _blamed(step.device, f"the copy of constant '{place.name}'"):
                    held.device.write(room, array)
                held.constants[place.name] = room
            return held.constants[place.name]
        offset, size = (int(f(call.symbols)) for f in compiled.places[number])
        if held.arena is None or not 0 <= offset <= offset + size <= held.arena.size:
            raise ExecutionError(f"a buffer of '{self._manifest.name}' lies outside the arena of '{step.device}'", why=f"{size} bytes at {offset}")
        return Slice(held.arena, offset, size)


def _compiled(step: DeviceCall) -> _Device:
    return _Device(
        step,
        formula(step.arena),
        tuple((formula(p.offset), formula(p.bytes)) for p in step.places),
        tuple(tuple(formula(d) for d in launch.dims) for launch in step.launches),
        tuple((formula(c.holds), tuple(formula(a) for a in c.args)) for c in step.conditions),
    )


@contextmanager
def _blamed(device: str, what: str) -> Iterator[None]:
    """Whatever a device's plugin raises becomes an error that names the device and what it was doing."""
    try:
        yield
    except WeftError:
        raise
    except Exception as error:
        raise ExecutionError(f"{what} failed on device '{device}'", why=f"{type(error).__name__}: {error}") from error
