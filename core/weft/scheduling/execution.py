"""What the code of intrinsics means: functions by which tensorized Programs are interpreted, and the checks that one
instruction has one meaning, and one queue.

A function gets what a call passes: addresses become arrays, and the meaning is evaluated of what these hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.errors import LoopError, ScheduleError
from weft.expr.nodes import Expr, Var, add, const, mul, substitute, transform
from weft.loop.meanings import Address
from weft.loop.nodes import Buffer, Load
from weft.loop.queues import Await, Begin, Queue, begin, clashes
from weft.scheduling.views import Call
from weft.tensor.evaluate import evaluate
from weft.tensor.language import Compute, Dim, Read, Reduce

if TYPE_CHECKING:
    from weft.scheduling.intrinsic import Form, Intrinsic


def meanings(intrinsics: Iterable[Intrinsic]) -> dict[str, Any]:
    """What `interpret` needs to run tensorized Programs: instruction name → function.

    Raises:
        ScheduleError: two intrinsics call one instruction and mean different things by it, or allow it different
            lengths.
    """
    found: dict[str, Any] = {}
    texts: dict[str, tuple[Intrinsic, str]] = {}
    for i in intrinsics:
        for form in ("compute", "reset", "update"):
            code = i.code(form)
            if isinstance(code, Call):
                text = repr([_text(x, form) for x in i.examples()]) if i.lengths else _text(i, form)
                other, said = texts.setdefault(code.name, (i, text))
                if said != text or _limits(other) != _limits(i):
                    why = None
                    if said == text:
                        limits = [f"'{x.name}' {' and '.join(map(str, x.limits)) or 'any'}" for x in (other, i)]
                        why = f"they allow different lengths: {', '.join(limits)}"
                    what = (
                        f"the intrinsics '{other.name}' and '{i.name}' mean different things by the instruction"
                        f" '{code.name}'"
                    )
                    raise ScheduleError(what, why=why)
                found.setdefault(code.name, i.means(form))
        if i.queue is not None and isinstance(i.compute, Call):
            found.setdefault(begin(i.compute.name), Begin(i.queue, i.begins()))
            found.setdefault(i.queue.wait, Await(i.queue))
        found.update(i.instructions)
    return found


def queued(intrinsics: Iterable[Intrinsic]) -> dict[str, Queue]:
    """Instruction → the queue in which it is begun, of those that are.

    Raises:
        ScheduleError: two declarations of one queue differ.
    """
    found = {i.compute.name: i.queue for i in intrinsics if i.queue is not None and isinstance(i.compute, Call)}
    wrong = clashes(list(found.values()))
    if wrong is not None:
        raise ScheduleError(wrong, hint="declare the queue once, and name it in each intrinsic")
    return found


def _limits(intrinsic: Intrinsic) -> set[Expr]:
    """The limits, free of names."""
    names = {v: Var(f"length {k}", dt.int64) for k, v in enumerate(intrinsic.lengths)}
    return {substitute(x, names) for x in intrinsic.limits}


def _text(intrinsic: Intrinsic, form: Form) -> str:
    """A text that distinguishes the meanings of two forms, independent of names."""
    tensor, names = intrinsic.form(form), {v.name: Var(f"a{k}", dt.int64) for k, (v, _, _) in enumerate(intrinsic.axes)}
    assert isinstance(tensor.source, Compute)
    order = [intrinsic.held, *intrinsic.tensors] if form == "update" else list(intrinsic.tensors)
    body = tensor.source.bodies[0]
    parts = [body] if not isinstance(body, Reduce) else [*body.values, *body.init]
    reducer = body.reducer.name if isinstance(body, Reduce) else ""

    def say(n: Expr) -> Expr | None:
        if not isinstance(n, Read):
            return None
        flat: Expr = const(0)
        for i in n.indices:
            flat = add(mul(flat, 1 << 20), i)
        return Load(
            Buffer(f"t{next(k for k, t in enumerate(order) if t is n.tensor)}", (const(1),), n.dtype),
            (substitute(flat, names),),
        )

    kinds = intrinsic.operands[-1:] if form == "reset" else intrinsic.operands
    shapes = [
        (t.shape, str(t.dtype), o.strides or intrinsic.dense(k))
        for k, (o, t) in enumerate(zip(intrinsic.operands, intrinsic.tensors))
        if o in kinds
    ]
    axes = [(n, kind) for _, n, kind in intrinsic.axes]
    return repr(
        ([str(substitute(transform(p, say), names)) for p in parts], reducer, shapes, axes if form != "reset" else None)
    )


def prepare(intrinsic: Intrinsic, form: Form) -> Callable[..., tuple[Any, Callable[[], Any]]]:
    """Arguments of a `Call` → the place of the result, and a function that computes it of what operands hold when
    it is called."""
    outputs = [len(intrinsic.operands) - 1]
    used = outputs if form == "reset" else list(range(len(intrinsic.operands)))
    tensor = intrinsic.form(form)

    def prepared(*args: Any) -> tuple[Any, Callable[[], Any]]:
        views = _views(intrinsic, used, args[: len(args) - len(intrinsic.given)])

        def values() -> Any:
            arrays = {intrinsic.tensors[k]: np.array(v) for k, v in zip(used[:-1], views)}
            if form == "update":
                arrays[intrinsic.held] = np.array(views[-1])
            return evaluate(tensor, arrays)

        return views[-1], values

    return prepared


def _views(intrinsic: Intrinsic, used: Sequence[int], args: Sequence[Any]) -> list[Any]:
    views, rest = [], list(args)
    for k in used:
        operand, tensor = intrinsic.operands[k], intrinsic.tensors[k]
        at = rest.pop(0) if rest else None
        if operand.number and isinstance(at, (np.generic, np.ndarray, int, float)) and np.ndim(at) == 0:
            views.append(np.broadcast_to(np.asarray(at, tensor.dtype.numpy), [size(d) for d in tensor.shape]))
            continue
        if not isinstance(at, Address):
            raise LoopError(
                f"instruction of intrinsic '{intrinsic.name}': operand '{operand.name}' is no address",
                hint="give the element of a buffer",
            )
        strides = [int(rest.pop(0)) if s is None else s for s in operand.strides or intrinsic.dense(k)]
        shape = [size(d) for d in tensor.shape]
        reach = [s * (n - 1) for s, n in zip(strides, shape)]
        first, last = at.offset + sum(r for r in reach if r < 0), at.offset + sum(r for r in reach if r > 0)
        if first < 0 or last >= at.array.size or at.array.dtype != tensor.dtype.numpy:
            why = (
                f"it takes elements {first} … {last} of {at.array.size}"
                if at.array.dtype == tensor.dtype.numpy
                else f"it is {at.buffer.dtype}"
            )
            raise LoopError(
                f"instruction of intrinsic '{intrinsic.name}': operand '{operand.name}' does not lie in buffer"
                f" '{at.buffer.name}'",
                why=why,
            )
        views.append(
            np.lib.stride_tricks.as_strided(at.array[at.offset :], shape, [s * at.array.itemsize for s in strides])
        )
    return views


def size(d: Dim) -> int:
    assert isinstance(d, int), "instructions have constant shapes"
    return d
