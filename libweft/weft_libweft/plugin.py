"""What weft-libweft contributes. Imports nothing heavy: a plugin module loads in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.hooks import Exporter
    from weft_runtime import Executable


@hookimpl
def exporters() -> Sequence[Exporter]:
    from weft.hooks import Exporter, ExportOption

    prefix = ExportOption("prefix", "what the functions' names begin with, so that several models can be linked")

    def late(module: str, function: str) -> object:
        """A function of a module that is imported when it is called."""

        def files(
            executable: Executable, name: str, options: Mapping[str, str]
        ) -> Mapping[str, Iterable[bytes | memoryview]]:
            made: Mapping[str, Iterable[bytes | memoryview]] = getattr(import_module(module), function)(
                executable, name, options
            )
            return made

        return files

    windows = "llvm -mtriple=x86_64-pc-windows-gnu-elf -mcpu=x86-64-v3"
    apple = "llvm -mtriple=aarch64-apple-darwin-elf -mcpu=apple-m1"
    return [
        Exporter("elf", ".so", "a shared library of Linux or Android", "llvm", late("weft_libweft.elf", "files"), (prefix,)),  # type: ignore[arg-type]
    ]
