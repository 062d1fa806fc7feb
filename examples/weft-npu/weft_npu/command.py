"""`weft npu-report model.onnx`: compiles a model, runs it once on random inputs, and prints cycles and utilisation
kernel by kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def npu_report(
    model: Annotated[Path, typer.Argument(help="Model file; a saved .weft is run as it is.")],
    target: Annotated[str, typer.Option("--target", "-t", help="Targets in order of preference.")] = "npu, llvm",
    code: Annotated[bool, typer.Option("--code", help="Print the instructions of every kernel, too.")] = False,
) -> None:
    """Cycles and utilisation of the example accelerator, kernel by kernel."""
    import numpy as np

    import weft
    from weft.dtypes import dtype
    from weft.errors import InputError
    from weft_npu.device import Npu
    from weft_npu.isa import listing
    from weft_runtime.device import open_device

    exe = weft.Executable.load(model) if model.suffix == ".weft" else weft.compile(model, target)
    rng = np.random.default_rng(0)
    inputs = {}
    for i in exe.inputs:
        if not all(isinstance(d, int) for d in i.shape):
            raise InputError(
                f"input '{i.name}' has a size known only at run time",
                where=str(i),
                hint="the npu takes models of constant sizes",
            )
        inputs[i.name] = rng.standard_normal([int(d) for d in i.shape]).astype(dtype(i.dtype).numpy)
    device = open_device("npu")
    assert isinstance(device, Npu)
    device.reset()
    exe.run(inputs)
    if code:
        typer.echo(listing([(name, device.loaded[name]) for name in device.counts]))
    typer.echo(device.report())
