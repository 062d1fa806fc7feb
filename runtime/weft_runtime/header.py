"""The binary interface as a C header, `weft_abi.h`: for kernels, segments and programs in C that run them.

    python -m weft_runtime.header [FILE]        writes the header to a file, or prints it
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from weft_runtime.abi import (
    ABI_VERSION,
    DEVICE_CPU,
    DEVICE_CUDA_HOST,
    ERROR_ARGS,
    FUNCTIONS,
    IMPORTS,
    STRUCTURES,
    ErrorCode,
    Field,
    Function,
    Structure,
)  # fmt: skip

FILE = Path(__file__).with_name("weft_abi.h")
"""The header that comes with the package."""
_SCALARS = {"int64": "int64_t", "uint64": "uint64_t", "int32": "int32_t", "uint16": "uint16_t", "uint8": "uint8_t"}

_HEAD = f"""/* The binary interface between code that Weft compiles and whoever runs it. Written by `python -m weft_runtime.header`; do not edit.

   The layout is that of C. It is the same on every processor whose 64-bit integers are aligned to 8 bytes; where pointers have 4 bytes, fields of
   pointers have 4. Memory of the arena and of constants begins at multiples of 64 bytes. */
#ifndef WEFT_ABI_H
#define WEFT_ABI_H

#include <stddef.h>
#include <stdint.h>

#define WEFT_ABI_VERSION {ABI_VERSION}
#define WEFT_ERROR_ARGS {ERROR_ARGS}
#define WEFT_DEVICE_CPU {DEVICE_CPU}
#define WEFT_DEVICE_CUDA_HOST {DEVICE_CUDA_HOST}
"""


def abi_header() -> str:
    """The text of `weft_abi.h`: C99 and C++11, with static assertions on every offset from C11 and C++11 on."""
    parts = [_HEAD, _error_codes(), _imports(), declarations(), _assertions(), "#endif\n"]
    return "\n".join(parts)


def declarations(structures: Iterable[Structure] = STRUCTURES, functions: Iterable[Function] = FUNCTIONS) -> str:
    """C text of structures and types of functions, each name declared before it is used. It needs <stdint.h>."""
    structures, functions = tuple(structures), tuple(functions)
    lines = [f"typedef struct {s.name} {s.name};" for s in structures]
    lines += [f"/* {f.meaning} */\ntypedef {_spaced(f.result)}{f.name}({f.parameters});" for f in functions]
    return "\n".join(lines) + "\n" + "".join(f"\n{structure_text(s)}" for s in structures)


def structure_text(structure: Structure) -> str:
    """C text of one structure, whose name is declared already."""
    fields = "".join(f"  {_declared(f)}; /* {f.meaning} */\n" for f in structure.fields)
    return f"/* {structure.meaning} */\nstruct {structure.name} {{\n{fields}}};\n"


def _declared(field: Field) -> str:
    array = f"[{field.count}]" if field.count > 1 else ""
    return f"{_spaced(field.c or _SCALARS[field.kind])}{field.name}{array}"


def _spaced(kind: str) -> str:
    return kind if kind.endswith("*") else kind + " "


def _error_codes() -> str:
    lines = [f"  WEFT_{code.name} = {code.value}," for code in ErrorCode]
    return "/* ctx->error_code; from WEFT_FIRST_CHECK on the manifest has the text. */\nenum {\n" + "\n".join(lines) + "\n};\n"


def _imports() -> str:
    lines = [f"  WEFT_IMPORT_{name} = {k}," for k, name in enumerate(IMPORTS)]
    return "/* Places in ctx->imports. */\nenum {\n" + "\n".join([*lines, f"  WEFT_IMPORTS = {len(IMPORTS)}"]) + "\n};\n"


def _assertions() -> str:
    lines = [
        "#if defined(__cplusplus)",
        "#define WEFT_HOLDS(condition) static_assert(condition, #condition)",
        "#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L",
        "#define WEFT_HOLDS(condition) _Static_assert(condition, #condition)",
        "#endif",
        "#ifdef WEFT_HOLDS",
        "#define WEFT_AT(wide, narrow) (sizeof(void *) == 8 ? (wide) : (narrow))",
        "WEFT_HOLDS(sizeof(void *) == 8 || sizeof(void *) == 4);",
    ]
    for s in STRUCTURES:
        lines.append(f"WEFT_HOLDS(sizeof(struct {s.name}) == WEFT_AT({s.size(8)}, {s.size(4)}));")
        wide, narrow = s.offsets(8), s.offsets(4)
        lines += [f"WEFT_HOLDS(offsetof(struct {s.name}, {f.name}) == WEFT_AT({wide[f.name]}, {narrow[f.name]}));" for f in s.fields]
    return "\n".join([*lines, "#undef WEFT_AT", "#undef WEFT_HOLDS", "#endif"]) + "\n"


def main(arguments: list[str]) -> None:
    """See the module."""
    if len(arguments) > 1:
        raise SystemExit("usage: python -m weft_runtime.header [FILE]")
    if arguments:
        Path(arguments[0]).write_text(abi_header(), encoding="utf-8")
    else:
        sys.stdout.write(abi_header())


if __name__ == "__main__":
    main(sys.argv[1:])
