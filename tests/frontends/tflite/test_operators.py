"""Operators of TFLite on numbers, each against LiteRT's reference kernels: 1e-5 for floats, else equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite.models import one_op
from tests.frontends.tflite.oracle import ONLY_BUILT_IN, litert

from weft_testing.frontend import FrontendCase, check_frontend

pytestmark = pytest.mark.needs("ai_edge_litert")
RNG = np.random.default_rng(7)


def f(*shape: int, lo: float = -2.0, hi: float = 2.0, dtype: Any = np.float32) -> Any:
    return RNG.uniform(lo, hi, shape).astype(dtype)


def i(*shape: int, lo: int = -9, hi: int = 9, dtype: Any = np.int32) -> Any:
    return RNG.integers(lo, hi + 1, shape).astype(dtype)


def c(value: Any, dtype: Any = np.int32) -> list[Any]:
    """A constant."""
    return [np.asarray(value, dtype) if not isinstance(value, np.ndarray) else value]


def out(*shape: int, type: str = "float32") -> dict[str, Any]:
    return {"shape": shape, "type": type}


SAME, VALID = 0, 1
Case = tuple[str, Sequence[Any], Sequence[Any], dict[str, Any]]
CONV = {"padding": SAME, "stride_w": 1, "stride_h": 1}
UNARY = ["ABS", "CEIL", "COS", "EXP", "FLOOR", "LOGISTIC", "NEG", "ROUND", "SIGN", "SIN", "TANH", "SQUARE", "RELU",
         "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "ELU", "HARD_SWISH", "ZEROS_LIKE"]  # fmt: skip
CASES: list[Case] = [
    *((name, [f(2, 3, hi=8)], [out(2, 3)], {}) for name in UNARY),
    *((name, [f(2, 3, lo=0.1)], [out(2, 3)], {}) for name in ("LOG", "SQRT", "RSQRT")),
    *(
        (name, [f(2, 3, 4, lo=0.5), f(3, 1, lo=0.5)], [out(2, 3, 4)], {})
        for name in ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW", "FLOOR_DIV")
    ),
    *(
        (name, [i(2, 3), i(3, lo=1)], [out(2, 3, type="int32")], {})
        for name in ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "FLOOR_DIV", "FLOOR_MOD", "BITWISE_XOR")
    ),
    ("FLOOR_MOD", [f(2, 3), f(3, lo=0.5)], [out(2, 3)], {}),
    ("ATAN2", [f(4, 5), f(4, 5)], [out(4, 5)], {}),
    ("RIGHT_SHIFT", [i(2, 3, lo=-99, hi=99), i(2, 3, lo=0, hi=5)], [out(2, 3, type="int32")], {}),
    ("ADD", [f(2, 3), f(2, 3)], [out(2, 3)], {"fused_activation_function": 1}),
    ("MUL", [f(2, 3), c(f(3))], [out(2, 3)], {"fused_activation_function": 3}),
    ("SUB", [f(2, 3), f(1)], [out(2, 3)], {"fused_activation_function": 2}),
    ("ADD_N", [f(2, 3), f(2, 3), f(2, 3)], [out(2, 3)], {}),
    ("PRELU", [f(1, 2, 3, 4), c(f(1, 1, 4))], [out(1, 2, 3, 4)], {}),
    ("LEAKY_RELU", [f(2, 3)], [out(2, 3)], {"alpha": 0.3}),
    ("GELU", [f(2, 3)], [out(2, 3)], {"approximate": False}),
    ("GELU", [f(2, 3)], [out(2, 3)], {"approximate": True}),
    *(
        (name, [i(2, 3), i(3)], [out(2, 3, type="bool")], {})
        for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
    ),
    *(
        (name, [i(2, 3, lo=0, hi=1, dtype=bool), i(2, 3, lo=0, hi=1, dtype=bool)], [out(2, 3, type="bool")], {})
        for name in ("LOGICAL_AND", "LOGICAL_OR")
    ),
    ("LOGICAL_NOT", [i(2, 3, lo=0, hi=1, dtype=bool)], [out(2, 3, type="bool")], {}),
    ("CAST", [f(2, 3)], [out(2, 3, type="int32")], {"in_data_type": 0, "out_data_type": 2}),
    ("CAST", [i(2, 3)], [out(2, 3)], {"in_data_type": 2, "out_data_type": 0}),
    ("FAKE_QUANT", [f(3, 4)], [out(3, 4)], {"min": -1.0, "max": 1.5, "num_bits": 8, "narrow_range": False}),
    ("DEQUANTIZE", [c(f(3, 4, dtype=np.float16))], [out(3, 4)], {}),
    # windows and products
    (
        "CONV_2D",
        [f(1, 5, 6, 3), c(f(4, 3, 3, 3)), c(f(4))],
        [out(1, 5, 6, 4)],
        {**CONV, "fused_activation_function": 1},
    ),
    (
        "CONV_2D",
        [f(1, 5, 6, 3), c(f(4, 3, 2, 3)), c(f(4))],
        [out(1, 2, 3, 4)],
        {"padding": VALID, "stride_w": 2, "stride_h": 2},
    ),
    (
        "CONV_2D",
        [f(2, 6, 7, 3), c(f(4, 3, 3, 3)), c(f(4))],
        [out(2, 3, 4, 4)],
        {"padding": SAME, "stride_w": 2, "stride_h": 2},
    ),
    (
        "CONV_2D",
        [f(1, 6, 7, 2), c(f(4, 3, 3, 2)), c(f(4))],
        [out(1, 6, 7, 4)],
        {**CONV, "dilation_w_factor": 2, "dilation_h_factor": 2},
    ),
    ("CONV_2D", [f(1, 4, 4, 4), c(f(6, 3, 3, 2)), c(f(6))], [out(1, 4, 4, 6)], CONV),
    (
        "DEPTHWISE_CONV_2D",
        [f(1, 5, 6, 3), c(f(1, 3, 3, 6)), c(f(6))],
        [out(1, 5, 6, 6)],
        {**CONV, "depth_multiplier": 2},
    ),
    (
        "DEPTHWISE_CONV_2D",
        [f(1, 6, 6, 3), c(f(1, 3, 3, 3)), c(f(3))],
        [out(1, 3, 3, 3)],
        {"padding": SAME, "stride_w": 2, "stride_h": 2, "depth_multiplier": 1, "fused_activation_function": 3},
    ),
    (
        "TRANSPOSE_CONV",
        [c([1, 6, 8, 3]), c(f(3, 3, 3, 2)), f(1, 3, 4, 2)],
        [out(1, 6, 8, 3)],
        {"padding": SAME, "stride_w": 2, "stride_h": 2},
    ),
    (
        "TRANSPOSE_CONV",
        [c([1, 7, 9, 3]), c(f(3, 3, 3, 2)), f(1, 3, 4, 2), c(f(3))],
        [out(1, 7, 9, 3)],
        {"padding": VALID, "stride_w": 2, "stride_h": 2},
    ),
    (
        "CONV_3D",
        [f(1, 3, 4, 5, 2), c(f(2, 2, 3, 2, 4)), c(f(4))],
        [out(1, 3, 4, 5, 4)],
        {"padding": SAME, "stride_d": 1, "stride_w": 1, "stride_h": 1},
    ),
    (
        "CONV_3D_TRANSPOSE",
        [c([1, 4, 6, 8, 3]), c(f(2, 3, 3, 3, 2)), f(1, 2, 3, 4, 2)],
        [out(1, 4, 6, 8, 3)],
        {"padding": SAME, "stride_d": 2, "stride_w": 2, "stride_h": 2},
    ),
    *(
        (
            name,
            [f(1, 5, 6, 3)],
            [out(1, 3, 3, 3)],
            {"padding": SAME, "stride_w": 2, "stride_h": 2, "filter_width": 3, "filter_height": 2},
        )
        for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
    ),
    ("FULLY_CONNECTED", [f(2, 5), c(f(4, 5)), c(f(4))], [out(2, 4)], {"fused_activation_function": 1}),
    ("FULLY_CONNECTED", [f(2, 3, 5), c(f(4, 5)), None], [out(6, 4)], {}),
    ("FULLY_CONNECTED", [f(2, 3, 5), c(f(4, 5)), c(f(4))], [out(2, 3, 4)], {"keep_num_dims": True}),
    ("BATCH_MATMUL", [f(2, 3, 4), f(2, 4, 5)], [out(2, 3, 5)], {}),
    ("BATCH_MATMUL", [f(2, 4, 3), f(5, 4)], [out(2, 3, 5)], {"adj_x": True, "adj_y": True}),
    ("SOFTMAX", [f(2, 5)], [out(2, 5)], {"beta": 0.5}),
    ("LOG_SOFTMAX", [f(2, 5)], [out(2, 5)], {}),
    ("L2_NORMALIZATION", [f(2, 5)], [out(2, 5)], {}),
    (
        "LOCAL_RESPONSE_NORMALIZATION",
        [f(1, 2, 3, 6)],
        [out(1, 2, 3, 6)],
        {"radius": 2, "bias": 1.0, "alpha": 0.5, "beta": 0.75},
    ),
    *(
        (name, [f(1, 3, 4, 2), c([5, 7])], [out(1, 5, 7, 2)], {"align_corners": align, "half_pixel_centers": half})
        for name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
        for align, half in ((False, False), (True, False), (False, True))
    ),
    ("DEPTH_TO_SPACE", [f(1, 2, 3, 8)], [out(1, 4, 6, 2)], {"block_size": 2}),
    ("SPACE_TO_DEPTH", [f(1, 4, 6, 2)], [out(1, 2, 3, 8)], {"block_size": 2}),
    # movement
    ("RESHAPE", [f(2, 6), c([3, -1])], [out(3, 4)], {}),
    ("RESHAPE", [f(2, 6)], [out(4, 3)], {"new_shape": [4, -1]}),
    ("SQUEEZE", [f(1, 3, 1)], [out(3)], {"squeeze_dims": []}),
    ("SQUEEZE", [f(1, 3, 1)], [out(1, 3)], {"squeeze_dims": [-1]}),
    ("EXPAND_DIMS", [f(2, 3), c(-1)], [out(2, 3, 1)], {}),
    ("TRANSPOSE", [f(2, 3, 4), c([2, 0, 1])], [out(4, 2, 3)], {}),
    ("BROADCAST_TO", [f(3, 1), c([2, 3, 4])], [out(2, 3, 4)], {}),
    ("BROADCAST_ARGS", [c([2, 1]), c([3])], [out(2, type="int32")], {}),
    ("TILE", [f(2, 3), c([2, 3])], [out(4, 9)], {}),
    ("CONCATENATION", [f(2, 3), f(2, 2)], [out(2, 5)], {"axis": -1}),
    ("PACK", [f(2, 3), f(2, 3)], [out(2, 2, 3)], {"axis": 1, "values_count": 2}),
    ("UNPACK", [f(2, 3)], [out(3), out(3)], {"axis": 0, "num": 2}),
    ("SPLIT", [c(1), f(2, 6)], [out(2, 3), out(2, 3)], {"num_splits": 2}),
    ("SPLIT_V", [f(2, 6), c([1, -1, 2]), c(1)], [out(2, 1), out(2, 3), out(2, 2)], {"num_splits": 3}),
    ("SLICE", [f(3, 5), c([1, 2]), c([2, -1])], [out(2, 3)], {}),
    ("STRIDED_SLICE", [f(4, 5), c([0, 4]), c([4, 0]), c([2, -2])], [out(2, 2)], {}),
    (
        "STRIDED_SLICE",
        [f(4, 5, 6), c([1, 0, 2]), c([0, 0, 5]), c([1, 1, 1])],
        [out(5, 3)],
        {"shrink_axis_mask": 1, "end_mask": 2},
    ),
    (
        "STRIDED_SLICE",
        [f(4, 5, 6), c([0, 0, 1]), c([0, 0, 4]), c([1, 1, 1])],
        [out(4, 5, 1, 3)],
        {"ellipsis_mask": 1, "new_axis_mask": 2},
    ),
    ("STRIDED_SLICE", [f(5), c([-3]), c([2**31 - 1]), c([1])], [out(3)], {}),
    ("PAD", [f(2, 3), c([[1, 0], [0, 2]])], [out(3, 5)], {}),
    ("PADV2", [f(2, 3), c([[1, 0], [0, 2]]), c(3.5, np.float32)], [out(3, 5)], {}),
    ("MIRROR_PAD", [f(3, 4), c([[1, 2], [2, 1]])], [out(6, 7)], {"mode": 0}),
    ("MIRROR_PAD", [f(3, 4), c([[1, 2], [2, 1]])], [out(6, 7)], {"mode": 1}),
    ("SPACE_TO_BATCH_ND", [f(1, 4, 5, 2), c([2, 3]), c([[0, 0], [0, 1]])], [out(6, 2, 2, 2)], {}),
    ("BATCH_TO_SPACE_ND", [f(6, 2, 2, 2), c([2, 3]), c([[0, 0], [0, 1]])], [out(1, 4, 5, 2)], {}),
    ("REVERSE_V2", [f(2, 3, 4), c([1])], [out(2, 3, 4)], {}),
    ("REVERSE_SEQUENCE", [f(3, 4, 2), c([1, 3, 4])], [out(3, 4, 2)], {"seq_dim": 1, "batch_dim": 0}),
    ("FILL", [c([2, 3]), c(1.5, np.float32)], [out(2, 3)], {}),
    ("BITCAST", [f(2, 3)], [out(2, 3, type="int32")], {}),
    ("DYNAMIC_UPDATE_SLICE", [f(4, 5), f(2, 3), c([3, 1])], [out(4, 5)], {}),
    ("SHAPE", [f(2, 3)], [out(2, type="int32")], {"out_type": 2}),
    ("RANK", [f(2, 3)], [out(type="int32")], {}),
    # reductions and orders
    *(
        (name, [f(2, 3, 4), c([0, -1])], [out(3)], {"keep_dims": False})
        for name in ("SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN")
    ),
    ("MEAN", [f(2, 3, 4, 5), c([1, 2])], [out(2, 1, 1, 5)], {"keep_dims": True}),
    *(
        (name, [i(2, 3, lo=0, hi=1, dtype=bool), c([1])], [out(2, type="bool")], {"keep_dims": False})
        for name in ("REDUCE_ANY", "REDUCE_ALL")
    ),
    ("ARG_MAX", [f(3, 4), c(1)], [out(3, type="int64")], {"output_type": 4}),
    ("ARG_MIN", [f(3, 4), c(0)], [out(4, type="int32")], {"output_type": 2}),
    ("TOPK_V2", [f(3, 6), c(2)], [out(3, 2), out(3, 2, type="int32")], {}),
    ("CUMSUM", [f(3, 4), c(1)], [out(3, 4)], {"exclusive": True, "reverse": True}),
    # indices
    ("GATHER", [f(4, 5), i(2, 3, lo=0, hi=3)], [out(2, 3, 5)], {"axis": 0}),
    ("GATHER", [f(2, 3, 5), i(2, 4, lo=0, hi=4)], [out(2, 3, 4)], {"axis": 2, "batch_dims": 1}),
    ("GATHER_ND", [f(3, 4, 2), i(5, 2, lo=0, hi=2)], [out(5, 2)], {}),
    ("SCATTER_ND", [c([[1], [3], [1]]), f(3, 2), c([5, 2])], [out(5, 2)], {}),
    ("EMBEDDING_LOOKUP", [i(3, lo=0, hi=4), c(f(5, 2))], [out(3, 2)], {}),
    ("SELECT", [i(3, lo=0, hi=1, dtype=bool), f(3, 2), f(3, 2)], [out(3, 2)], {}),
    ("SELECT_V2", [i(3, 1, lo=0, hi=1, dtype=bool), f(3, 2), f(1, 2)], [out(3, 2)], {}),
    ("ONE_HOT", [i(4, lo=-1, hi=4), c(4), c(2.0, np.float32), c(-1.0, np.float32)], [out(4, 4)], {"axis": -1}),
    ("RANGE", [c(2), c(11), c(3)], [out(3, type="int32")], {}),
    ("WHERE", [i(3, 4, lo=0, hi=1, dtype=bool)], [out(0, 2, type="int64")], {}),
    ("MATRIX_DIAG", [f(2, 3)], [out(2, 3, 3)], {}),
    ("MATRIX_SET_DIAG", [f(2, 3, 3), f(2, 3)], [out(2, 3, 3)], {}),
    ("SEGMENT_SUM", [f(5, 2), c([0, 0, 1, 2, 2])], [out(3, 2)], {}),
    *(
        (f"UNSORTED_SEGMENT_{name}", [f(5, 2), c([2, 0, 2, -1, 0]), c(4)], [out(4, 2)], {})
        for name in ("SUM", "PROD", "MAX", "MIN")
    ),
    ("BUCKETIZE", [f(3, 4)], [out(3, 4, type="int32")], {"boundaries": [-1.0, 0.0, 0.5]}),
    ("SPARSE_TO_DENSE", [c([[0, 1], [2, 3]]), c([3, 4]), f(2), c(7.0, np.float32)], [out(3, 4)], {}),
]


def given(inputs: Sequence[Any]) -> dict[str, Any]:
    return {f"x{k}": x for k, x in enumerate(inputs) if isinstance(x, np.ndarray)}


def named(case: Case) -> str:
    return case[0].lower()


@pytest.mark.parametrize("case", CASES, ids=named)
def test_one_operator(case: Case) -> None:
    name, inputs, results, options = case
    model = one_op(name, inputs, results, version=2 if name == "BROADCAST_TO" else 1, **options)
    answer = litert(model, name in ONLY_BUILT_IN)
    check_frontend(FrontendCase(model, given(inputs), answer, "tflite", rtol=1e-5, atol=1e-5), target=None)
