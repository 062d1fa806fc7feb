"""The instructions of the array: products of a tile of at most 24 rows and 32 columns, and the copies of the engine
beside it.

An array is output-stationary: sums stay in its accumulators while the terms stream through. For each pair of dtypes
there are two products. One reads both factors along the sum, `B[column, term]`; the other reads constant weights in
panels, `B[term // 8, column, term % 8]`, as `layouts.py` has them stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft import dtypes
from weft.dtypes import DType
from weft.expr.nodes import eq, le
from weft.loop.queues import Queue
from weft.scheduling.intrinsic import Call, Intrinsic, Operand
from weft.tensor import language as tl

ROWS = 24
COLUMNS = 32
STEP = 8
"""Terms of a sum that go into the array at once; depths are multiples."""
LONGEST = 4096
"""Terms of one instruction at most."""
ALIGN = 256
"""Bytes: what staging memory and accumulators are read and written in."""

STAGING = "tide.staging"
ACCUMULATORS = "tide.accumulators"
ENGINE = Queue("tide_engine", by="count")
PANEL_ENGINE = Queue("tide_panel_engine", by="token")
"""The engine has two channels, without an order between them: one for rows, one for panels."""

PAIRS: dict[str, tuple[DType, DType, DType]] = {
    "f32": (dtypes.float32, dtypes.float32, dtypes.float32),
    "bf16": (dtypes.bfloat16, dtypes.bfloat16, dtypes.float32),
    "i8": (dtypes.int8, dtypes.int8, dtypes.int32),
}


def _products() -> Iterator[Intrinsic]:
    rows, depth, blocks = tl.var("rows"), tl.var("depth"), tl.var("blocks")
    for short, (left, right, result) in PAIRS.items():
        k = tl.reduce_axis(depth, "k")
        A, B = tl.placeholder((rows, depth), left, "A"), tl.placeholder((COLUMNS, depth), right, "B")
        yield Intrinsic(
            f"tide_{short}",
            meaning=tl.compute(
                (rows, COLUMNS),
                lambda i, j, A=A, B=B, k=k, r=result: tl.sum(A[i, k].astype(r) * B[j, k].astype(r), axis=k),
                name="C",
                axes=["i", "j"],
            ),
            operands=(
                Operand("A", scope=STAGING, align=ALIGN, strides=(None, 1)),
                Operand("B", scope=STAGING, align=ALIGN, strides=(None, 1)),
                Operand("C", scope=ACCUMULATORS, align=ALIGN),
            ),
            compute=Call(f"tide_{short}"),
            reset=Call(f"tide_{short}_zero"),
            update=Call(f"tide_{short}_add"),
            limits=(le(rows, ROWS), eq(depth % STEP, 0), le(depth, LONGEST)),
            dynamic=("rows", "depth"),
        )
        b, e = tl.reduce_axis(blocks, "b"), tl.reduce_axis(STEP, "e")
        A, P = tl.placeholder((rows, blocks, STEP), left, "A"), tl.placeholder((blocks, COLUMNS, STEP), right, "P")
        yield Intrinsic(
            f"tide_{short}_panel",
            meaning=tl.compute(
                (rows, COLUMNS),
                lambda i, j, A=A, P=P, b=b, e=e, r=result: tl.sum(A[i, b, e].astype(r) * P[b, j, e].astype(r), axis=(b, e)),
                name="C",
                axes=["i", "j"],
            ),
            operands=(
                Operand("A", scope=STAGING, align=ALIGN, strides=(None, STEP, 1)),
                Operand("P", scope=STAGING, align=ALIGN, strides=(None, STEP, 1)),
                Operand("C", scope=ACCUMULATORS, align=ALIGN),
            ),
            compute=Call(f"tide_{short}_panel"),
            reset=Call(f"tide_{short}_panel_zero"),
            update=Call(f"tide_{short}_panel_add"),
            limits=(le(rows, ROWS), le(blocks, LONGEST // STEP)),
            dynamic=("rows", "blocks"),
        )


def _copies() -> Iterator[Intrinsic]:
    rows, columns, blocks = tl.var("rows"), tl.var("columns"), tl.var("blocks")
    for short, (dtype, _, _) in PAIRS.items():
        x = tl.placeholder((rows, columns), dtype, "x")
        yield Intrinsic(
            f"tide_load_{short}",
            meaning=tl.compute((rows, columns), lambda i, j, x=x: x[i, j], name="y", axes=["i", "j"]),
            operands=(
                Operand("x", scope="global", strides=(None, None)),
                Operand("y", scope=STAGING, strides=(None, 1)),
            ),
            compute=Call(f"tide_load_{short}"),
            limits=(le(rows, 4096), le(columns, 4096)),
            dynamic=("rows", "columns"),
            queue=ENGINE,
        )
        p = tl.placeholder((blocks, COLUMNS, STEP), dtype, "p")
        yield Intrinsic(
            f"tide_load_panel_{short}",
            meaning=tl.compute((blocks, COLUMNS, STEP), lambda b, j, e, p=p: p[b, j, e], name="y", axes=["b", "j", "e"]),
            operands=(
                Operand("p", scope="global", strides=(None, STEP, 1)),
                Operand("y", scope=STAGING, align=ALIGN, strides=(None, STEP, 1)),
            ),
            compute=Call(f"tide_load_panel_{short}"),
            limits=(le(blocks, LONGEST // STEP),),
            dynamic=("blocks",),
            queue=PANEL_ENGINE,
        )


PRODUCTS: tuple[Intrinsic, ...] = tuple(_products())
COPIES: tuple[Intrinsic, ...] = tuple(_copies())
INTRINSICS: tuple[Intrinsic, ...] = PRODUCTS + COPIES
