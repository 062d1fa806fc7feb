"""A segment as C: `int32_t run(weft_context *ctx, const weft_tensor *const *in, weft_tensor *const *out)`, one
statement after another.

Whatever fails writes a code and its arguments into the context and returns the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from weft.codegen.build_segment import build_segment
from weft.codegen.segment import SegmentSpec
from weft.codegen.steps import (
    IN,
    OUT,
    Advance,
    AllocateArena,
    AllocateStorage,
    CallKernel,
    Checked,
    Compute,
    If,
    LoadElement,
    LoadField,
    Operand,
    Require,
    Step,
    StoreElement,
    Ticks,
    TypeWord,
    Value,
)
from weft_c.dialect import C
from weft_c_family import identifier
from weft_runtime.abi import ErrorCode
from weft_runtime.header import declarations

# In the order in which they stand; each is there where it is called.
_HELPERS = {
    "fail": (
        """
static inline int32_t fail(weft_context *ctx, int32_t code, int count, const int64_t *args) {
  ctx->error_code = code;
  for (int k = 0; k < count; ++k) ctx->error_args[k] = args[k];
  return code;
}
"""
    ),
    "failed_kernel": (
        f"""
static inline int32_t failed_kernel(weft_context *ctx, int64_t item, int32_t status) {{
  if (ctx->error_code == 0) {{
    ctx->error_code = {int(ErrorCode.KERNEL)};
    ctx->error_args[0] = item;
    ctx->error_args[1] = status;
  }}
  return status;
}}
"""
    ),
    "type_word": (
        """
static inline int64_t type_word(const weft_tensor *t) {
  return (int64_t)((uint32_t)t->ndim | (uint64_t)t->code << 32 | (uint64_t)t->bits << 40 | (uint64_t)t->lanes << 48);
}
"""
    ),
    "add_beyond": (
        """
static inline bool add_beyond(int64_t a, int64_t b) { return b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b; }
"""
    ),
    "sub_beyond": (
        """
static inline bool sub_beyond(int64_t a, int64_t b) { return b < 0 ? a > INT64_MAX + b : a < INT64_MIN + b; }
"""
    ),
    "mul_beyond": (
        """
static inline bool mul_beyond(int64_t a, int64_t b) {
  if (a > 0) return b > 0 ? a > INT64_MAX / b : b < INT64_MIN / a;
  return b > 0 ? a < INT64_MIN / b : a != 0 && b < INT64_MAX / a;
}
"""
    ),
    "ticks": (
        """
