"""Calls of functions, composites, custom calls and what has no effect on results."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import select
from weft.graph.identity import Require
from weft.tensor.language import as_dim
from weft_stablehlo.context import Context
from weft_stablehlo.converters.elementwise import total_order
from weft_stablehlo.registry import CUSTOM, op


@op("func.call")
def call(c: Context) -> list[Any]:
    return c.importer.call(c, c.attribute("callee"), c.operands)


@op("composite")
def composite(c: Context) -> list[Any]:
    """By what it is made of."""
    return c.importer.call(c, c.attribute("decomposition"), c.operands)


@op("optimization_barrier")
def barrier(c: Context) -> list[Any]:
    return list(c.operands)


@op("create_token", "after_all")
def token(c: Context) -> list[Any]:
    return []


@op("tuple")
def tuple_(c: Context) -> Any:
    raise c.unsupported("tuples")


@op("map")
def map_(c: Context) -> list[Any]:
    """The region's operations on all elements at once."""
    return c.put(0, c.operands)


@op(
    f"{CUSTOM}.Sharding",
    f"{CUSTOM}.SPMDFullToShardShape",
    f"{CUSTOM}.SPMDShardToFullShape",
    f"{CUSTOM}.LayoutConstraint",
)
def unchanged(c: Context) -> Any:
    """How a value is placed on devices, of which there is one."""
    return c.operands[0]


@op(f"{CUSTOM}.xla.sdy.FuncResultSharding", "sdy.sharding_constraint")
def placed(c: Context) -> Any:
    return c.operands[0]


@op(f"{CUSTOM}.annotate_device_placement")
def on_device(c: Context) -> Any:
    return c.operands[0]


@op(f"{CUSTOM}.shape_assertion")
def shape_assertion(c: Context) -> list[Any]:
    """What has to hold of the sizes: for all that is computed."""
    found = c.known(0)
    if found is None:
        raise c.unsupported("of what only data tells")
    (holds,) = found.dims()
    message = str(c.attribute("error_message", "a size is not as the model expects"))
    shown = []
    for k in range(1, c.count):
        size = c.known(k)
        if size is not None:
            shown.append(as_dim(size.dims()[0]))
    if isinstance(holds, bool):
        if not holds:
            raise c.error(message)
        return []
    value = as_dim(select(holds, 1, 0))
    c.importer.level.required.append(Require(value, 1, None, readable(message, shown), tuple(shown), "shape_assertion"))
    return []


def readable(message: str, shown: list[Any]) -> str:
    """JAX's message, without what it says beyond the first sentences."""
    text = message.split(" Please see ")[0]
    try:
        text.format(*shown)
    except (IndexError, KeyError, ValueError):
        return text.replace("{", "(").replace("}", ")")
    return text


@op(f"{CUSTOM}.mhlo.topk", "chlo.top_k")
def top_k(c: Context) -> list[Any]:
    """In the total order of floats, where NaN is greatest and equal elements keep their order."""
    x = c.value(0)
    size, largest = c.attribute("k"), True
    if size is None:
        options = c.attribute("mhlo.attributes")
        size, largest = options["k"], options.get("largest", True)
    key = c.cast(x, dt.uint8) if x.dtype.is_bool else x
    key = total_order(c, key) if key.dtype.is_float and key.dtype.bits >= 16 else key
    _, places = c.all(ops.TopK(size, -1, largest), key)
    values = c(ops.GatherElements(len(x.shape) - 1), x, places)
    return [values, c.cast(places, c.results[1].dtype)]


_UNARY = {
    "mhlo.erf": ops.Erf(), "mhlo.tan": ops.Tan(), "mhlo.asin": ops.Asin(), "mhlo.acos": ops.Acos(),
    "mhlo.atan": ops.Atan(), "mhlo.sinh": ops.Sinh(), "mhlo.cosh": ops.Cosh(), "mhlo.asinh": ops.Asinh(),
    "mhlo.acosh": ops.Acosh(), "mhlo.atanh": ops.Atanh(),
}  # fmt: skip


def _unary(name: str, operator: Any) -> None:
    op(f"{CUSTOM}.{name}")(lambda c: c(operator, c.value(0)))


for _name, _operator in _UNARY.items():
    _unary(_name, _operator)
