"""LLVM through llvmlite: text of LLVM IR in; checked, optimised objects, assembly or callable functions out.

Compile workers import this module and nothing else of Weft but its errors, so it stays light.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from weft.errors import CodegenError
from weft.forks import hold


@dataclass(frozen=True)
class Cpu:
    """What LLVM is told to compile for, and how hard to try (`opt` 0 … 3)."""

    triple: str
    name: str
    features: str = ""
    opt: int = 3


_lock = getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)  # which every call of llvmlite takes
if _lock is not None:
    hold(_lock)


_setting = threading.RLock()
hold(_setting)


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def host_triple() -> str:
    return str(llvm.get_process_triple())


def object_format(triple: str) -> str:
    """What LLVM writes for it by default: "ELF", "MachO", "COFF", …"""
    return str(llvm.get_object_format(triple))


def host_cpu() -> str:
    return str(llvm.get_host_cpu_name())


def host_features() -> str:
    """The host's features as LLVM writes them ("+avx2,-avx512f"), sorted."""
    return str(llvm.get_host_cpu_features().flatten(sort=True))


def target_machine(cpu: Cpu) -> llvm.TargetMachine:
    """Raises CodegenError if LLVM does not know the triple."""
    _initialize()
    try:
        target = llvm.Target.from_triple(cpu.triple)
    except RuntimeError as error:
        raise CodegenError(f"LLVM has no code generator for '{cpu.triple}'", why=str(error)) from None
    return target.create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=min(cpu.opt, 3), reloc="pic", codemodel="small"
    )


@cache
def data_layout(cpu: Cpu) -> str:
    return str(target_machine(cpu).target_data)


def optimize(
    ir: str, cpu: Cpu, machine: llvm.TargetMachine | None = None, *, unroll: bool = False, vectorize: bool = False
) -> llvm.ModuleRef:
    """Parses, verifies and optimises `ir`.

    LLVM's own unrolling and vectorising are off unless asked for: a schedule has already decided, and undoing its
    choice has cost half of a kernel's speed.

    Raises:
        CodegenError: the text is not valid LLVM IR.
    """
    machine = machine or target_machine(cpu)
    module = _parse(ir)
    if not module.data_layout:  # passes would take the processor for a big-endian one
        module.data_layout = str(machine.target_data)
    if cpu.opt > 0:
        options = llvm.create_pipeline_tuning_options(speed_level=cpu.opt)
        options.loop_unrolling = unroll
        options.loop_vectorization = vectorize
        options.loop_interleaving = vectorize
        options.slp_vectorization = vectorize
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
    return module


