"""A segment as C: `int32_t run(weft_context *ctx, const weft_tensor *const *in, weft_tensor *const *out)`, one statement after another.

Whatever fails writes a code and its arguments into the context and returns the code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.codegen.base import THREADS
from weft.codegen.c_family import OVER, SizeFormulas, identifier
from weft.codegen.segment import (
    INT64,
    AllocateOutput,
    BindData,
    BindSymbol,
    Check,
    Constant,
    Data,
    Input,
    InputDim,
    Item,
    KernelCall,
    Output,
    SegmentSpec,
    Stamp,
    leading_checks,
    narrowed,
    range_of_data,
)  # fmt: skip
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.ranges import Range
from weft_c.dialect import C
from weft_runtime.abi import ERROR_ARGS, FUNCTIONS, STRUCTURES, ErrorCode, dlpack_type
from weft_runtime.header import declarations

# In the order in which they stand; each is there where it is called.
_HELPERS = {
    "fail": """
static inline int32_t fail(weft_context *ctx, int32_t code, int count, const int64_t *args) {
  ctx->error_code = code;
  for (int k = 0; k < count; ++k) ctx->error_args[k] = args[k];
  return code;
}
""",
    "failed_kernel": f"""
static inline int32_t failed_kernel(weft_context *ctx, int64_t item, int32_t status) {{
  if (ctx->error_code == 0) {{
    ctx->error_code = {int(ErrorCode.KERNEL)};
    ctx->error_args[0] = item;
    ctx->error_args[1] = status;
  }}
  return status;
}}
""",
    "is": """
static inline bool is(const weft_tensor *t, int32_t rank, uint8_t code, uint8_t bits) {
  return t->ndim == rank && t->code == code && t->bits == bits && t->lanes == 1;
}
""",
    "reserve": """
