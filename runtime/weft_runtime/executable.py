"""A compiled model: its manifest, code and constants, what runs its plan, and the file that it can be saved in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft_runtime import cpu_features, elsewhere, threads, wasm
from weft_runtime.arrays import Array, aligned
from weft_runtime.control import Trips
from weft_runtime.dtypes import dtype
from weft_runtime.errors import ArchiveError, ExecutionError, InputError, expect_path, nearest
from weft_runtime.errors import expect as require
from weft_runtime.loader import Code
from weft_runtime.loops import NativeTrips
from weft_runtime.native import NativeSegment, Segment
from weft_runtime.plan import (
    ANY,
    ConstantInfo,
    DataSymbol,
    Manifest,
    Native,
    Plan,
    Repeat,
    SectionInfo,
    Step,
    TensorInfo,
)
from weft_runtime.steps import Steps

if TYPE_CHECKING:
    from weft_runtime.archive import Stored


@dataclass(frozen=True)
class NativeCode:
    """A linked image and its entries, as the compiler hands it over."""

    image: bytes
    entries: Mapping[str, int]
    plugin: str = ""
    version: str = ""
    features: tuple[str, ...] = field(default=())
    architecture: str = ""  # what manifests call the machine; empty: this machine's
    parallel: bool = False  # whether it has parallel loops, which the process's worker pool runs


def _runs_here(manifest: Manifest) -> bool:
    """Whether this process can run the code of an executable."""
    if manifest.machine == wasm.MACHINE:
        return wasm.lacking(manifest.features) is None
    return manifest.machine in (ANY, cpu_features.machine()) and not cpu_features.missing_features(manifest.features)


class Executable:
    """A compiled model.

    Calls may come from any number of threads; each takes an arena of its own. Results own their memory.
    """

    def __init__(
        self,
        manifest: Manifest,
        code: Mapping[str, bytes],
        constants: Mapping[str, Array],
        *,
        threads_: int | None = None,
    ) -> None:
        """For `build` and `load`, which are how executables come to be."""
        self.manifest = manifest
        self.sources: tuple[
            Path, ...
        ] = ()  # absolute: the files that it was compiled from, which `save` does not write over
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self._code = dict(code)
        self._constants = {c.name: aligned(constants[c.name]) for c in manifest.constants}
        # Code for another machine can be saved and inspected here, not mapped; here also means a processor that lacks
        # an instruction.
        place = elsewhere.place()
        self.foreign = place is not None or not _runs_here(manifest)
        # 0 tells kernels that there is no pool: parallel loops run inline.
        self.threads = (
            (threads_ or manifest.threads or threads.default_threads())
            if manifest.parallel and not self.foreign and manifest.machine != wasm.MACHINE
            else 0
        )
        self._mapped: dict[str, Code] = {}
        self._host: wasm.Host | None = None
        self._modules: dict[str, wasm.Module] = {}
        self._placed: dict[str, int] = {}  # constants of modules
        self._loops: Code | None = None
        if manifest.loops is not None and not self.foreign:
            self._loops = Code(self._code[manifest.loops], manifest.sections[manifest.loops].entries)
        self._segments: dict[int, Segment] = {}
        self._output_names = tuple(o.name for o in self.outputs)
        # What is called must be quick to reach: a small model answers in a few microseconds.
        self._execute: Callable[[Sequence[Any], Mapping[str, Any] | None], list[Array]] = (
            place(self) if place is not None else self._refuse if self.foreign else self._runner(manifest).execute
        )

    def _runner(self, manifest: Manifest, plans: Sequence[Segment | Steps] | None = None) -> Segment | Steps:
        """What runs a manifest's plan; `plans` run its own."""
        if plans is None:
            made: list[Segment | Steps] = []
            for number in range(len(manifest.plans)):
                made.append(self._runner(manifest.of_plan(number), made[:]))
            plans = made
        infos = {i.name: i for i in (*manifest.inputs, *manifest.values, *manifest.outputs)}
        mapped = self._mapped
        segments = self._segments if manifest is self.manifest else {}
        for number, step in enumerate(manifest.steps):
            if isinstance(step, Native):
                inputs, outputs = ([infos[n] for n in names] for names in (step.inputs, step.outputs))
                if manifest.single:  # an output may be called like an input
                    inputs, outputs = list(manifest.inputs), list(manifest.outputs)
                if manifest.machine == wasm.MACHINE:
                    segments[number] = self._wasm_segment(manifest.name, step, inputs, outputs)
                    continue
                if step.section not in mapped:
                    mapped[step.section] = Code(self._code[step.section], manifest.sections[step.section].entries)
                constants = [self._constants[n] for n in step.constants]
                segments[number] = NativeSegment(
                    manifest.name, step, inputs, outputs, mapped[step.section], constants, self.threads
                )
        if manifest.single:
            return segments[0]
        trips: dict[int, Trips] = {}
        for number, step in enumerate(manifest.steps):
            if isinstance(step, Repeat) and self._loops is not None and manifest.runs_natively(step):
                body = plans[step.body]
                assert isinstance(body, NativeSegment)
                trips[number] = NativeTrips(step, body, self._loops.address("repeat"))
        runs = [p.execute for p in plans]
        return Steps(manifest, segments, self._code, self._constants, runs, trips, owns=manifest is self.manifest)

    def _wasm_segment(
        self, name: str, step: Native, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
    ) -> wasm.WasmSegment:
        self._host = self._host or wasm.Host()
        if step.section not in self._modules:
            self._modules[step.section] = self._host.load(self._code[step.section], name)
        for constant in step.constants:
            if constant not in self._placed:
                self._placed[constant] = self._host.place(self._constants[constant])
        constants = [self._placed[n] for n in step.constants]
        return wasm.WasmSegment(name, step, inputs, outputs, self._modules[step.section], constants)

    def _refuse(self, values: Sequence[Any], out: Mapping[str, Any] | None) -> list[Array]:
        here = cpu_features.machine()
        if self.manifest.machine == wasm.MACHINE:
            what, hint = wasm.lacking(self.manifest.features) or ("", "")
            what = f"'{self.manifest.name}' was compiled for WebAssembly, which {what} here"
            raise ExecutionError(what, where=self.manifest.target, hint=hint)
        if self.manifest.machine not in (ANY, here):
            what = f"'{self.manifest.name}' was compiled for {self.manifest.machine}, this machine is {here}"
        else:
            lacking = ", ".join(cpu_features.missing_features(self.manifest.features))
            what = f"'{self.manifest.name}' was compiled for a processor with {lacking}, which this machine lacks"
        raise ExecutionError(what, where=self.manifest.target, hint="save it, and run the archive there")

    @classmethod
    def build(
        cls,
        *,
        name: str,
        target: str,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        code: Mapping[str, NativeCode],
        steps: Sequence[Step],
        values: Sequence[TensorInfo] = (),
        symbols: Sequence[DataSymbol] = (),
        plans: Sequence[Plan] = (),
        constants: Mapping[str, Array] | None = None,
        loops: str | None = None,
        arena: str = "0",
        threads: int | None = None,
        machine: str | None = None,
        weft: str = "",
    ) -> Executable:
        """An executable of what the compiler made.

        Args:
            code: section name → image; steps and `loops` name sections.
            steps: the plan.
            values, symbols: what steps hand on to one another, and the sizes that data say.
            plans: what branches and loops run.
            constants: by the names that steps give them.
        """
        held = {k: aligned(v) for k, v in (constants or {}).items()}
        native = any(isinstance(s, Native) for s in (*steps, *(s for p in plans for s in p.steps)))
        manifest = Manifest(
            name=name,
            target=target,
            machine=machine
            or next(
                (c.architecture for c in code.values() if c.architecture), cpu_features.machine() if native else ANY
            ),
            features=tuple(sorted({f for c in code.values() for f in c.features})),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            steps=tuple(steps),
            values=tuple(values),
            symbols=tuple(symbols),
            plans=tuple(plans),
            sections={
                k: SectionInfo(hashlib.sha256(c.image).hexdigest(), len(c.image), dict(c.entries), c.plugin, c.version)
                for k, c in code.items()
            },
            constants=tuple(ConstantInfo(k, dtype(v.dtype).name, v.shape) for k, v in held.items()),
            parallel=any(c.parallel for c in code.values()),
            loops=loops,
            arena=arena,
            threads=threads,
            weft=weft,
        )
        return cls(manifest, {k: c.image for k, c in code.items()}, held)

    # -- text
    @property
    def plan(self) -> str:
        """The steps, for people."""
        return self.manifest.plan()

    def __repr__(self) -> str:
        return (
            f"Executable({self.manifest.name}({', '.join(map(str, self.inputs))}) ->"
            f" ({', '.join(map(str, self.outputs))}), target={self.manifest.target!r})"
        )

    # -- running
    def __call__(self, *args: Any) -> Any:
        """Inputs by position; the output, or a tuple of several."""
        if len(args) != len(self.inputs):
            raise InputError(
                f"'{self.manifest.name}' takes {len(self.inputs)} inputs, got {len(args)}",
                where="\n".join(map(str, self.inputs)) or None,
            )
        results = self._execute(args, None)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Inputs by name → outputs by name.

        Args:
            inputs: numpy arrays, or anything with `__dlpack__` or `__array__`; dtypes must be exactly those of
                `self.inputs`. A tensor in the memory of a device of the plan is taken where it lies, if the device can
                (`weft-cuda`).
            out: storage for some or all outputs: contiguous writable arrays of their dtype and size, on the host or as
                inputs may lie. They are filled, and what was given is in the result.

        Raises:
            InputError: an input or `out` that is missing, unknown, or of another dtype, rank or size.
            ExecutionError: the run itself failed.
        """
        try:
            values = [inputs[info.name] for info in self.inputs]
            fits = len(values) == len(inputs)
        except (KeyError, TypeError, IndexError):  # no such name, or no mapping
            fits = False
        if not fits:
            raise self._wrong_names(inputs)
        if out is not None and not isinstance(out, Mapping):
            raise InputError(
                f"`out` takes storage by output name, got {type(out).__name__}",
                hint=f"give a dict such as {{{self._output_names[0]!r}: array}}",
            )
        return dict(zip(self._output_names, self._execute(values, out)))

    def _wrong_names(self, inputs: Mapping[str, Any]) -> InputError:
        known = [i.name for i in self.inputs]
        if not isinstance(inputs, Mapping):
            return InputError(
                f"`run` takes inputs by name, got {type(inputs).__name__}",
                where="\n".join(map(str, self.inputs)) or None,
                hint="give a dict of name → array, or call the executable itself with arrays in this order",
            )
        missing = [n for n in known if n not in inputs]
        unknown = [n for n in inputs if n not in known]
        parts = []
        if missing:
            parts.append("missing " + ", ".join(repr(n) for n in missing))
        if unknown:
            parts.append("unknown " + ", ".join(repr(n) for n in unknown))
        close = nearest(unknown[0], known) if unknown else None
        return InputError(
            f"inputs of '{self.manifest.name}' do not match: {'; '.join(parts)}",
            where="\n".join(map(str, self.inputs)) or None,
            hint=f"did you mean '{close}'?" if close else None,
        )

    # -- archive
    def save(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        """Writes the executable to a file, atomically: a reader sees the old file or the new one. The archive that it
        was loaded from may be that file.

        Args:
            durable: return when the file is on the disk. Without, it may be lost or damaged if the system crashes soon,
                and is refused then.

        Raises:
            ExecutionError: the file cannot be written, or is one that the model was compiled from in this process:
                itself, its weights.
        """
        from weft_runtime import archive
        from weft_runtime.files import input_at

        path = expect_path(path, "the file of an archive", InputError)
        source = input_at(path, self.sources)
        if source is not None:
            raise ExecutionError(
                f"cannot write {path}",
                why=f"'{self.manifest.name}' was compiled from it",
                where=str(source),
                hint="give another name",
            )
        try:
            archive.save(path, self.manifest, self._code, self._constants, durable)
        except OSError as error:
            raise ExecutionError(
                f"cannot write {path}", why=error.strerror or str(error), hint="give another name"
            ) from None

    def stored(self) -> Stored:
        """What `save` writes, in parts, for files of other formats."""
        from weft_runtime import archive

        return archive.stored(self.manifest, self._code, self._constants)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        expect: str | None = None,
        *,
        threads: int | None = None,
        copy: bool | None = None,
    ) -> Executable:
        """Opens a saved executable. Running it runs the machine code in the file with all rights of this process: load
        only files that you trust.

        Nothing in the file runs while it is loaded. Hashes and the signature in its code tell a file that was damaged
        or put together of parts that do not belong together. They do not tell who made it: whoever writes a file writes
        its hashes, too. `expect` does, if the hash comes from whom you trust.

        Args:
            expect: "sha256:<hex>" of the whole file, as sha256sum prints it: anything else is refused.
            threads: instead of those that the target string or WEFT_THREADS asks for.
            copy: True copies the file into memory of this process before it is checked, so that what was checked is
                what runs. False maps it: weights cost memory only as they are used, shared among processes, but whoever
                writes into the file later changes them, also under `expect`, and whoever cuts it short ends the process
                by SIGBUS. To replace a file is safe in either case, as `save` does and `mv`. None copies files of at
                most 64 MiB.

        Raises:
            ArchiveError: truncated, foreign, corrupt, of another format, for another machine, or not what `expect`
                says.
        """
        path = expect_path(path, "the file of an archive", InputError)
        require(expect, (str, type(None)), "expect", "a hash", hint='"sha256:<hex>", as sha256sum prints it')
        require(copy, (bool, type(None)), "copy", "True, False or None")
        found = cls._opened(path, expect, copy, threads)
        manifest = found.manifest
        if elsewhere.place() is not None:
            return found
        here = cpu_features.machine()
        lacks = wasm.lacking(manifest.features) if manifest.machine == wasm.MACHINE else None
        if lacks is not None:
            raise ArchiveError(f"{path} holds code for WebAssembly, which {lacks[0]} here", hint=lacks[1])
        if manifest.machine not in (ANY, here, wasm.MACHINE):
            raise ArchiveError(
                f"{path} holds code for {manifest.machine}, this machine is {here}",
                hint=f"compile it for this machine; it was made for target {manifest.target!r}",
            )
        lacking = cpu_features.missing_features(manifest.features)
        if lacking and manifest.machine != wasm.MACHINE:
            raise ArchiveError(
                f"{path} needs CPU features that this machine lacks: {', '.join(lacking)}",
                why=f"it was made for target {manifest.target!r}",
                hint="compile it for this machine, or for an older -mcpu",
            )
        return found

    @classmethod
    def open(cls, path: str | os.PathLike[str], expect: str | None = None) -> Executable:
        """As `load`, for any machine: what does not run here can be examined and written in other formats.

        Raises:
            ArchiveError: as `load`, but not for another machine.
        """
        path = expect_path(path, "the file of an archive", InputError)
        require(expect, (str, type(None)), "expect", "a hash", hint='"sha256:<hex>", as sha256sum prints it')
        return cls._opened(path, expect, None, None)

    @classmethod
    def _opened(cls, path: Path, expect: str | None, copy: bool | None, threads: int | None) -> Executable:
        from weft_runtime import archive

        content = archive.load(path, expect, copy)
        return cls(content.manifest, content.code, content.constants, threads_=threads)

    @staticmethod
    def inspect(path: str | os.PathLike[str]) -> Manifest:
        """The manifest of a saved executable; maps no code, checks no section."""
        from weft_runtime import archive

        return archive.inspect(expect_path(path, "the file of an archive", InputError))
