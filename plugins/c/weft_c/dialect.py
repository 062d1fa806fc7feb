"""Portable C99 as a dialect of the C family: everything that C itself leaves to nobody is in `weft_c_family`."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.functions import FUNCTIONS
from weft_c_family import Dialect

C = Dialect(
    name="c",
    header=("#include <math.h>", "#include <stdbool.h>", "#include <stdint.h>", "#include <string.h>"),
    types={
        "bool": "bool", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
        "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t", "float32": "float",
        "float64": "double",
    },
    kernel="int32_t {name}(void *ctx, void *const *buffers, const int64_t *dims)",
    buffer_entry="{const}{type} *const {name} = ({const}{type} *)buffers[{index}];",
    size_entry="const {type} {name} = ({type})dims[{index}];",
    end="return (void)ctx, (void)buffers, (void)dims, 0;",
    serial=True,
    functions={
        "sqrt": "sqrt{f}({0})", "floor": "floor{f}({0})", "ceil": "ceil{f}({0})", "trunc": "trunc{f}({0})",
        "round": "rint{f}({0})",
        "abs": "fabs{f}({0})", "copysign": "copysign{f}({0}, {1})", "fma": "fma{f}({0}, {1}, {2})",
        "fmod": "fmod{f}({0}, {1})",
    },
    intrinsics={"prefetch": ""},
    reserved=frozenset({"run", "main", *FUNCTIONS}),
)  # fmt: skip

MODEL = replace(
    C,
    kernel="static void {name}({parameters})",
    buffer="{const}{type} *{name}",
    buffer_entry="",
    end="",
    stack_bytes=128,
    scratch_align=8,
    called=True,
    index="int32_t",
    rolled="WEFT_ONCE",
    intrinsics={
        **C.intrinsics,
        "clear": "weft_clear({0:address}, {1})",
        "window": ("weft_window({0:address}, {1}, {2}, {3}, {4:address}, {5}, {6}, {7}, {8}, {9}, {10}, {11})"),
        "planes": (
            "weft_planes({0:address}, {1}, {2}, {3}, {4}, {5}, {6:address}, {7}, {8}, {9}, {10}, {11}, {12}, {13},"
            " {14})"
        ),
        "widen": "weft_widen({0:address}, {1}, {2:address}, {3})",
        "dot_row": "weft_dot_row({0:address}, {1}, {2:address}, {3:address}, {4}, {5}, {6})",
        "dot_rows": "weft_dot_rows({0:address}, {1}, {2:address}, {3:address}, {4}, {5}, {6})",
        "dot_planes": (
            "weft_dot_planes({0:address}, {1}, {2}, {3}, {4}, {5}, {6:address}, {7:address}, {8}, {9}, {10}, {11},"
            " {12}, {13}, {14}, {15})"
        ),
        "planes_bytes": (
            "weft_planes_bytes({0:address}, {1}, {2}, {3}, {4}, {5}, {6:address}, {7:address}, {8:address},"
            " {9:address}, {10}, {11:address}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19})"
        ),
        "rescale_planes": (
            "weft_rescale_planes({0:address}, {1}, {2}, {3}, {4:address}, {5:address}, {6:address}, {7}, {8}, {9},"
            " {10:address}, {11}, {12}, {13}, {14}, {15}, {16})"
        ),
        "dot_bytes": (
            "weft_dot_bytes({0:address}, {1}, {2:address}, {3:address}, {4:address}, {5:address}, {6}, {7:address},"
            " {8}, {9}, {10})"
        ),
        "rescale_rows": (
            "weft_rescale_rows({0:address}, {1:address}, {2:address}, {3:address}, {4}, {5}, {6}, {7:address},"
            " {8}, {9})"
        ),
    },
)
"""The same for the C of a whole model: kernels are functions of their buffers, sizes are known, indices have 32
bits."""
