"""A user's own kernel: tensor expressions, scheduled by hand, built and called.

n = weft.var("n"); A = weft.placeholder((n, 64)); k = weft.reduce_axis(64)
C = weft.compute((n, n), lambda i, j: weft.sum(A[i, k] * A[j, k], axis=k))
s = weft.schedule(C, target="llvm"); print(s); f = weft.build(s); f(a, out=c)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from weft.codegen import segment as sg
from weft.codegen.base import THREADS, require
from weft.codegen.kernel_segment import kernel_segment
from weft.codegen.profile import profiled
from weft.errors import ChoiceError, InputError, ScheduleError, ScheduleWarning, TensorError, expect
from weft.expr.nodes import free_vars
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_tensors
from weft.plugins import host
from weft.records import said
from weft.resolve import ResolvedTarget, resolve_target
from weft.scheduling.rule import apply_rule, first_of, offers_of
from weft.scheduling.run_rules import run_recorded
from weft.scheduling.schedule import Schedule
from weft.tensor.language import Placeholder, Scan, Tensor
from weft_runtime.executable import Executable
from weft_runtime.plan import Native, TensorInfo


class KernelSchedule(Schedule):
    """The schedule of a user's kernel, with its target."""

    def __init__(self, program: Any, target: ResolvedTarget) -> None:
        super().__init__(program, target.machine, intrinsics=target.intrinsics)
        self.target = target

    def auto(self) -> KernelSchedule:
        """Schedules the kernel by its record, if there is one (`weft.tune`), or else by the target's own best rule, as
        `weft.compile` does. A record that cannot be followed gives a ScheduleWarning."""
        record = self.target.records.of_program(self.program, self.target.machine_key)
        if record is not None:
            target = self.target
            try:
                made = run_recorded(
                    target.rules, self.program, self.machine, self.intrinsics, target.exceeds, record.choices
                )
            except ChoiceError as error:
                text = f"kernel '{self.program.name}' does not follow {record}: {said(error)}"
                warnings.warn(text, ScheduleWarning, stacklevel=2)
            else:
                self.program, self.trace = made.schedule.program, made.schedule.trace
                return self
        offers, declines = offers_of(self.target.rules, self.program, self.machine, self.intrinsics)
        rule, offer = first_of(offers, self.program, declines)
        apply_rule(rule, self, offer)
        return self


def schedule(
    outputs: Tensor | Sequence[Tensor],
    target: str = "llvm",
    inputs: Sequence[Tensor] | None = None,
    name: str = "kernel",
) -> KernelSchedule:
    """The naive program of tensor expressions, ready to be scheduled for a target.

    Args:
        outputs: what the kernel computes.
        inputs: the order of its parameters; by default placeholders in order of first use.

    Raises:
        TensorError: an output is a placeholder, or an input is missing from `inputs`.
        TargetError: unknown target or option.
    """
    expect(
        outputs,
        (Tensor, Sequence),
        "outputs",
        "a tensor or a list of tensors",
        TensorError,
        "give what weft.compute returned",
    )
    wanted = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    for t in (*wanted, *(inputs or ())):
        expect(
            t,
            Tensor,
            "each of outputs and inputs",
            "a tensor",
            TensorError,
            "give what weft.compute and weft.placeholder returned",
        )
    if not wanted:
        raise TensorError("a kernel has an output, none is given", hint="give what weft.compute returned")
    found = _placeholders(wanted)
    if any(isinstance(o.source, Placeholder) for o in wanted):
        raise TensorError("a placeholder is no output", hint="give what weft.compute returned")
    if inputs is not None:
        missing = [t.name for t in found if all(t is not i for i in inputs)]
        if missing:
            raise TensorError(f"inputs lacks {', '.join(missing)}", hint="list every placeholder that the outputs read")
    return KernelSchedule(lower_tensors(tuple(inputs or found), wanted, name), resolve_target(target))


def _placeholders(outputs: Sequence[Tensor]) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    inner: set[int] = set()
    seen: set[int] = set()

    def visit(t: Tensor) -> None:
        if id(t) in seen:
            return
        seen.add(id(t))
        if isinstance(t.source, Scan):
            inner.update(id(s) for s in t.source.states)
        if isinstance(t.source, Placeholder):
            found.setdefault(id(t), t)
        for i in t.inputs:
            visit(i)

    for o in outputs:
        visit(o)
    return [t for t in found.values() if id(t) not in inner]


