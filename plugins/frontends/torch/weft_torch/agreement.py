"""Programs of which PyTorch's exporter, decompositions and kernels say different things."""

from __future__ import annotations

import torch

from weft.errors import FrontendError


def written_otherwise(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Nodes with an `out` of another shape than the result that PyTorch's exporter says: some operators make it have
    the result's shape, others leave it as it is, whatever the exporter says."""
    found = []
    for node in program.graph.nodes:
        out, value = node.kwargs.get("out"), node.meta.get("val")
        if isinstance(out, torch.fx.Node) and isinstance(value, torch.Tensor):
            if not torch._prims_common.is_same_shape(out.meta["val"].shape, value.shape):
                found.append(node)
    return found


def expect_same_results(program: torch.export.ExportedProgram, apart: torch.export.ExportedProgram) -> None:
    """That taking a program apart changed no dtype, rank or size of its results: of some operators what PyTorch's
    exporter, its decompositions and its kernels say differs.

    Raises:
        FrontendError: it did.
    """
    results = (reversed(next(iter(p.graph.find_nodes(op="output"))).args[0]) for p in (program, apart))
    for node, other in zip(*results):  # from the end: what the program writes to is in front, if it is there
        a, b = (x.meta.get("val") if isinstance(x, torch.fx.Node) else x for x in (node, other))
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        sizes = [(m, n) for m, n in zip(a.shape, b.shape) if isinstance(m, int) and isinstance(n, int)]
        if a.dtype != b.dtype or a.dim() != b.dim() or any(m != n for m, n in sizes):
            raise FrontendError(
                f"result '{node}': taken apart it is {b.dtype}{list(b.shape)}, the exporter says"
                f" {a.dtype}{list(a.shape)}",
                why="PyTorch says two things of an operator that makes it, so that it is not known which is right",
                hint="a converter for the operator (hook `converters`, frontend 'torch') settles it",
            )


__all__ = ["expect_same_results", "written_otherwise"]
