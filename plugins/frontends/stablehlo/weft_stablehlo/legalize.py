"""Operations that StableHLO's own passes take apart: those of CHLO, and functions of complex numbers."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import func, stablehlo

from weft_stablehlo.context import Context

CHLO = "chlo-legalize-to-stablehlo"
COMPLEX = "stablehlo-complex-math-expander"
DEPRECATED = "stablehlo-legalize-deprecated-ops"
QUANTIZED = "stablehlo-legalize-quant-to-math"


def taken_apart(c: Context, passes: str = CHLO) -> list[Any]:
    """The results of an operation by what a pass of StableHLO makes of it."""
    module = _alone(c.op)
    _run(module, passes)
    (function,) = module.body.operations
    block = function.regions[0].blocks[0]
    types = [v.type for v in c.op.operands]
    if any(op.operation.name == c.op.name and [v.type for v in op.operands] == types for op in block.operations):
        raise c.unsupported(f"these operands, which {passes} does not take apart")
    return c.importer.put(block, c.operands, None, f"{c.name}/")


def _alone(op: Any) -> Any:
    """A module of one function that does what the operation does."""
    with op.context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            types = [v.type for v in op.operands], [r.type for r in op.results]
            function = func.FuncOp("alone", types)
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            copy = op.clone()
            for k, argument in enumerate(block.arguments):
                copy.operands[k] = argument
            func.ReturnOp(list(copy.results))
    return module


def _run(module: Any, passes: str) -> None:
    stablehlo.register_stablehlo_passes()
    with module.context:
        manager = passmanager.PassManager.parse(f"builtin.module(func.func({passes}))")
        manager.run(module.operation)


__all__ = ["CHLO", "COMPLEX", "DEPRECATED", "QUANTIZED", "taken_apart"]