static inline int64_t ticks(void) {
#if defined(__x86_64__) || defined(__i386__)
  return (int64_t)__builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  int64_t now;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
#error "there is no clock to read on this processor"
#endif
}
"""
    ),
}
_TYPES = {"int": "const int64_t", "bool": "const bool", "pointer": "char *const"}
_WRAPPING = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "shl": "<<",
    "ushr": ">>",
    "udiv": "/",
    "urem": "%",
    "ult": "<",
    "ule": "<=",
}
_PLAIN = {
    "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^", "shr": ">>", "lt": "<", "le": "<=", "eq": "==",
    "ne": "!=", "both": "&&", "either": "||",
}  # fmt: skip


def emit_segment(spec: SegmentSpec) -> str:
    """C text of the segment; kernels are declared, not defined.

    Raises:
        CodegenError: as `build_segment`.
    """
    steps = build_segment(spec)
    kernels = {k: identifier(k, C.words) for k in steps.kernels}
    lines = _Printer(kernels).block(steps.body, "  ")
    text = [f"// segment {spec.name}", *C.header, "#include <stddef.h>", declarations()]
    called = set(re.findall(r"\b(\w+)\(", "\n".join(lines)))
    text += [function for name, function in _HELPERS.items() if name in called]
    text += [C.kernel.format(name=name) + ";" for name in kernels.values()]
    text += [
        '__attribute__((visibility("default"))) int32_t run(weft_context *ctx, const weft_tensor *const *in,'
        " weft_tensor *const *out) {"
    ]
    text += [f"  void *buffers[{steps.buffers}];", f"  int64_t dims[{steps.dims}] = {{0}};", "  int32_t status = 0;"]
    text += ["  (void)ctx, (void)in, (void)out, (void)buffers, (void)dims, (void)status;", *lines, "  return 0;", "}"]
    return "\n".join(text) + "\n"


class _Printer:
    def __init__(self, kernels: dict[str, str]) -> None:
        self.kernels = kernels
        self.prefix = "_" if any(re.fullmatch(r"v\d+", k) for k in kernels.values()) else ""

    def block(self, steps: Iterable[Step], indent: str) -> list[str]:
        lines: list[str] = []
        for step in steps:
            if isinstance(step, If):
                lines += [f"{indent}if ({self.of(step.cond)}) {{", *self.block(step.then, indent + "  ")]
                lines += [f"{indent}}} else {{", *self.block(step.orelse, indent + "  ")] if step.orelse else []
                lines.append(indent + "}")
            else:
                lines.append(f"{indent}{self.statement(step)};")
        return lines

    def of(self, value: Operand) -> str:
        if isinstance(value, Value):
            return self.prefix * bool(re.fullmatch(r"v\d+", value.name)) + value.name
        if value is None or isinstance(value, bool):
            return "NULL" if value is None else str(value).lower()
        return str(value) if value >= 0 else "INT64_MIN" if value == -(1 << 63) else f"({value})"

    def numbers(self, args: tuple[Operand, ...]) -> str:
        return f"{len(args)}, " + (f"(const int64_t[]){{{', '.join(map(self.of, args))}}}" if args else "NULL")

    def statement(self, step: Step) -> str:
        match step:
            case Checked(result, beyond, op, a, b):
                test = f"{_TYPES['bool']} {self.of(beyond)} = {op}_beyond({self.of(a)}, {self.of(b)})"
                return f"{test};\n  {self.statement(Compute(result, op, (a, b)))}"
            case StoreElement(base, _, index, value):
                array = self.of(base) if base.name in ("buffers", "dims") else f"((int64_t *){self.of(base)})"
                return f"{array}[{index}] = {self.of(value)}"
            case Require(cond, code, args):
                return f"if (!{self.of(cond)}) return fail(ctx, {code}, {self.numbers(args)})"
            case CallKernel(kernel, item):
                return (
                    f"if ((status = {self.kernels[kernel]}(ctx, buffers, dims)) != 0) return failed_kernel(ctx, {item},"
                    " status)"
                )
            case If():
                raise AssertionError("a branch is more than a statement")
        return f"{_TYPES[step.result.kind]} {self.of(step.result)} = {self.value(step)}"

    def value(self, step: Step) -> str:
        match step:
            case Compute():
                return self.computed(step)
            case LoadField(_, base, structure, field):
                cast = "" if base.name == "ctx" else f"(const {structure.name} *)"
                loaded = f"({cast}{self.of(base)})->{field}"
                return f"(char *){loaded}" if step.result.kind == "pointer" else f"(int64_t){loaded}"
            case TypeWord(_, tensor):
                return f"type_word((const weft_tensor *){self.of(tensor)})"
            case LoadElement(_, base, kind, index):
                if base in (IN, OUT):
                    return f"(char *){self.of(base)}[{index}]"
                if kind == "pointer":
                    return f"((char *)((void *const *){self.of(base)})[{index}])"
                return f"(int64_t)((const {C.types[kind]} *){self.of(base)})[{index}]"
            case Advance(_, base, bytes_):
                return f"{self.of(base)} + {self.of(bytes_)}"
            case AllocateArena(_, bytes_):
                return f"(char *)ctx->allocate_arena(ctx, {self.of(bytes_)})"
            case AllocateStorage(_, output, rank):
                return f"ctx->allocate_output(ctx, {output}, {rank}, dims)"
            case Ticks():
                return "ticks()"
        raise AssertionError(step)

    def computed(self, step: Compute) -> str:
        given = [self.of(o) for o in step.operands]
        if step.op in _WRAPPING:
            text = f"(uint64_t){given[0]} {_WRAPPING[step.op]} (uint64_t){given[1]}"
            return text if step.result.kind == "bool" else f"(int64_t)({text})"
        if step.op == "select":
            return f"{given[0]} ? {given[1]} : {given[2]}"
        return (
            f"{given[0]} {_PLAIN[step.op]} {given[1]}"
            if step.op in _PLAIN
            else f"!{given[0]}"
            if step.op == "not"
            else given[0]
        )
