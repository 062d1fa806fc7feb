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
)
from weft_runtime.formulas import DEEPEST

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
"""  # noqa: E501

_FORMULAS = """/* What weft_formula returns. */
enum { WEFT_FORMULA_OK = 0, WEFT_FORMULA_OVERFLOW = 1, WEFT_FORMULA_DIVISION = 2, WEFT_FORMULA_MALFORMED = 3 };

/* One operation of two numbers; `name` is that of the operator. */
static inline int weft_formula_apply(const char *name, int64_t a, int64_t b, int64_t *result) {
  const int equal = name[1] == '=';
  switch (name[0]) {
    case '+':
      if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) return WEFT_FORMULA_OVERFLOW;
      return *result = a + b, WEFT_FORMULA_OK;
    case '-':
      if (b < 0 ? a > INT64_MAX + b : a < INT64_MIN + b) return WEFT_FORMULA_OVERFLOW;
      return *result = a - b, WEFT_FORMULA_OK;
    case '*':
      if (a > 0 ? (b > 0 ? a > INT64_MAX / b : b < INT64_MIN / a) : (b > 0 ? a < INT64_MIN / b : a != 0 && b < INT64_MAX / a)) return WEFT_FORMULA_OVERFLOW;
      return *result = a * b, WEFT_FORMULA_OK;
    case '<':
      return *result = equal ? a <= b : a < b, WEFT_FORMULA_OK;
    case '=':
      return *result = a == b, WEFT_FORMULA_OK;
    case '!':
      return *result = a != b, WEFT_FORMULA_OK;
    case 'm':
      return *result = (name[1] == 'i') == (a < b) ? a : b, WEFT_FORMULA_OK;
    default: { /* "/" and "%" round down, "truncdiv" and "truncmod" towards zero */
      const int remainder = name[0] == '%' || (name[0] == 't' && name[5] == 'm');
      if (b == 0) return WEFT_FORMULA_DIVISION;
      if (b == -1) {
        if (a == INT64_MIN && !remainder) return WEFT_FORMULA_OVERFLOW;
        return *result = remainder ? 0 : -a, WEFT_FORMULA_OK;
      }
      *result = remainder ? a % b : a / b;
      if (name[0] != 't' && a % b != 0 && (a < 0) != (b < 0)) *result += remainder ? b : -1;
      return WEFT_FORMULA_OK;
    }
  }
}

/* The operator that `code` begins with, and how many of its characters are the operator's; -1 for none. */
static inline int weft_formula_operator(const char *code, const char **name, int *operands) {
  static const char names[][9] = {
      "+", "-", "*", "//", "%", "truncdiv", "truncmod", "min", "max", "<", "<=", "==", "!=", "and", "or", "not", "neg", "select"};
  for (int k = 0; k < (int)(sizeof names / sizeof names[0]); ++k) {
    int n = 0;
    while (names[k][n] != 0 && names[k][n] == code[n]) ++n;
    if (names[k][n] == 0 && (code[n] == ' ' || code[n] == 0)) {
      *name = names[k];
      *operands = k < 15 ? 2 : k < 17 ? 1 : 3;
      return n;
    }
  }
  return -1;
}

/* The value of a size formula of a manifest, which is postfix code; symbol number k has the value symbols[k]. */
static inline int weft_formula(const char *code, const int64_t *symbols, int64_t count, int64_t *result) {
  int64_t value[<DEEPEST>];
  int error[<DEEPEST>], depth = 0; /* an operand that is an error only counts where it is asked for */
  for (const char *at = code;; ++at) {
    const char *name = "";
    int operands = 0, length = weft_formula_operator(at, &name, &operands);
    if (length > 0) {
      at += length;
      depth -= operands;
      if (depth < 0) return WEFT_FORMULA_MALFORMED;
      int64_t *const v = value + depth;
      int *const e = error + depth;
      if (operands == 3) { /* select */
        const int chosen = e[0] != 0 ? 0 : v[0] != 0 ? 1 : 2;
        v[0] = v[chosen];
        e[0] = e[chosen];
      } else if (operands == 1 && e[0] == 0) {
        if (name[1] == 'o') v[0] = v[0] == 0; /* not */
        else e[0] = weft_formula_apply("-", 0, v[0], v);
      } else if (operands == 2 && (name[0] == 'a' || name[0] == 'o')) { /* and, or */
        const int chosen = e[0] != 0 || (v[0] != 0) == (name[0] == 'o') ? 0 : 1;
        v[0] = v[chosen] != 0;
        e[0] = e[chosen];
      } else if (operands == 2 && e[0] == 0) {
        e[0] = e[1] != 0 ? e[1] : weft_formula_apply(name, v[0], v[1], v);
      }
      ++depth;
    } else {
      const int symbol = *at == '$', negative = *at == '-';
      int64_t n = 0; /* negative numbers reach one further */
      if (depth == <DEEPEST>) return WEFT_FORMULA_MALFORMED;
      at += symbol || negative;
      if (*at < '0' || *at > '9' || (*at == '0' && ((at[1] >= '0' && at[1] <= '9') || negative))) return WEFT_FORMULA_MALFORMED;
      for (; *at >= '0' && *at <= '9'; ++at) {
        const int digit = *at - '0';
        if (n < (INT64_MIN + digit) / 10) return WEFT_FORMULA_MALFORMED;
        n = n * 10 - digit;
      }
      if (!negative && n == INT64_MIN) return WEFT_FORMULA_MALFORMED;
      if (!negative) n = -n;
      if (symbol && n >= count) return WEFT_FORMULA_MALFORMED;
      value[depth] = symbol ? symbols[n] : n;
      error[depth++] = WEFT_FORMULA_OK;
    }
    if (*at == 0) break;
    if (*at != ' ') return WEFT_FORMULA_MALFORMED;
  }
  if (depth != 1) return WEFT_FORMULA_MALFORMED;
  if (error[0] == 0) *result = value[0];
  return error[0];
}
"""  # noqa: E501


def abi_header() -> str:
    """The text of `weft_abi.h`: C99 and C++11, with static assertions on every offset from C11 and C++11 on."""
    parts = [
        _HEAD,
        _error_codes(),
        _imports(),
        declarations(),
        _FORMULAS.replace("<DEEPEST>", str(DEEPEST)),
        _assertions(),
        "#endif\n",
    ]
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
    return (
        "/* ctx->error_code; from WEFT_FIRST_CHECK on the manifest has the text. */\nenum {\n"
        + "\n".join(lines)
        + "\n};\n"
    )


def _imports() -> str:
    lines = [f"  WEFT_IMPORT_{name} = {k}," for k, name in enumerate(IMPORTS)]
    return (
        "/* Places in ctx->imports. */\nenum {\n" + "\n".join([*lines, f"  WEFT_IMPORTS = {len(IMPORTS)}"]) + "\n};\n"
    )


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
        lines += [
            f"WEFT_HOLDS(offsetof(struct {s.name}, {f.name}) == WEFT_AT({wide[f.name]}, {narrow[f.name]}));"
            for f in s.fields
        ]
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
