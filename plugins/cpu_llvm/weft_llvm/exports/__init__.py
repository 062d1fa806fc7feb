"""The formats of files that `weft export` writes from native code: a module for each, which is imported when it writes.

`runtime` and `inside` are what the formats of native machines share: the C runtime, and the parts of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from weft.hooks import Exporter, ExportOption

if TYPE_CHECKING:
    from weft_runtime import Executable

    _Files = Callable[[Executable, str, Mapping[str, str]], Mapping[str, Iterable[bytes | memoryview]]]


def exporters() -> Sequence[Exporter]:
    prefix = ExportOption("prefix", "what the functions' names begin with, so that several models can be linked")
    system = ExportOption("system", "whose object it is", ("macos", "ios"))
    windows = "llvm -mtriple=x86_64-pc-windows-gnu -mcpu=x86-64-v3"
    apple = "llvm -mtriple=aarch64-apple-darwin -mcpu=apple-m1"
    return [
        Exporter("wasm", ".wasm", "a WebAssembly module with weights and plan", "llvm -mtriple=wasm32", _late("wasm")),
        Exporter("elf", ".so", "a shared library of Linux or Android", "llvm", _late("elf"), (prefix,)),
        Exporter("pe", ".dll", "a DLL of 64-bit Windows", windows, _late("pe"), (prefix,)),
        Exporter("obj", ".o", "an object of Linux, Android or Windows", "llvm", _late("objects"), (prefix,)),
        Exporter(
            "macho-obj", ".o", "an object of macOS or iOS", apple, _late("objects", "apple_files"), (prefix, system)
        ),
    ]


def _late(module: str, function: str = "files") -> _Files:
    def files(
        executable: Executable, name: str, options: Mapping[str, str]
    ) -> Mapping[str, Iterable[bytes | memoryview]]:
        writer: _Files = getattr(import_module(f"{__name__}.{module}"), function)
        return writer(executable, name, options)

    return files
