"""One kernel's code, run by itself: on the host's processor as a segment of its own, on a device by one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.codegen.base import THREADS, KernelCode
from weft.codegen.kernel_segment import kernel_segment
from weft.expr.nodes import Const, Expr, substitute
from weft.loop.meanings import sentinel
from weft.loop.nodes import Buffer, Program
from weft.plugins import host
from weft.resolve import ResolvedTarget
from weft_runtime.device import Device, Slice, open_device
from weft_runtime.executable import Executable
from weft_runtime.plan import Native, TensorInfo

Array: TypeAlias = np.ndarray[Any, Any]


Run: TypeAlias = Callable[[Sequence[Array]], list[Array]]


def ready_alone(target: ResolvedTarget, code: KernelCode, program: Program, dims: Mapping[str, int]) -> Run:
    """A kernel, ready to be run by itself: inputs → outputs, in the shapes of the program's buffers. What it does not
    write reads as NaN, or as a far-off number.

    Args:
        program: one that has the kernel's parameters, at any stage.
        dims: of the program.
    """
    return (_native if target.native else _launched)(target, code, program, dims)


def buffer_shape(buffer: Buffer, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes of a parameter."""
    return tuple(_size(d, dims) for d in buffer.shape)


def unwritten(buffer: Buffer, dims: Mapping[str, int]) -> Array:
    """An output before anybody has written it."""
    array = np.empty(buffer_shape(buffer, dims), buffer.dtype.numpy)
    nothing = sentinel(buffer.dtype)
    if nothing is not None:
        array[...] = nothing
    return array


def _size(e: Expr, dims: Mapping[str, int]) -> int:
    value = substitute(e, dict(dims))
    assert isinstance(value, Const), f"the size {e} is not known"
    return int(value.value)


def _native(target: ResolvedTarget, code: KernelCode, program: Program, dims: Mapping[str, int]) -> Run:
    inputs, outputs = ([(buffer_shape(b, dims), b.dtype) for b in some] for some in (program.inputs, program.outputs))
    names = [f"in{k}" for k in range(len(inputs))], [f"out{k}" for k in range(len(outputs))]
    spec = kernel_segment(program, code, dims)
    with target.blame(f"to link kernel '{code.name}' alone"):
        sections = target.kind.link(target.target, spec, {code.name: code})
    infos = [
        [TensorInfo(n, dtype.name, shape) for n, (shape, dtype) in zip(*pair)] for pair in zip(names, (inputs, outputs))
    ]
    executable = Executable.build(
        name=program.name,
        target=target.description,
        inputs=infos[0],
        outputs=infos[1],
        code=sections,
        steps=[Native("main", "run", spec.kernels(), tuple(names[0]), tuple(names[1]))],
        arena=str(spec.arena_bytes),
        threads=target.threads,
        weft=host().api_version,
    )

    def run(given: Sequence[Array]) -> list[Array]:
        out = {n: unwritten(b, dims) for n, b in zip(names[1], program.outputs)}
        return list(executable.run(dict(zip(names[0], given)), out=out).values())

    return run


def _launched(target: ResolvedTarget, code: KernelCode, program: Program, dims: Mapping[str, int]) -> Run:
    with target.blame("to make a section of one kernel"):
        section = target.kind.image(target.target, {code.name: code})
    device = open_device(target.device)
    with device.lock:
        module = device.load(section.image, section.entries)

    def run(given: Sequence[Array]) -> list[Array]:
        return launch(device, module, code, program, given, dims)

    return run


def launch(
    device: Device, module: Any, code: KernelCode, program: Program, inputs: Sequence[Array], dims: Mapping[str, int]
) -> list[Array]:
    """The outputs of a kernel of a loaded section, launched once, everything in memory of its own."""
    outputs = [unwritten(b, dims) for b in program.outputs]
    arrays = [*(np.ascontiguousarray(a) for a in inputs), *outputs]
    sizes = [_size(e, {**dims, THREADS.name: 1}) for e in code.scratch]
    with device.lock:
        places = [Slice(device.reserve(a.nbytes), 0, a.nbytes) for a in arrays]
        for place, array in zip(places, arrays):
            device.write(place, array)
        scratch = [Slice(device.reserve(n), 0, n) for n in sizes]
        device.launch(module, code.name, [*places, *scratch], [dims[d.name] for d in program.dims])
        device.synchronize()
        for place, array in zip(places[len(inputs) :], outputs):
            device.read(place, array)
    return outputs
