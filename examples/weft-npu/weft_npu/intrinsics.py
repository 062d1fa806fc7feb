"""The matrix unit's instructions as tensor intrinsics: their meaning, where their operands lie, their names in code."""

from __future__ import annotations

from weft.scheduling import Call, Intrinsic, Operand
from weft.tensor import language as tl
from weft_npu.isa import TILE

A_SCOPE, B_SCOPE, C_SCOPE = "npu.activations", "npu.weights", "npu.accumulators"


def _gemm(rows: int) -> Intrinsic:
    a, b = tl.placeholder((rows, TILE), name="A"), tl.placeholder((TILE, TILE), name="B")
    k = tl.reduce_axis(TILE, "k")
    c = tl.compute((rows, TILE), lambda i, j: tl.sum(a[i, k] * b[k, j], axis=k), name="C", axes=["i", "j"])
    # Rows lie any number of elements apart: a stride of a convolution is a distance of rows.
    operands = tuple(Operand(n, scope=s, strides=(None, 1)) for n, s in zip("ABC", (A_SCOPE, B_SCOPE, C_SCOPE)))
    name = f"gemm{rows}x8"
    return Intrinsic(name, c, operands, Call(name), Call("fill_zero") if rows == TILE else None, Call(f"fuse_{name}_add"))


GEMM, GEMV = _gemm(TILE), _gemm(1)
INTRINSICS = (GEMM, GEMV)
