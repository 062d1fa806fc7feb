"""Parses modules by MLIR. Run as a program it parses standard input, and ends with 0 if there is a module, with
`MALFORMED` and the reason if not; hostile input may end the process in other ways, which is what it is for. It imports
nothing of Weft's, so that it begins at once."""

from __future__ import annotations

import resource
import sys
from typing import Any

MAGIC = b"ML\xefR"
MALFORMED = 3
"""How the program ends where there is no module."""
SECONDS, MEGABYTES = 300, 16384
"""What the program may take."""


class Malformed(ValueError):
    """What is given is no module."""


def new_context() -> Any:
    """A context of MLIR with the dialects that JAX writes."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context


def module_of(data: bytes) -> Any:
    """The module in a text, bytecode or a portable artifact, in a context of its own.

    Raises:
        Malformed: it is none, or does not verify.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func, stablehlo  # noqa: F401 - whose operations the module has

    context = new_context()
    try:
        with context:
            if data[:4] != MAGIC:
                module = ir.Module.parse(data.decode("utf-8"))
            elif b"StableHLO_v" in data[:64]:
                module = stablehlo.deserialize_portable_artifact(context, data)
            else:
                module = ir.Module.parse(data)
            if not module.operation.verify():
                raise Malformed("the module does not verify")
            return module
    except Malformed:
        raise
    except (ir.MLIRError, ValueError, TypeError, RuntimeError) as error:
        raise Malformed(str(error)) from None


def main() -> int:
    data = sys.stdin.buffer.read()
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, ((MEGABYTES << 20) + 8 * len(data),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        module_of(data)
    except Malformed as error:
        sys.stderr.write(str(error))
        return MALFORMED
    return 0


if __name__ == "__main__":
    sys.exit(main())
