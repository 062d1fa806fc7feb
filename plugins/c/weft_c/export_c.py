"""`weft export -f c`: a model as a file of C and its header, for processors without an operating system.

The files hold all: constants in read-only arrays, kernels, and a function that calls them in the caller's memory. They
allocate nothing, call nothing but themselves, `memcpy` and functions of <math.h>, and write no variable of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import TargetError, UnsupportedError
from weft_c.model_text import MACHINE, PREFIX, ModelText, field
from weft_runtime import Native

if TYPE_CHECKING:
    from weft_runtime import Executable

SUFFIX, HEADER = ".c", ".h"
ALIGNMENT = 8
"""Of the caller's memory, bytes."""
_COLUMNS = 118


def target(options: Mapping[str, str]) -> str:
    """What to compile for."""
    return f"c -profile={options.get('profile', 'portable')}"


def files(executable: Executable, name: str, options: Mapping[str, str]) -> dict[str, Iterator[bytes]]:
    """The two files in pieces.

    Raises:
        TargetError: the executable is for another machine, or profile.
        UnsupportedError: a step of its plan runs where Python is, or in branches and loops; no C type is like one of
            its element types; or its name is no identifier of C.
    """
    model = model_of(executable, options)
    prefix = prefix_of(name)
    step = executable.manifest.steps[0]
    assert isinstance(step, Native)
    constants = _constants(executable, step.constants)
    header = _header(executable, prefix, model)

    def text() -> Iterator[bytes]:
        yield f'{_title(executable, prefix)}\n#include "{name}.h"\n'.encode()
        body = "\n".join(model.functions)
        yield "\n".join([_includes(body), *model.head]).encode()
        for k, array in enumerate(constants):
            what = f"{_type(array.dtype.name)} {prefix}_constant{k}[{max(1, array.size)}]"
            yield f"\nstatic const {what} WEFT_WORDS = {{\n".encode()
            yield from _elements(array)
            yield b"};\n"
        for function in model.functions:
            yield ("\n" + function.rstrip("\n") + "\n").encode()
        yield _run(prefix, model).encode()

    return {SUFFIX: text(), HEADER: iter([header.encode()])}


def model_of(executable: Executable, options: Mapping[str, str]) -> ModelText:
    """The text of a model's functions. Raises as `files`."""
    manifest = executable.manifest
    if manifest.machine != MACHINE:
        raise TargetError(
            f"'{manifest.name}' was compiled for {manifest.machine}",
            where=manifest.target,
            hint=f'compile it with -t "{target(options)}"',
        )
    if len(manifest.steps) != 1 or not isinstance(manifest.steps[0], Native) or manifest.plans:
        raise UnsupportedError(
            f"'{manifest.name}' cannot be a file of C: it has {len(manifest.steps)} steps",
            where="\n".join(map(str, manifest.steps[:20])),
            why="branches, loops, strings, pictures and sequences are handled by Weft's runtime",
            hint="cut the model before and behind them",
        )
    return ModelText.read(executable.stored().code[manifest.steps[0].section])


def prefix_of(name: str) -> str:
    """The name of a file as the beginning of names in C. Raises UnsupportedError."""
    prefix = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not re.fullmatch(r"[A-Za-z]\w*", prefix, re.ASCII):
        raise UnsupportedError(
            f"names of C cannot begin with '{name}'", why="they begin with a letter", hint="give the file another name"
        )
    return prefix


