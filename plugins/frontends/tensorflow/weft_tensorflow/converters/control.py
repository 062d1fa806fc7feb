"""Calls, branches and loops: functions of the model as bodies of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import Expr, free_vars
from weft.graph.nodes import TensorType, Type, Value
from weft.graph.rewrite import bound_symbols
from weft.tensor.language import Dim
from weft_frontend.bodies import Body, Level, build_body, shaped
from weft_frontend.contents import Content
from weft_frontend.control import chosen, fitting
from weft_ops.composing import Composer
from weft_tensorflow.complexes import Complex
from weft_tensorflow.context import Context
from weft_tensorflow.lists import TensorList
from weft_tensorflow.registry import tf_op


@tf_op("PartitionedCall", "StatefulPartitionedCall")
def call(c: Context) -> list[Any]:
    return c.importer.call(c, c.function("f").name, c.operands)


def truth(c: Context, k: int = 0) -> Any:
    """Operand k as a condition: True or False where it is known, else a value."""
    known = c.constant(k)
    if known is not None:
        return bool(known.reshape(-1)[0]) if known.size == 1 else bool(known.size)
    x = c.value(k)
    if x.dtype.is_bool:
        return c.reshape(x, ())
    if x.shape:
        raise c.unsupported(f"a condition of {x.dtype}{list(x.shape)}")
    return c(ops.NotEqual(), x, 0)


def captured(c: Context, name: str, operands: Sequence[Any]) -> Body:
    """A function over operands of the graph around it."""

    def make(level: Level, _: list[Any]) -> list[tuple[str, Value]]:
        found = c.importer.call(c, name, [inside(c, level, o) for o in operands])
        return [(f"result_{k}", v) for k, o in enumerate(found) for v in tensors(c, o)]

    return build_body(c.importer, name, (), make)


def inside(c: Context, level: Level, operand: Any) -> Any:
    """What stands in a body for an operand of the graph around."""
    if isinstance(operand, TensorList) and operand.stack is not None:
        return TensorList(operand.dtype, operand.count, level.capture(c.importer, operand.stack))
    if isinstance(operand, Complex):
        return Complex(level.capture(c.importer, operand.parts))
    return level.capture(c.importer, operand)


def tensors(c: Context, operand: Any) -> list[Value]:
    """The values of an operand: of a list its elements."""
    if isinstance(operand, TensorList):
        if operand.stack is None:
            raise c.unsupported("a list that nothing was put into, as a result of a branch")
        return [operand.stack]
    return [c.importer.as_value(operand)]


@tf_op("If", "StatelessIf")
def if_(c: Context) -> list[Any]:
    names = [c.function(n).name for n in ("then_branch", "else_branch")]
    test = truth(c)
    if isinstance(test, bool):
        return c.importer.call(c, names[0 if test else 1], c.operands[1:])
    then, orelse = (captured(c, name, c.operands[1:]) for name in names)
    return list(chosen(c, test, then, orelse))


@tf_op("Case", "StatelessCase")
def case(c: Context) -> list[Any]:
    """A number chooses; one that is none of them chooses the last."""
    branches = c.attribute("branches", "list")
    names = [f.name for f in branches.func] if branches is not None else []
    if not names:
        raise c.error("attribute 'branches' is missing")
    known = c.constant(0)
    if known is not None:
        k = int(known.reshape(-1)[0])
        return c.importer.call(c, names[k if 0 <= k < len(names) else -1], c.operands[1:])
    return several(c, c.reshape(c.value(0), ()), names, c.operands[1:])


def several(c: Context, number: Value, names: Sequence[str], operands: Sequence[Any]) -> list[Any]:
    """The results of the function that a number chooses, by a branch inside of each branch."""
    if len(names) == 1:
        return c.importer.call(c, names[0], operands)
    then = captured(c, names[0], operands)

    def make(level: Level, _: list[Any]) -> list[tuple[str, Value]]:
        less = Composer(level.builder).sub(level.capture(c.importer, number), 1)
        found = several(c, less, names[1:], [inside(c, level, o) for o in operands])
        return [(f"result_{k}", v) for k, o in enumerate(found) for v in tensors(c, o)]

    orelse = build_body(c.importer, "others", (), make)
    test = Composer(c.importer.builder)(ops.Equal(), number, 0)
    op = ops.If(then.graph, orelse.graph)
    found = c.importer.builder.add_all(op, test, *then.captured, *orelse.captured)
    return [shaped(c.importer.builder, v) for v in found]


# -- loops ------------------------------------------------------------------------------------------------------------


@tf_op("While", "StatelessWhile")
def while_(c: Context) -> list[Any]:
    test, body = c.function("cond").name, c.function("body").name
    return repeated(
        c, body, lambda given: c.importer.call(c, test, given), lambda given: c.importer.call(c, body, given)
    )


Part: TypeAlias = "Callable[[list[Any]], list[Any]]"
"""The condition or body of a loop, over operands of the graph that is being built."""


def repeated(c: Context, name: str, test: Part, body: Part) -> list[Any]:
    """The results of a loop that begins with the operands of `c`; themselves, where it is known that it has no
    iterations."""
    (going,) = test(list(c.operands))
    known = c.importer.known(going)
    if known is not None and known.is_constant and not bool(known.dims()[0]):
        return list(c.operands)
    return _Loop(c, name, test, body).run(going)


class _Loop:
    """A loop while it is read. Values and lists are carried; what the body gives back as it got it, such as a variable,
    is no value of the loop."""

    def __init__(self, c: Context, name: str, test: Part, body: Part) -> None:
        self.c, self.importer, self.name = c, c.importer, name
        self.condition, self.step = test, body
        self.first = list(c.operands)
        self.elements: dict[int, tuple[Dim, ...]] = {}
        """By list the sizes of what the body puts in."""

    def run(self, going: Any) -> list[Any]:
        """The results; `going`: the condition on the first operands."""
        c, importer = self.c, self.importer
        self.fixed = self.unchanged()
        self.first = self.filled()
        carried = [k for k in range(len(self.first)) if k not in self.fixed]
        self.carried = carried
        initial = [self.packed(self.first[k]) for k in carried]
        body = fitting(c, initial, 1, self.body)
        op = ops.Loop(body.graph, len(initial), True, None, (), (), (), ())
        start = c.reshape(importer.as_value(going), ())
        found = [shaped(c.builder, v) for v in c.builder.add_all(op, None, start, *initial, *body.captured)]
        results = list(self.first)
        for k, value in zip(carried, found):
            results[k] = self.unpacked(self.first[k], value)
        return results

    def packed(self, operand: Any) -> Value:
        if isinstance(operand, TensorList):
            assert operand.stack is not None
            return operand.stack
        return self.importer.as_value(operand)

    def unpacked(self, like: Any, value: Value) -> Any:
        if not isinstance(like, TensorList):
            return value
        return TensorList(like.dtype, value.shape[0], value)

    def body(self, types: Sequence[Type]) -> Body:
        importer = self.importer

        def make(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
            given = self.around(level)
            for k, value in zip(self.carried, operands[1:]):
                given[k] = self.unpacked(self.first[k], shaped(level.builder, value))
            found = self.step(given)
            for k in self.fixed:
                found[k] = given[k]
            (more,) = self.condition(found)
            values = [("more", scalar(importer, more))]
            return values + [(f"value_{k}", self.packed(found[k])) for k in self.carried]

        named = [("trip", TensorType(dt.int64, ())), *((f"value_{k}", t) for k, t in zip(self.carried, types))]
        return build_body(importer, self.name, named, make)

    def around(self, level: Level) -> list[Any]:
        """What stands in the body for the operands."""
        return [inside(self.c, level, o) if k in self.fixed else None for k, o in enumerate(self.first)]

    # -- before the loop is made: what it does to its operands
    def tried(self) -> list[Any]:
        """The results of a body on the first operands, for what they are; the nodes go."""
        c, importer = self.c, self.importer
        results: list[Any] = []
        given: list[Any] = []

        def make(level: Level, _: list[Any]) -> list[tuple[str, Value]]:
            for o in self.first:
                if (isinstance(o, Value) and o.constant is not None) or isinstance(o, Content):
                    # As an input: what is constant at first need not stay so.
                    value = importer.as_value(o)
                    given.append(level.builder.input("first", value.tensor))
                else:
                    given.append(inside(c, level, o))
            results.extend(self.step(list(given)))
            for k, result in enumerate(results):
                if isinstance(result, TensorList) and result.stack is not None:
                    self.elements[k] = importer.written_out(result.stack.shape[1:])
            return []

        build_body(importer, self.name, (), make)
        self.tried_given = given
        return results

    def unchanged(self) -> set[int]:
        results = self.tried()
        self.tried_results = results
        return {k for k, (a, b) in enumerate(zip(self.tried_given, results)) if a is b or _same(a, b)}

    def filled(self) -> list[Any]:
        """The first operands, of which lists of unknown elements are filled with zeros of what the body puts in."""
        found = list(self.first)
        for k, operand in enumerate(found):
            if k in self.fixed or not isinstance(operand, TensorList) or operand.stack is not None:
                continue
            after = self.tried_results[k]
            if not isinstance(after, TensorList) or after.stack is None or after.count != operand.count:
                raise self.c.unsupported("a list that grows in a loop, of elements of unknown shape")
            shape = self.elements[k]
            if not all(bound_here(self.importer.level, n) for d in shape if isinstance(d, Expr) for n in free_vars(d)):
                raise self.c.unsupported(
                    "a list whose elements have sizes that only the loop knows: fix the inputs' sizes"
                )
            zero = self.c.number(0, operand.dtype)
            found[k] = TensorList(operand.dtype, operand.count, self.c.broadcast(zero, (operand.count, *shape)))
        return found


def bound_here(level: Level | None, symbol: str) -> bool:
    """Whether a symbol is one of the graph that is being built, or of one around it."""
    while level is not None:
        if symbol in bound_symbols(level.builder.graph):
            return True
        level = level.outer
    return False


def _same(a: Any, b: Any) -> bool:
    """Whether two stand for one thing that is no value."""
    if isinstance(a, TensorList) and isinstance(b, TensorList):
        return a.stack is b.stack and a.stack is not None
    return not isinstance(a, (Value, Content, TensorList)) and a == b


def scalar(importer: Any, condition: Any) -> Value:
    """A condition as a scalar of the graph that is being built."""
    value: Value = importer.as_value(condition)
    return value if value.shape == () else importer.builder.add(ops.Reshape(()), value)
