"""Element types, which the runtime defines (`weft_runtime.dtypes`)."""

from __future__ import annotations

from weft_runtime.dtypes import (
    FLOAT_FORMATS,
    DType,
    FloatFormat,
    Kind,
    all_dtypes,
    bfloat16,
    bool_,
    complex64,
    complex128,
    dtype,
    float4_e2m1fn,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    handle,
    int2,
    int4,
    int8,
    int16,
    int32,
    int64,
    string,
    uint2,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)

__all__ = [
    "DType", "FLOAT_FORMATS", "FloatFormat", "Kind", "all_dtypes", "bfloat16", "bool_", "complex128", "complex64",
    "dtype", "float16", "float32", "float4_e2m1fn", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "handle", "int16", "int2", "int32", "int4", "int64", "int8", "string",
    "uint16", "uint2", "uint32", "uint4", "uint64", "uint8",
]  # fmt: skip
