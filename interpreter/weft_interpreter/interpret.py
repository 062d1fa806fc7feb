"""The meaning of loop programs: any Program, at any stage, run one statement at a time on numpy, every access checked.

A Program is first translated to Python source, for speed: integers and booleans become Python numbers, wrapped to
their dtype where they may leave its range; floats are numpy scalars; vectors are numpy arrays of lanes. A node without
a direct Python form is evaluated by `weft.expr.evaluate`, one node at a time, so formulas have one meaning.
`interpretation.source` keeps the lines, `formulas` and `statements` write them, `calls` is what they call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import ExprError, LoopError
from weft.expr import nodes as e
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Var
from weft.loop.grids import AWAIT_COPIES, COPY_ASYNC, COPY_BOX
from weft.loop.meanings import Address
from weft.loop.nodes import Buffer, Program
from weft.loop.passes.start_empty_reductions import start_empty_reductions
from weft.loop.printer import excerpt
from weft_interpreter import calls
from weft_interpreter.calls import Copies, Fault, allocate
from weft_interpreter.source import Storage, number
from weft_interpreter.statements import Statements, has_meeting

_CALLED = (
    "outside", "off_iterator", "vector_load", "vector_store", "vector_atomic", "fmin", "fmax", "truncdiv", "truncmod",
    "shift_left", "shift_right", "lockstep", "drain",
)  # fmt: skip
"""Functions of `calls` that source calls, with an underscore in front."""


def interpret(
    program: Program,
    arrays: Mapping[str, Any] | Sequence[Any],
    dims: Mapping[str, int] | None = None,
    *,
    intrinsics: Mapping[str, Callable[..., Any]] | None = None,
    shuffle_seed: int | None = None,
    in_place: bool = False,
) -> dict[str, np.ndarray[Any, Any]]:
    """Runs `program` and returns its outputs by name.

    Args:
        arrays: the inputs by name, or in order.
        dims: values of the program's dims; those that are a whole dimension of an input need not be given.
        intrinsics: functions for IntrinsicCalls by name, called with the arguments' values; a function whose attribute
            `addresses` is true gets an `Address` for each argument that is a Load of one element.
        shuffle_seed: run the iterations of parallel, block and thread loops in a random order, which exposes races.
        in_place: let the pairs of `program.aliases` share memory.

    Elements never stored read as NaN, or as a far-off number (integers). Threads of threadIdx loops meet at
    `barrier()`.

    Raises:
        LoopError: an access outside its buffer (with the statement marked), a division by zero, inputs that do not fit,
            an unknown intrinsic, or a barrier that only some threads reach.
    """
    return _Run(program, arrays, dims or {}, intrinsics or {}, shuffle_seed, in_place).outputs()


class _Run(Statements):
    def __init__(
        self,
        program: Program,
        arrays: Mapping[str, Any] | Sequence[Any],
        dims: Mapping[str, int],
        intrinsics: Mapping[str, Callable[..., Any]],
        shuffle_seed: int | None,
        in_place: bool,
    ) -> None:
        # A block's init is what its result starts from, also where there is no step.
        super().__init__(start_empty_reductions(program), intrinsics, shuffle_seed is not None)
        rng = np.random.default_rng(shuffle_seed)
        self.globals |= {"evaluate": evaluate, "Address": Address, "_alloc": allocate}
        self.globals |= {f"_{name}": getattr(calls, name) for name in _CALLED}
        self.globals["_order"] = lambda n: rng.permutation(n).tolist() if n > 0 else ()
        copies = Copies()
        self.globals |= {f"_{COPY_ASYNC}": copies.copy, f"_{COPY_BOX}": copies.box, f"_{AWAIT_COPIES}": copies.arrive}
        self.globals |= {"_begin": copies.begin, "_await": copies.awaited}
        self.bind(arrays, dims, in_place)

    # -- inputs and outputs
    def bind(self, arrays: Mapping[str, Any] | Sequence[Any], dims: Mapping[str, int], in_place: bool) -> None:
        p = self.program
        where = f"program {p.name}"
        if isinstance(arrays, Mapping):
            unknown = sorted(set(arrays) - {b.name for b in p.inputs})
            if unknown:
                raise LoopError(
                    f"interpret: no input is named '{unknown[0]}'",
                    where=where,
                    hint="the inputs are " + ", ".join(b.name for b in p.inputs),
                )
            missing = [b.name for b in p.inputs if b.name not in arrays]
            if missing:
                raise LoopError(f"interpret: no array for input '{missing[0]}'", where=where)
            given = [np.asarray(arrays[b.name]) for b in p.inputs]
        else:
            if len(arrays) != len(p.inputs):
                raise LoopError(f"interpret: got {len(arrays)} array(s) for {len(p.inputs)} input(s)", where=where)
            given = [np.asarray(a) for a in arrays]
        values: dict[str, int] = {k: int(v) for k, v in dims.items()}
        for b, a in zip(p.inputs, given):
            rank = len(b.shape) + (b.dtype.lanes > 1)
            if a.dtype != b.dtype.numpy or a.ndim != rank:
                raise LoopError(
                    f"interpret: input '{b.name}' is {b.dtype} of rank {rank}, got {a.dtype} of rank {a.ndim}",
                    where=where,
                )
            for d, n in zip(b.shape, a.shape):
                if isinstance(d, Var):
                    values.setdefault(d.name, n)
        for d in p.dims:
            if d.name not in values:
                raise LoopError(f"interpret: no value for dim '{d.name}'", where=where, hint="pass dims={...}")
            self.variables[d.name] = (d, number(values[d.name]))
        self.inputs: list[Any] = []
        for b, a in zip(p.inputs, given):
            shape = self.parameter_shape(b)
            if tuple(a.shape) != shape:
                raise LoopError(
                    f"interpret: input '{b.name}' has shape {list(shape)}, got {list(a.shape)}", where=where
                )
            view = a.copy() if in_place else a.view()
            view.flags.writeable = in_place
            self.inputs.append(view)
            self.storage[b.name] = Storage(
                b, self.name("_b", b.name), [number(n) for n in shape[: len(b.shape)]], False
            )
        shared = {out: self.inputs[into] for out, into in p.aliases} if in_place else {}
        self.results: list[Any] = []
        for q, b in enumerate(p.outputs):
            shape = self.parameter_shape(b)
            if q in shared and (shared[q].shape != shape or shared[q].dtype != b.dtype.numpy):
                raise LoopError(
                    f"interpret: output '{b.name}' cannot share the memory of its alias: {list(shape)} and"
                    f" {list(shared[q].shape)}",
                    where=where,
                )
            self.results.append(shared[q] if q in shared else allocate(shape, b.dtype))
            self.storage[b.name] = Storage(b, self.name("_b", b.name), [number(n) for n in shape[: len(b.shape)]], True)

    def parameter_shape(self, b: Buffer) -> tuple[int, ...]:
        env = {name: np.dtype(v.dtype.numpy).type(code.lo) for name, (v, code) in self.variables.items()}
        for d in b.shape:
            for name in e.free_vars(d):
                if name not in env:
                    raise LoopError(
                        f"interpret: the shape of '{b.name}' uses '{name}', which is no dim",
                        where=f"program {self.program.name}",
                    )
        shape = tuple(int(evaluate(d, env)) for d in b.shape)
        return (*shape, b.dtype.lanes) if b.dtype.lanes > 1 else shape

    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        p = self.program
        self.statement(p.body)
        parameters = ", ".join(self.storage[b.name].array for b in p.params)
        tail = " return\n yield" if has_meeting(p.body) else " return"  # a yield anywhere makes it a generator
        source = "\n".join([*self.functions, f"def kernel({parameters}):", *self.lines, tail])
        self.sources = [*self.function_sources, None, *self.sources]
        exec(compile(source, "<interpret>", "exec"), self.globals)
        with np.errstate(all="ignore"):
            try:
                steps = self.globals["kernel"](*self.inputs, *self.results)
                if steps is not None:
                    calls.drain(steps)
            except (Fault, ZeroDivisionError, ExprError) as fault:
                raise self.error(fault) from None
        return {b.name: a for b, a in zip(p.outputs, self.results)}

    def error(self, fault: Exception) -> LoopError:
        """The fault with the statement that was running and the values of the variables around it."""
        stmt, values = None, {}
        tb = fault.__traceback__
        while tb is not None:
            if tb.tb_frame.f_code.co_filename == "<interpret>":
                if tb.tb_lineno <= len(self.sources):
                    stmt = self.sources[tb.tb_lineno - 1] or stmt
                for k, v in tb.tb_frame.f_locals.items():
                    if k in self.python_names and not isinstance(v, np.ndarray):
                        values[self.python_names[k]] = v
            tb = tb.tb_next
        what = (
            str(fault)
            if isinstance(fault, Fault)
            else fault.what
            if isinstance(fault, ExprError)
            else "integer division by zero"
        )
        why = "here " + ", ".join(f"{k} = {v}" for k, v in values.items()) if values else None
        return LoopError(what, where=excerpt(self.program, at=stmt), why=why, hint=getattr(fault, "hint", None))