class Kernel:
    """A built kernel. Call it with its inputs in order; `out` receives the result (a tuple of arrays for several)."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Inputs are arrays (anything with __dlpack__ or __array__) of the placeholders' dtypes and shapes.

        Returns:
            The output, or a tuple of several; `out` itself where given.

        Raises:
            InputError: a wrong number of arrays, or one that does not fit.
        """
        exe = self.executable
        if len(inputs) != len(exe.inputs):
            raise InputError(
                f"the kernel takes {len(exe.inputs)} input(s), got {len(inputs)}", where=", ".join(map(str, exe.inputs))
            )
        named = {i.name: a for i, a in zip(exe.inputs, inputs)}
        if out is None:
            results = exe.run(named)
        else:
            outs = out if isinstance(out, tuple) else (out,)
            if len(outs) != len(exe.outputs):
                raise InputError(f"the kernel gives {len(exe.outputs)} output(s), got {len(outs)} to write to")
            results = exe.run(named, out={o.name: a for o, a in zip(exe.outputs, outs)})
        values = tuple(results[o.name] for o in exe.outputs)
        return values[0] if len(values) == 1 else values

    def save(self, path: str) -> None:
        """Saves the kernel as an archive, as `Executable.save`."""
        self.executable.save(path)


def link_kernel(s: KernelSchedule, profile: bool = False) -> tuple[sg.SegmentSpec, Mapping[str, Any]]:
    """A scheduled kernel as a segment of its own, and the segment's code sections; of any target, this machine's or
    not.

    Args:
        profile: the segment has one more output, `weft.codegen.profile.PROFILE`.

    Raises:
        CodegenError: the program uses what the target lacks.
        ScheduleError: it needs more of a memory than there is.
    """
    target = s.target
    wrong = target.exceeds(s.program)
    if wrong is not None:
        raise ScheduleError(f"the schedule of '{s.program.name}' {wrong}", where=str(target.target))
    codegen = target.codegen()
    lowered = lower_program(s.program, codegen.functions, extra=target.loop_passes())
    require(codegen, lowered, str(target.target))
    with target.blame(f"to compile kernel '{lowered.name}'"):
        code = codegen.compile(target.taken(lowered))
    program = s.program
    spec = kernel_segment(program, code)
    bound = {symbol.name for symbol in spec.symbols}
    unbound = [d.name for d in program.dims if d.name not in bound]
    if unbound:
        raise TensorError(
            f"the size {', '.join(unbound)} is no dimension of an input by itself",
            hint="give some placeholder exactly this dimension",
        )
    assert free_vars(spec.arena_bytes).keys() <= bound | {THREADS.name}
    if profile:
        spec = profiled(spec)
    with target.blame("to link its kernel"):
        return spec, target.kind.link(target.target, spec, {code.name: code})


def build(s: KernelSchedule) -> Kernel:
    """Code for a scheduled kernel.

    Raises:
        CodegenError: the program uses what the target lacks.
    """
    expect(s, KernelSchedule, "what is built", "a schedule", ScheduleError, "give what weft.schedule returned")
    return Kernel(executable_of(s))


def executable_of(s: KernelSchedule, profile: bool = False) -> Executable:
    """The executable of a scheduled kernel.

    Args:
        profile: it has one more output, `weft.codegen.profile.PROFILE`: when the kernel began and ended.

    Raises:
        CodegenError: the program uses what the target lacks.
    """
    target = s.target
    spec, sections = link_kernel(s, profile)

    def info(t: sg.Tensor) -> TensorInfo:
        return TensorInfo(t.name, t.dtype.name, tuple(int(d.value) if hasattr(d, "value") else str(d) for d in t.dims))

    return Executable.build(
        name=spec.name,
        target=target.description,
        inputs=[info(t) for t in spec.inputs],
        outputs=[info(t) for t in spec.outputs],
        code=sections,
        steps=[
            Native(
                "main",
                "run",
                spec.kernels(),
                tuple(t.name for t in spec.inputs),
                tuple(t.name for t in spec.outputs),
            )
        ],
        arena=str(spec.arena_bytes),
        threads=target.threads,
        weft=host().api_version,
    )