def report(executable: Executable, options: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Bytes of constants and of the caller's memory, and, where ziglang is installed, of code and stack on a
    Cortex-M4."""
    from weft_c.measure import measured

    model = model_of(executable, options)
    constants = sum(
        int(np.prod(c.shape, dtype=np.int64)) * np.dtype(c.dtype).itemsize for c in executable.manifest.constants
    )
    sizes = measured({k: b"".join(v) for k, v in files(executable, "model", options).items()})
    rows = [("constants", f"{constants} bytes of flash")]
    if sizes is None:
        rows.append(("code", "not measured: `pip install ziglang`"))
    else:
        rows += [("code", f"{sizes.code} bytes of flash ({sizes.processor})"), ("stack", f"{sizes.stack} bytes")]
    return [*rows, ("arena", f"{model.arena} bytes")]


# -- text -------------------------------------------------------------------------------------------------------------


def _includes(body: str) -> str:
    needed = [
        ("string.h", r"\bmemcpy\b"),
        ("math.h", r"\b(sqrt|floor|ceil|trunc|rint|fabs|copysign|fma|fmod)f?\(|INFINITY|NAN"),
    ]
    needed.append(("stdbool.h", r"\b(bool|true|false)\b"))
    return "".join(f"#include <{file}>\n" for file, words in needed if re.search(words, body))


def _title(executable: Executable, prefix: str) -> str:
    return f"/* {prefix}: written by `weft export -f c`, {executable.manifest.target} */"


def _run(prefix: str, model: ModelText) -> str:
    lines = [
        f"\nint32_t {prefix}_run(const {prefix}_in *in, const {prefix}_out *out, void *arena)\n{{",
        "  (void)arena;",
        *(f"  {call}" for call in model.calls),
        "  return 0;",
        "}\n",
    ]
    return "\n".join(lines).replace(PREFIX, prefix + "_")


def _header(executable: Executable, prefix: str, model: ModelText) -> str:
    guard = f"{prefix.upper()}_H"
    lines = [
        _title(executable, prefix),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "/* Bytes of memory that a call works in, and of which its address is a multiple. */",
        f"#define {prefix.upper()}_ARENA_BYTES {max(1, model.arena)}",
        f"#define {prefix.upper()}_ARENA_ALIGNMENT {ALIGNMENT}",
        "",
    ]
    for kind, infos in (("in", executable.inputs), ("out", executable.outputs)):
        fields = []
        for info in infos:
            shape = [int(d) for d in map(str, info.shape)]
            size = f"{prefix.upper()}_{field(info.name).upper()}_ELEMENTS"
            lines.append(f"#define {size} {int(np.prod(shape, dtype=np.int64))}")
            const = "const " if kind == "in" else ""
            shown = "".join(f"[{d}]" for d in shape) or "a number"
            fields.append(f"  {const}{_type(str(info.dtype))} *{field(info.name)}; /* {shown} */")
        lines += ["", "typedef struct {", *fields, f"}} {prefix}_{kind};", ""]
    lines += [
        "/* Computes the outputs of the inputs. Arrays hold their elements in rows; none may overlap another, or the",
        "   arena. Returns 0. */",
        f"int32_t {prefix}_run(const {prefix}_in *in, const {prefix}_out *out, void *arena);",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _type(dtype: str) -> str:
    from weft_c.dialect import MODEL

    try:
        return MODEL.types["uint8" if dtype == "bool" else dtype]
    except KeyError:
        raise UnsupportedError(f"no type of C holds {dtype}") from None


# -- constants --------------------------------------------------------------------------------------------------------


def _constants(executable: Executable, names: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """The constants of the model, by number."""
    data = b"".join(executable.stored().weights)
    if not names:
        return []
    size = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + size])
    infos = {c.name: c for c in executable.manifest.constants}
    found = []
    for name in names:
        begin, end = table[name]["data_offsets"]
        found.append(np.frombuffer(data[8 + size + begin : 8 + size + end], _numpy(infos[name].dtype)))
    return found


def _numpy(dtype: str) -> np.dtype[Any]:
    """The words that elements are written as."""
    from weft import dtypes as dt

    d = dt.dtype(dtype)
    if d.is_bool:
        return np.dtype(np.uint8)
    if d.name in ("float32", "float64") or d.is_integer:
        return np.dtype(d.numpy)
    raise UnsupportedError(f"constants of {dtype} are not written as C")


def _elements(array: np.ndarray[Any, Any]) -> Iterator[bytes]:
    """Literals, some in a line."""
    suffix = "f" if array.dtype == np.float32 else ""
    if array.dtype.kind == "f":
        words = [_float(float(x), array.dtype, suffix) for x in array]
    else:
        least, end = (np.iinfo(array.dtype).min, {"u": "U"}.get(array.dtype.kind, ""))
        end += "LL" if array.dtype.itemsize == 8 else ""
        words = [
            f"({int(x) + 1}{end} - 1)" if int(x) == least and least < -(1 << 15) else f"{int(x)}{end}" for x in array
        ]
    line = " "
    for word in words or ["0"]:
        if len(line) + len(word) + 2 > _COLUMNS:
            yield (line + "\n").encode()
            line = " "
        line += f" {word},"
    yield (line + "\n").encode()


def _float(x: float, dtype: np.dtype[Any], suffix: str) -> str:
    if x != x or x in (float("inf"), float("-inf")):
        raise UnsupportedError(f"a constant has the value {x}", why="C has no literal for it")
    text = repr(x) if dtype == np.float64 else str(np.float32(x))
    return (text if any(c in text for c in ".e") else text + ".0") + suffix


__all__ = ["files", "report", "target"]