static inline bool reserve(weft_context *ctx, int64_t bytes) {
  return ctx->arena_bytes >= bytes || ctx->allocate_arena(ctx, bytes) != NULL;
}
""",
    "ticks": """
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
""",
}
_NAMES = ("ctx", "in", "out", *(s.name for s in STRUCTURES), *(f.name for f in FUNCTIONS), *_HELPERS, "buffers", "dims", "size", "status", "run")


def emit_segment(spec: SegmentSpec) -> str:
    """C text of the segment; kernels are declared, not defined.

    Raises:
        CodegenError: for a spec that uses a symbol, buffer or output before it exists, or a formula that has no integer form.
    """
    return _Emitter(spec).emit()


class _Emitter:
    def __init__(self, spec: SegmentSpec) -> None:
        self.spec = spec
        self.sizes = SizeFormulas(C, (*_NAMES, *(identifier(k, C.words) for k in spec.kernels())))
        self.lines: list[str] = []
        self.sources = {s.name: s.source for s in spec.symbols}
        self.allocated: set[int] = set()
        self.pending = [(i, axis, d) for i, t in enumerate(spec.inputs) for axis, d in enumerate(t.dims)]
        self.number = -1  # of the item at hand
        self.exact = 0  # lines of which none may have left int64

    # -- text

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def expect_exact(self) -> None:
        """Ends the run where a formula of the lines since the last time has left int64."""
        if any(f"&{OVER}" in line for line in self.lines[self.exact :]):
            self.line(f"if ({OVER}) return fail(ctx, {int(ErrorCode.OVERFLOW)}, 1, (const int64_t[]){{{self.number}}});")
        self.exact = len(self.lines)

    def fail_unless(self, cond: str, code: int, args: Sequence[str]) -> None:
        if len(args) > ERROR_ARGS:
            raise CodegenError(f"a check has {len(args)} arguments, at most {ERROR_ARGS} fit", where=self.spec.name)
        given = f"(const int64_t[]){{{', '.join(args)}}}" if args else "NULL"
        self.line(f"if (!({cond})) return fail(ctx, {int(code)}, {len(args)}, {given});")

    def formula(self, e: ex.Expr) -> str:
        """`e` here. Raises CodegenError if a symbol in it is not bound, or if it is not of integers."""
        lines, text = self.sizes.text(e)
        for line in lines:
            self.line(line)
        return text

    def bind(self, name: str, text: str, values: Range) -> None:
        """A new symbol."""
        self.line(f"const int64_t {self.sizes.bind(name, values)} = {text};")
        self.expect_exact()

    # -- inputs

    def bind_inputs(self) -> None:
        for i, t in enumerate(self.spec.inputs):
            code, bits = dlpack_type(t.dtype)
            kind = f"in[{i}]->code | in[{i}]->bits << 8 | in[{i}]->lanes << 16"
            self.fail_unless(f"is(in[{i}], {len(t.dims)}, {code}, {bits})", ErrorCode.INPUT_TYPE, (str(i), f"in[{i}]->ndim", kind))
        for symbol in self.spec.symbols:
            if isinstance(symbol.source, InputDim):
                self.bind(symbol.name, f"in[{symbol.source.input}]->shape[{symbol.source.axis}]", INT64)
        self.check_dims()
        later = {i.symbol for i in self.spec.items if isinstance(i, BindData)}
        for symbol in self.spec.symbols:
            if isinstance(symbol.source, Data) and symbol.name not in later:
                if not 0 <= symbol.source.buffer < len(self.spec.buffers) or not isinstance(self.spec.buffers[symbol.source.buffer], (Input, Constant)):
                    raise CodegenError(
                        f"data symbol '{symbol.name}' of segment '{self.spec.name}' is never bound", hint="put a BindData after the kernel that computes it"
                    )
                self.bind_data(symbol.name)
        self.check_dims()

    def bind_data(self, name: str) -> None:
        source = self.sources.get(name)
        if not isinstance(source, Data):
            raise CodegenError(f"'{name}' is no data symbol of segment '{self.spec.name}'")
        if not (source.dtype.is_bool or (source.dtype.is_integer and source.dtype.bits >= 8)):
            raise CodegenError(f"data symbol '{name}' has dtype {source.dtype}", where=self.spec.name, hint="convert it to int64 in a kernel")
        ref = self.spec.buffers[source.buffer] if 0 <= source.buffer < len(self.spec.buffers) else None
        if isinstance(ref, Input):
            # Reading beyond a tensor that the caller made too small must be an error, not a wild read.
            self.check_dims()
            count = " * ".join(f"in[{ref.index}]->shape[{axis}]" for axis in range(len(self.spec.inputs[ref.index].dims))) or "1"
            self.fail_unless(f"{count} > {source.index}", ErrorCode.DATA_SIZE, (str(ref.index), str(source.index), count))
        kind = self.sizes.type(source.dtype)
        self.bind(name, f"(({kind} *)({self.pointer(source.buffer)}))[{source.index}]", range_of_data(source.dtype))

    def check_dims(self) -> None:
        """Compares every input dimension whose formula has become known."""
        waiting = []
        for index, axis, expected in self.pending:
            if not self.sizes.knows(expected):
                waiting.append((index, axis, expected))
                continue
            got = f"in[{index}]->shape[{axis}]"
            if isinstance(expected, ex.Var) and self.sources.get(expected.name) == InputDim(index, axis):
                continue
            self.line(f"size = {self.formula(expected)};")
            self.expect_exact()
            self.fail_unless(f"size == {got}", ErrorCode.INPUT_SIZE, (str(index), str(axis), "size", got))
        self.pending = waiting

    # -- buffers

    def pointer(self, index: int) -> str:
        if not 0 <= index < len(self.spec.buffers):
            raise CodegenError(f"segment '{self.spec.name}' has no buffer {index}", why=f"its table has {len(self.spec.buffers)}")
        ref = self.spec.buffers[index]
        if isinstance(ref, Input):
            return f"(char *)in[{ref.index}]->data + in[{ref.index}]->byte_offset"
        if isinstance(ref, Output):
            if ref.index not in self.allocated:
                raise CodegenError(f"output {ref.index} of segment '{self.spec.name}' is used before it is allocated", hint="put its AllocateOutput first")
            return f"(char *)out[{ref.index}]->data + out[{ref.index}]->byte_offset"
        if isinstance(ref, Constant):
            if not 0 <= ref.index < self.spec.constants:
                raise CodegenError(f"segment '{self.spec.name}' has no constant {ref.index}", why=f"it has {self.spec.constants}")
            return f"ctx->constants[{ref.index}]"
        if isinstance(ref.bytes, ex.Const) and ref.bytes.value == 0:
            return "NULL"  # no element, so nobody reads or writes there
        return f"(char *)ctx->arena + {self.formula(ref.offset)}"

    def reserve(self, size: ex.Expr) -> None:
        need = self.formula(size)
        if need != "0":
            self.line(f"size = {need};")
            self.expect_exact()
            self.fail_unless("reserve(ctx, size)", ErrorCode.ARENA, ("size",))

    # -- items

    def check(self, item: Check) -> None:
        cond = self.formula(item.cond)
        args = [self.formula(a) for a in item.args]
        for k, arg in enumerate(args):
            if f"&{OVER}" in arg:  # what the error says of it, not a reason for one
                self.line(f"bool beyond{self.number}_{k} = false;")
                self.line(f"const int64_t arg{self.number}_{k} = {arg.replace(f'&{OVER}', f'&beyond{self.number}_{k}')};")
                args[k] = f"beyond{self.number}_{k} ? INT64_MAX : arg{self.number}_{k}"
        self.fail_unless(f"({cond}) && !{OVER}" if any(f"&{OVER}" in t for t in (cond, *self.lines[self.exact :])) else cond, item.code, args)
        self.exact = len(self.lines)
        self.sizes.suppose(narrowed(self.sizes.ranges, item.cond))

    def item(self, item: Item, number: int) -> None:
        self.number = number
        match item:
            case KernelCall():
                self.call(item, number)
            case BindSymbol():
                self.bind(item.name, self.formula(item.value), self.sizes.range(item.value))
                self.check_dims()
            case BindData():
                self.bind_data(item.symbol)
                self.check_dims()
            case Check():
                self.check(item)
            case AllocateOutput():
                self.allocate(item)
            case Stamp():
                self.line(f"((int64_t *)({self.pointer(item.buffer)}))[{item.index}] = ticks();")
            case _:
                self.reserve(item.bytes)

    def call(self, item: KernelCall, number: int) -> None:
        for slot, buffer in enumerate(item.buffers):
            self.line(f"buffers[{slot}] = {self.pointer(buffer)};")
        for slot, dim in enumerate(item.dims):
            self.line(f"dims[{slot}] = {self.formula(dim)};")
        self.expect_exact()
        self.line(f"if ((status = {identifier(item.kernel, C.words)}(ctx, buffers, dims)) != 0) return failed_kernel(ctx, {number}, status);")

    def allocate(self, item: AllocateOutput) -> None:
        k, rank = item.index, len(item.shape)
        if not 0 <= k < len(self.spec.outputs):
            raise CodegenError(f"segment '{self.spec.name}' has no output {k}")
        for axis, dim in enumerate(item.shape):
            self.line(f"dims[{axis}] = {self.formula(dim)};")
        self.expect_exact()
        self.line(f"if (out[{k}]->data == NULL) {{")
        self.fail_unless(f"ctx->allocate_output(ctx, {k}, {rank}, dims) == 0", ErrorCode.OUTPUT_ALLOCATION, (str(k),))
        self.line("} else {")
        code, bits = dlpack_type(self.spec.outputs[k].dtype)
        self.fail_unless(f"is(out[{k}], {rank}, {code}, {bits})", ErrorCode.OUTPUT_SIZE, (str(k), "-1", str(rank), f"out[{k}]->ndim"))
        for axis in range(rank):
            got = f"out[{k}]->shape[{axis}]"
            self.fail_unless(f"dims[{axis}] == {got}", ErrorCode.OUTPUT_SIZE, (str(k), str(axis), f"dims[{axis}]", got))
        self.line("}")
        self.allocated.add(k)

    def emit(self) -> str:
        spec = self.spec
        calls = [i for i in spec.items if isinstance(i, KernelCall)]
        slots = max([1] + [len(i.buffers) for i in calls])
        dims = max([1] + [len(i.dims) for i in calls] + [len(i.shape) for i in spec.items if isinstance(i, AllocateOutput)])
        threads = self.sizes.bind(THREADS.name)
        self.bind_inputs()
        first = leading_checks(spec.items)
        for number, item in enumerate(spec.items):
            if number == first:
                self.reserve(spec.arena_bytes)
            self.item(item, number)
        if first == len(spec.items):
            self.reserve(spec.arena_bytes)
        for index, axis, expected in self.pending:
            raise CodegenError(
                f"dimension {axis} of input '{spec.inputs[index].name}' is never known", where=str(expected), why="a symbol in it is never bound"
            )
        text = [f"// segment {spec.name}", *C.header, "#include <stddef.h>", declarations()]
        called = set(re.findall(r"\b(\w+)\(", "\n".join(self.lines)))
        text += [function for name, function in _HELPERS.items() if name in called]
        text += self.sizes.definitions()
        text += [C.kernel.format(name=identifier(k, C.words)) + ";" for k in spec.kernels()]
        text += ['__attribute__((visibility("default"))) int32_t run(weft_context *ctx, const weft_tensor *const *in, weft_tensor *const *out) {']
        text += [f"  void *buffers[{slots}];", f"  int64_t dims[{dims}] = {{0}};", "  int32_t status = 0;"]
        text += [f"  int64_t size = 0;\n  bool {OVER} = false;"]
        text += [f"  const int64_t {threads} = ctx->threads > 1 ? ctx->threads : 1;", "  (void)in, (void)out, (void)buffers, (void)dims, (void)status;"]
        text += [f"  (void)size, (void){OVER};"]
        text += [f"  (void){threads};", *self.lines, "  return 0;", "}"]
        return "\n".join(text) + "\n"
