"""XLA as a peer, for `weft bench` and `weft verify` on files of StableHLO."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import FrontendError
from weft.hooks import EngineKind

Run = Callable[[Mapping[str, Any]], list[Any]]


def version() -> str | None:
    """The version of jaxlib, which has XLA; None where it or JAX is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("jax") and installed("jaxlib")
    except PackageNotFoundError:
        return None


def open_xla(path: str, threads: int) -> Run:
    """XLA on the CPU; it is compiled anew for sizes that it has not met."""
    os.environ["NPROC"] = str(threads)  # which XLA's client asks when it is made
    from weft_stablehlo.reading import read_model

    model = read_model(Path(path))
    compiled: dict[Any, Run] = {}

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        key = tuple((name, x.shape) for name, x in inputs.items())
        if key not in compiled:
            compiled[key] = _compiled(model.module, inputs)
        return compiled[key](inputs)

    return run


def xla_values(path: str) -> Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]]:
    """Values between the operations of the function, of which it becomes further results."""
    from weft_stablehlo.importer import ModuleImporter
    from weft_stablehlo.reading import Model, parsed

    data = Path(path).read_bytes()

    def ask(names: Sequence[str], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        module = parsed(data)
        importer = ModuleImporter(Model(module), {})
        function = importer.entry(None)
        importer.run(function)
        wanted = [n for n in names if n in importer.names]
        if not wanted:
            return {}
        _return_also(module, function, [importer.names[n].results[0] for n in wanted])
        return dict(zip(wanted, _compiled(module, inputs)(inputs)[-len(wanted) :], strict=True))

    return ask


def _return_also(module: Any, function: Any, values: Sequence[Any]) -> None:
    """Makes values of a function further results of it."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    block = function.regions[0].blocks[0]
    last = list(block.operations)[-1].operation
    results = [*last.operands, *values]
    with module.context, ir.Location.unknown():
        with ir.InsertionPoint(last):
            func.ReturnOp(results)
        last.erase()
        types = [a.type for a in block.arguments], [v.type for v in results]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
        if "res_attrs" in function.attributes:
            del function.attributes["res_attrs"]


def _compiled(module: Any, inputs: Mapping[str, Any]) -> Run:
    """The function `main`, compiled by XLA for the sizes of these inputs."""
    import jax
    from jax.extend import backend
    from jaxlib import xla_client

    from weft_stablehlo.importer import argument_names

    client = backend.get_backend("cpu")
    device = client.devices()[0]
    function = next((f for f in module.body.operations if f.attributes["sym_name"].value == "main"), None)
    if function is None:
        raise FrontendError("the module has no function main", hint="XLA runs no other")
    block = function.regions[0].blocks[0]
    names = argument_names(block)
    kinds = ["complex" in str(a.type) for a in block.arguments]
    given = [_as_complex(inputs[n]) if k else inputs[n] for n, k in zip(names, kinds)]
    program = _sized(module, function, [x.shape for x in given])
    options = xla_client.CompileOptions()
    executable = client.compile_and_load(program, client.devices()[:1], options)

    def run(feeds: Mapping[str, Any]) -> list[Any]:
        arrays = [_as_complex(feeds[n]) if k else feeds[n] for n, k in zip(names, kinds)]
        with jax.enable_x64(True):
            buffers = [jax.device_put(x, device) for x in arrays]
        found = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [_as_parts(one[0]) for one in found]

    return run


def _sized(module: Any, function: Any, shapes: Sequence[Any]) -> Any:
    """The module as bytecode; of open sizes with those that the inputs have."""
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    arguments = list(function.regions[0].blocks[0].arguments)
    if all(a.type.has_static_shape for a in arguments):
        return _bytecode(module)
    with module.context, ir.Location.unknown():
        copy = ir.Module.parse(_bytecode(module))
        sized = next(f for f in copy.body.operations if f.attributes["sym_name"].value == "main")
        block = sized.regions[0].blocks[0]
        for argument, shape in zip(block.arguments, shapes):
            open_type = argument.type
            argument.set_type(ir.RankedTensorType.get(list(shape), open_type.element_type))
            with ir.InsertionPoint.at_block_begin(block):
                cast = stablehlo.ConvertOp(open_type, argument)
            argument.replace_all_uses_except(cast.result, cast.operation)
        results = ir.FunctionType(sized.attributes["function_type"].value).results
        kind = ir.FunctionType.get([a.type for a in block.arguments], results)
        sized.attributes["function_type"] = ir.TypeAttr.get(kind)
        return _jax.mlir.refine_polymorphic_shapes(_bytecode(copy), True, True)


def _bytecode(module: Any) -> bytes:
    data = io.BytesIO()
    module.operation.write_bytecode(data)
    return data.getvalue()


def _as_complex(array: Any) -> Any:
    """Complex numbers of an array whose last axis has both parts."""
    return array[..., 0] + 1j * array[..., 1]


def _as_parts(array: Any) -> Any:
    import numpy as np

    found = np.asarray(array)
    return np.stack([found.real, found.imag], -1) if found.dtype.kind == "c" else found


ENGINES = [EngineKind("xla", version, open_xla, xla_values, ("stablehlo",))]
