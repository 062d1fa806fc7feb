"""WGSL as a table (W3C, "WebGPU Shading Language"), and the class that writes it."""

from __future__ import annotations

from functools import cache

from weft.expr.functions import FUNCTIONS
from weft_c_family import Dialect
from weft_webgpu.language import TYPES, WORDS
from weft_webgpu.writer import WgslKernel

_OWN = (
    "sqrt", "floor", "ceil", "trunc", "round", "abs", "fma", "copysign", "fmod", "exp", "exp2", "expm1", "sinh", "cosh",
    "tanh", "log", "log1p", "sin", "cos", "tan", "pow",
)  # fmt: skip
"""WGSL's own that devices round correctly or nearly so, and those of functions.wgsl. WGSL's sine has an absolute error
of 2^-11, its exponential and its power are off by as much as the exponent is large ("Accuracy of Built-in Functions").
The formulas of other targets for these need float64, or sums that are not reassociated."""


@cache
def dialect(buffers: int) -> Dialect:
    """The language of a device that binds so many buffers to a launch."""
    parameters = "@builtin(workgroup_id) weft_group: vec3<u32>, @builtin(local_invocation_id) weft_thread: vec3<u32>"
    axes = (("blockIdx", "weft_group"), ("threadIdx", "weft_thread"))
    return Dialect(
        name="webgpu",
        types=TYPES,
        kernel=f"@compute @workgroup_size({{group[0]}}, {{group[1]}}, {{group[2]}})\nfn {{name}}({parameters})",
        scopes=dict.fromkeys(("local", "register", "shared"), "var {name}: array<{type}, {size}>;"),
        shared_scopes=frozenset({"shared"}),
        indices={f"{kind}.{axis}": f"{name}.{axis}" for kind, name in axes for axis in "xyz"},
        barrier="workgroupBarrier(); storageBarrier();",
        atomics={f"{op} {d}": op for op in ("add", "min", "max") for d in ("int32", "uint32", "float32")},
        functions={name: name for name in _OWN},
        writer=type("WgslKernel", (WgslKernel,), {"buffers": buffers}),
        reserved=frozenset({*WORDS, *FUNCTIONS, "weft_group", "weft_thread", "weft_sizes", "weft_all"}),
    )