def _parse(ir: str) -> llvm.ModuleRef:
    # A context of its own: modules of several threads must not share one, and llvmlite's global one only grows.
    try:
        module = llvm.parse_assembly(ir, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        hint = "this is a bug of the emitter; please report it with the kernel"
        raise CodegenError("LLVM rejects the emitted IR", where=str(error).strip(), hint=hint) from None
    return module


@contextmanager
def _settings(cpu: Cpu) -> Iterator[None]:
    """While code is generated for WebAssembly: without the pass that makes pointers of what loops count.

    It forgets that sums of addresses do not wrap, so that no load or store has its offset in itself, and its engines
    have few registers for the pointers. LLVM's settings are those of the process.
    """
    with _setting:
        if not cpu.triple.startswith("wasm"):
            yield
            return
        llvm.set_option("weft", "-disable-lsr=true")
        try:
            yield
        finally:
            llvm.set_option("weft", "-disable-lsr=false")


def compile_object(ir: str, cpu: Cpu) -> bytes:
    """A relocatable, position-independent object."""
    machine = target_machine(cpu)
    module = optimize(ir, cpu, machine)
    with _settings(cpu):
        return bytes(machine.emit_object(module))


def compile_assembly(ir: str, cpu: Cpu) -> str:
    """The assembly text of what `compile_object` gives."""
    machine = target_machine(cpu)
    machine.set_asm_verbosity(False)
    module = optimize(ir, cpu, machine)
    with _settings(cpu):
        return str(machine.emit_assembly(module))


def optimized_ir(ir: str, cpu: Cpu) -> str:
    return str(optimize(ir, cpu))


def undefined_symbols(image: bytes) -> list[str]:
    """The names that an ELF64 object needs and does not define; empty for every object that the emitter makes."""
    if image[:4] != b"\x7fELF" or image[4] != 2:
        raise CodegenError("not a 64-bit ELF object", why=f"it starts with {image[:5]!r}")
    order = "<" if image[5] == 1 else ">"
    (sections,) = struct.unpack_from(order + "Q", image, 0x28)
    size, count = struct.unpack_from(order + "HH", image, 0x3A)
    headers = [struct.unpack_from(order + "IIQQQQIIQQ", image, sections + i * size) for i in range(count)]
    names = []
    for _, kind, _, _, offset, length, link, _, _, entry in headers:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = headers[link][4]
        for at in range(offset + entry, offset + length, entry):  # the first entry is the null symbol
            name, _, _, section, _, _ = struct.unpack_from(order + "IBBHQQ", image, at)
            if section == 0:
                start = strings + name
                names.append(image[start : image.index(b"\0", start)].decode())
    return names


# -- running in this process ------------------------------------------------------------------------------------------

CONTEXT_FIELDS = 20
_THREADS_FIELD = 72
_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Linked:
    """Functions of one object, mapped into this process for as long as this object lives.

    By the linker of executables, as one image: LLVM's own maps each section where there is room, and where that is
    further than 2 GiB from another one, as in a process that has reserved much, references between them are cut off.
    """

    def __init__(self, image: bytes, names: Sequence[str]) -> None:
        from weft_llvm.link import link
        from weft_runtime.loader import Code

        missing = undefined_symbols(image)
        if missing:
            raise CodegenError("the object does not link", why="it needs " + ", ".join(missing))
        linked = link({"object": image})
        if absent := [name for name in names if name not in linked.entries]:
            raise CodegenError("the object does not link", why="it has no " + ", ".join(absent))
        self._code = Code(linked.bytes, linked.entries)
        self.addresses = {name: self._code.address(name) for name in names}


# Every task, last first, each as another thread, so that a test sees what depends on either.
_STAND_IN = f"""
define i32 @run_tasks(ptr %ctx, ptr %task, ptr %closure, i64 %tasks) nounwind {{
entry:
  %at = getelementptr i8, ptr %ctx, i64 {_THREADS_FIELD}
  %told = load i64, ptr %at, align 8
  %several = icmp sgt i64 %told, 1
  %threads = select i1 %several, i64 %told, i64 1
  br label %head
head:
  %left = phi i64 [ %tasks, %entry ], [ %i, %body ]
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %body, label %done
body:
  %i = sub i64 %left, 1
  %mixed = mul i64 %i, 7
  %who = urem i64 %mixed, %threads
  call void %task(ptr %ctx, ptr %closure, i64 %i, i64 %who)
  br label %head
done:
  ret i32 0
}}
"""


@cache
def _stand_in() -> Linked:
    """A stand-in for the pool."""
    return Linked(compile_object(_STAND_IN, Cpu(host_triple(), host_cpu(), host_features())), ["run_tasks"])


class JitKernel:
    """A kernel linked into this process, for tests: call it with arrays (inputs, then outputs) and dims.

    Args of a call:
        threads: 0 runs parallel loops inline (no pool); more runs every task through a stand-in pool, one after
            another.
    """

    def __init__(
        self,
        name: str,
        image: bytes,
        scratch: Sequence[Callable[[Mapping[str, int]], int]] = (),
        dims: Sequence[str] = (),
    ) -> None:
        self._linked = Linked(image, [name])
        self.address = self._linked.addresses[name]
        self._function = _KERNEL(self.address)
        self._scratch, self._dims = scratch, tuple(dims)

    def prepare(
        self, arrays: Sequence[Any], dims: Mapping[str, int] | Sequence[int] = (), threads: int = 0
    ) -> Callable[[], int]:
        """A call with everything bound, cheap enough to time."""
        import numpy as np

        values = [dims[d] for d in self._dims] if isinstance(dims, Mapping) else list(dims)
        env = {**dict(zip(self._dims, values)), "call.threads": max(1, threads)}
        keep: list[Any] = []
        pointers = []
        for a in arrays:
            if not a.flags.c_contiguous:
                raise CodegenError("a kernel takes contiguous arrays")
            pointers.append(a.ctypes.data)
        for size in self._scratch:
            store = np.full(int(size(env)) + 64, 0xA5, np.uint8)  # a pattern: nobody may count on zeros
            keep.append(store)
            pointers.append((store.ctypes.data + 63) // 64 * 64)
        context = (ctypes.c_uint64 * CONTEXT_FIELDS)()
        if threads:
            context[4] = _stand_in().addresses["run_tasks"]
        context[9] = threads
        buffers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        sizes = (ctypes.c_int64 * max(1, len(values)))(*values)

        def run() -> int:
            assert arrays is not None and keep is not None  # alive as long as this is, like the code
            return int(self._function(ctypes.addressof(context), ctypes.addressof(buffers), ctypes.addressof(sizes)))

        return run

    def __call__(self, arrays: Sequence[Any], dims: Mapping[str, int] | Sequence[int] = (), threads: int = 0) -> int:
        return self.prepare(arrays, dims, threads)()
