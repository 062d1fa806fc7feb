"""The formats of files that `weft export` writes from native code."""

from __future__ import annotations

from weft.hooks import Exporter
from weft_llvm import export_wasm

EXPORTERS = [
    Exporter("wasm", ".wasm", "a WebAssembly module with weights and plan", "llvm -mtriple=wasm32", export_wasm.files),
]
