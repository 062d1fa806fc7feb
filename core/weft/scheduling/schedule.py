"""Schedule: primitives applied to one Program by name, with a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

from weft.choices import Choice, Suggestions, decide
from weft.errors import ChoiceError, ScheduleError, nearest
from weft.loop.nodes import Block, For, LoopKind, Program
from weft.machine import GLOBAL_ALIGN, Machine
from weft.scheduling import dependence
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.primitives import PRIMITIVES, RENAMED, apply_primitive, current_name
from weft.scheduling.primitives.tensorize import any_alignment
from weft.scheduling.scopes import unknown_scope
from weft.scheduling.trace import CHOOSE, Step, Trace
from weft.scheduling.tree import Tree, blocks_in

T = TypeVar("T")
_SCOPED: dict[str, tuple[str, ...]] = {
    name: names
    for name, f in PRIMITIVES.items()
    if {"scope", "through"} & {*(names := tuple(signature(f).parameters)[1:])}
}
"""Primitives that name a memory, with the names of their arguments."""


@dataclass(frozen=True)
class Checkpoint:
    """A state of a Schedule: its Program and the steps so far. `Schedule.checkpoint` returns one, `Schedule.rollback`
    restores it."""

    schedule: Schedule
    program: Program
    steps: tuple[Step, ...]


@dataclass
class Attempt:
    """The outcome of the steps under `Schedule.attempt`: `error` is the refusal that ended them, or None. True if there
    is none."""

    error: ScheduleError | None = None

    def __bool__(self) -> bool:
        return self.error is None

    @property
    def reason(self) -> str:
        """Why the steps were refused, in one sentence; empty if they were not."""
        return "" if self.error is None else self.error.why or self.error.what


class Schedule:
    """A Program being scheduled.

    Args:
        machine: the target's description, for rules.
        overrides: choice name → value, from a record; or a tuner's Suggestions.
        checked: verify the Program after every step (slow; tests do).
        intrinsics: name → tensor intrinsic, for `tensorize`.

    Every primitive of `weft.scheduling.primitives` is a method: its arguments without the program, its result returned.
    """

    def __init__(
        self,
        program: Program,
        machine: Any = None,
        overrides: Mapping[str, Any] | None = None,
        checked: bool = False,
        intrinsics: Mapping[str, Intrinsic] | None = None,
    ) -> None:
        self.program, self.machine, self.checked = program, machine, checked
        self.overrides = overrides if isinstance(overrides, Suggestions) else dict(overrides or {})
        self.intrinsics = dict(intrinsics or {})
        self.trace = Trace()
        self._start = program
        self._part = ""
        self._seen: Tree | None = None
        if checked:
            self._verify("the start")

    # -- looking
    def _tree(self) -> Tree:
        """The program with the paths of its names, made once per step."""
        if self._seen is None or self._seen.program is not self.program:
            self._seen = Tree(self.program)
        return self._seen

    def blocks(self) -> list[str]:
        """Names of the blocks in program order."""
        return [b.name for b in blocks_in(self.program.body)]

    def loops(self, block: str) -> list[str]:
        """Names of the loops around a block, outermost first."""
        return [s.var.name for s in self._tree().block_path(block, "loops") if isinstance(s, For)]

    def block(self, name: str) -> Block:
        return self._tree().block(name, "block")

    def loop(self, name: str) -> For:
        return self._tree().loop(name, "loop")

    def producers(self, block: str) -> list[str]:
        """Blocks that write what a block reads, in program order."""
        return dependence.producers(self._tree(), block)

    def consumers(self, block: str) -> list[str]:
        """Blocks that read what a block writes, in program order."""
        return dependence.consumers(self._tree(), block)

    def buffers(self, block: str) -> list[str]:
        """Buffers that a block writes."""
        return dependence.writes(self.block(block))

    # -- acting
    def apply(self, primitive: str, *args: Any, **kwargs: Any) -> Any:
        """A primitive by name.

        Raises:
            ScheduleError: it is unknown, or may not act; the Program is as it was.
        """
        primitive = current_name(primitive)
        if primitive not in PRIMITIVES:
            close = nearest(primitive, PRIMITIVES)
            hint = f"did you mean '{close}'?" if close else "one of " + ", ".join(PRIMITIVES)
            raise ScheduleError(f"there is no schedule primitive '{primitive}'", hint=hint)
        if primitive in _SCOPED:
            self._check_scope(primitive, args, kwargs)
        self.program, result = apply_primitive(self.program, primitive, args, kwargs, self.intrinsics, self._alignment)
        self.trace.add(primitive, args, kwargs, result)
        if self.checked:
            self._verify(str(self.trace.steps[-1]))
        return result

    def choose(
        self, name: str, candidates: Sequence[T], default: T, refuse: Callable[[T], str | None] | None = None
    ) -> T:
        """A named choice of a rule: the default, or what an override of that name gives.

        Args:
            name: unique within the kernel.
            candidates: the options: integers, texts, booleans.
            default: what the rule's cost model prefers.
            refuse: the predicate: why a candidate cannot be chosen here; None if it can.

        Raises:
            ChoiceError: the value is no candidate, or the predicate refuses it. It ends an `attempt`, too.
            PluginError: the kernel has a choice of this name already.
        """
        made = decide(
            self._part + name,
            candidates,
            default,
            self.overrides,
            self.trace.choices,
            refuse,
            f"program '{self.program.name}'",
        )
        self.trace.add(CHOOSE, (made.name, list(candidates)), {"default": default}, made.value)
        value: T = made.value
        return value

    @contextmanager
    def choices_of(self, part: str) -> Iterator[None]:
        """Choices made meanwhile have names that begin with `part` and a dot, so that parts of a kernel that are
        scheduled alike have choices of their own."""
        before = self._part
        self._part = f"{before}{part}."
        try:
            yield
        finally:
            self._part = before

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choices made so far, in order."""
        steps = (s for s in self.trace.steps if s.do == CHOOSE)
        return tuple(
            Choice(s.args[0], s.args[1], s.kwargs.get("default", s.result), s.result, s.args[0] in self.overrides)
            for s in steps
        )

    # -- trying
    def resume(self, candidate: Schedule) -> bool:
        """Takes over the steps of another schedule of the same Program and machine, such as an offer's candidate.

        Returns:
            Whether it did. It does not, and is as it was, where it has steps of its own, or where those steps might
                have
            been others: with overrides, which the candidate knew nothing of, and where every step is to be verified.
        """
        fresh = self.program is self._start and not self.trace.steps
        same = candidate._start is self._start and candidate.machine == self.machine
        if not (fresh and same) or self.overrides or self.checked:
            return False
        self.program, self.trace = candidate.program, Trace(list(candidate.trace.steps))
        return True

    def checkpoint(self) -> Checkpoint:
        """Where the schedule stands, for `rollback`."""
        return Checkpoint(self, self.program, tuple(self.trace.steps))

    def rollback(self, to: Checkpoint) -> None:
        """The Program and the trace are again what they were at a checkpoint, choices included. A checkpoint may be
        used any number of times, also to come back to what a rollback has left.

        Raises:
            ScheduleError: the checkpoint is another schedule's.
        """
        if to.schedule is not self:
            why = f"it is of a schedule of program '{to.program.name}'"
            raise ScheduleError(
                "a schedule cannot go back to a checkpoint of another",
                why=why,
                hint="take the checkpoint from this schedule",
            )
        self.program = to.program
        self.trace.steps[:] = to.steps

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Steps of which either all or none are applied.

            with s.attempt() as tried:
                s.split("i", [None, 8])
                s.tensorize("i_1", "gemm8x8")
            if not tried:
                …                       # s is as it was before; tried.error is the ScheduleError, tried.reason says why
                                        in a sentence

        A ScheduleError ends the attempt and is stored in it. Any other exception propagates, and so does a ChoiceError,
        which must reach the caller who gave the record. In each case the schedule is restored. Attempts may be nested.
        """
        before, tried = self.checkpoint(), Attempt()
        try:
            yield tried
        except ChoiceError:
            self.rollback(before)
            raise
        except ScheduleError as error:
            self.rollback(before)
            tried.error = error
        except BaseException:
            self.rollback(before)
            raise

    def _check_scope(self, primitive: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A memory that the machine has not is refused where it is named first."""
        given = dict(zip(_SCOPED[primitive], args)) | dict(kwargs)
        scope = next((given[name] for name in ("scope", "through") if isinstance(given.get(name), str)), None)
        wrong = unknown_scope(scope, self.machine) if scope is not None and isinstance(self.machine, Machine) else None
        if wrong is not None:
            raise ScheduleError(f"{primitive} may not act on program '{self.program.name}'", why=f"it {wrong}")

    def _alignment(self, scope: str) -> int:
        """Bytes that buffers of a memory can be aligned to."""
        if isinstance(self.machine, Machine):
            return self.machine.alignment(scope)
        return GLOBAL_ALIGN if scope == "global" else any_alignment(scope)

    def _verify(self, step: str) -> None:
        from weft.errors import LoopError
        from weft.loop.verify import verify

        try:
            verify(self.program)
        except LoopError as error:
            why = "this is a mistake in the primitive, not in the schedule"
            raise ScheduleError(f"the program is ill-formed after {step}", where=str(error), why=why) from error

    def __str__(self) -> str:
        return str(self.program)

    __repr__ = __str__

    if TYPE_CHECKING:

        def split(self, loop: str, factors: Sequence[int | None], names: Sequence[str] | None = None) -> list[str]: ...
        def partition(self, loop: str, points: Sequence[int]) -> list[str]: ...
        def pad_loop(self, block: str, loop: str, multiple: int, value: float | None = None) -> None: ...
        def fuse(self, *loops: str, name: str | None = None) -> str: ...
        def reorder(self, *loops: str) -> None: ...
        def unroll(self, loop: str) -> None: ...
        def vectorize(self, loop: str) -> None: ...
        def parallel(self, loop: str) -> None: ...
        def bind(self, loop: str, axis: LoopKind) -> None: ...
        def lift(self, loop: str, inner: Sequence[str]) -> str: ...
        def serial(self, loop: str) -> None: ...
        def annotate(self, name: str, key: str, value: int | str) -> None: ...
        def compute_at(self, block: str, loop: str) -> None: ...
        def reverse_compute_at(self, block: str, loop: str) -> None: ...
        def compute_inline(self, block: str) -> None: ...
        def reverse_compute_inline(self, block: str) -> None: ...
        def cache_read(self, block: str, buffer: str, scope: str, order: Sequence[int] | None = None) -> str: ...
        def cache_write(self, block: str, scope: str) -> str: ...
        def set_scope(self, block: str, scope: str) -> None: ...
        def compact_buffer(self, buffer: str, align: int = 1) -> None: ...
        def decompose_reduction(self, block: str, loop: str) -> str: ...
        def rfactor(self, block: str, loop: str, last: bool = False) -> str: ...
        def butterfly(self, block: str, loop: str) -> list[str]: ...
        def double_buffer(self, block: str, loop: str, through: str | None = None) -> str: ...
        def serpentine(self, loop: str, over: str, parts: int = 1) -> None: ...
        def prefetch(self, block: str, buffer: str, ahead: str, at: str, line: int = 64, locality: int = 2) -> None: ...
        def specialize(self, block: str) -> None: ...
        def stage(self, block: str, loop: str, formula: str, scope: str) -> str: ...
        def stage_result(self, block: str, loop: str, scope: str) -> str: ...
        def pad_tile(self, block: str) -> None: ...
        def make_online(self, block: str, loops: Sequence[str]) -> list[str]: ...
        def tensorize(self, name: str, intrinsic: str) -> None: ...

    else:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            if name in PRIMITIVES or name in RENAMED:
                return partial(self.apply, name)
            raise AttributeError(f"a schedule has no '{name}'")
