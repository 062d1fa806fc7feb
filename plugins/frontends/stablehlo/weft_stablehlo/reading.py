"""Modules of MLIR from files, texts, bytecode and JAX's objects."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import FrontendError
from weft_stablehlo.parsing import MALFORMED

MOST_BYTES = 1 << 32
"""Of a file at most."""
SECONDS = 600
"""What MLIR's parser may take for a file."""
INSTALL = 'pip install "weft-stablehlo[jax]"'


@dataclass(frozen=True)
class Model:
    """A module, and JAX's names of the sizes that it leaves open, by (number of the argument, axis)."""

    module: Any
    dims: Mapping[tuple[int, int], str] = field(default_factory=dict)


def require_jaxlib() -> None:
    """That MLIR's Python is there.

    Raises:
        FrontendError: it is not.
    """
    try:
        from jaxlib.mlir import ir  # noqa: F401 - asked for
        from jaxlib.mlir.dialects import stablehlo  # noqa: F401
    except ImportError as error:
        raise FrontendError(
            "StableHLO is read by MLIR, which is not installed", why=str(error), hint=f"{INSTALL} brings jaxlib"
        ) from error


def read_model(source: Any) -> Model:
    """The module of a file (a path), its bytes, or an object of JAX's.

    Raises:
        FrontendError: it cannot be read.
    """
    require_jaxlib()
    if isinstance(source, (str, Path)):
        path = Path(source)
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise FrontendError(f"the file has {size:,} bytes", where=str(path), why=f"at most {MOST_BYTES:,} are read")
        return Model(parsed(path.read_bytes(), untrusted=True))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Model(parsed(bytes(source), untrusted=True))
    return _of_jax(source)


def _of_jax(source: Any) -> Model:
    if type(source).__name__ == "Exported":
        if len(source.platforms) > 1:
            raise FrontendError(
                f"the function is exported for {', '.join(source.platforms)}", hint='export it for platforms=("cpu",)'
            )
        dims = {}
        for k, kept in enumerate(source.module_kept_var_idx):
            for axis, size in enumerate(source.in_avals[kept].shape):
                if not isinstance(size, int) and str(size).isidentifier():
                    dims[k, axis] = str(size)
        return Model(parsed(source.mlir_module_serialized), dims)
    module = source.compiler_ir("stablehlo") if hasattr(source, "compiler_ir") else source
    data = io.BytesIO()
    module.operation.write_bytecode(data)
    return Model(parsed(data.getvalue()))


def parsed(data: bytes, untrusted: bool = False) -> Any:
    """The module in a text, bytecode or a portable artifact.

    Args:
        untrusted: it is parsed in a process of its own first: MLIR's parser may end the process that runs it.

    Raises:
        FrontendError: it is none.
    """
    from weft_stablehlo.parsing import Malformed, module_of

    if untrusted:
        _try_first(data)
    try:
        return module_of(data)
    except Malformed as error:
        raise _malformed(str(error)) from None


def _malformed(reason: str) -> FrontendError:
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    return FrontendError(
        "no module of StableHLO can be read",
        why="; ".join(lines[:6])[:1000] or None,
        hint="a newer StableHLO may have written it: install a newer jaxlib",
    )


def _try_first(data: bytes) -> None:
    """Parses a module in a process of its own.

    Raises:
        FrontendError: the process ends otherwise than by saying that there is a module.
    """
    command = [sys.executable, "-P", "-m", "weft_stablehlo.parsing"]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        why = f"its parser takes more than {SECONDS} s"
        raise FrontendError("no module of StableHLO can be read", why=why) from None
    if done.returncode == 0:
        return
    text = done.stderr.decode("utf-8", "replace")
    if done.returncode == MALFORMED:
        raise _malformed(text)
    raise FrontendError(
        "no module of StableHLO can be read",
        why=f"MLIR's parser ends with {done.returncode}: {text.strip()[-300:]}",
        hint="is the file damaged?",
    )


__all__ = ["Model", "parsed", "read_model", "require_jaxlib"]
