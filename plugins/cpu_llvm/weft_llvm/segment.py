"""A segment as LLVM IR: `int32 run(ctx*, const DLTensor* const* in, DLTensor* const* out)`.

The function is a straight line of blocks: every value computed dominates what follows. Anything that fails branches to
a block at the end that writes code and arguments into the context.
"""

from __future__ import annotations

import math

from weft.codegen.build_segment import build_segment
from weft.codegen.segment import SegmentSpec
from weft.codegen.steps import (
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
    Steps,
    StoreElement,
    Ticks,
    TypeWord,
    Value,
)
from weft.dtypes import dtype
from weft.errors import CodegenError
from weft_llvm.pool import COUNTERS
from weft_runtime.abi import CONTEXT, POINTER, TENSOR, ByteOrder, ErrorCode

_TYPES = {"int": "i64", "bool": "i1", "pointer": "ptr"}
_OPS = {"shr": "ashr", "ushr": "lshr", "div": "sdiv", "rem": "srem", "both": "and", "either": "or"}
_COMPARE = {"lt": "slt", "le": "sle", "ult": "ult", "ule": "ule", "eq": "eq", "ne": "ne"}


def emit_segment(
    spec: SegmentSpec,
    entry: str = "run",
    architecture: str = "x86_64",
    pointer: int = POINTER,
    order: ByteOrder = "little",
) -> str:
    """LLVM IR text of the segment, without target triple and data layout; kernels are declared, not defined.

    Args:
        pointer: bytes of a pointer, 4 or 8.
        order: of a number's bytes in memory.

    Raises:
        CodegenError: as `build_segment`, or for a stamp where there is no clock.
    """
    return _Printer(build_segment(spec), architecture, pointer, order).text(entry)


def _quote(name: str) -> str:
    return (
        '@"'
        + "".join(chr(b) if (chr(b).isalnum() and b < 128) or chr(b) in "._-$" else f"\\{b:02X}" for b in name.encode())
        + '"'
    )


def _operand(value: Operand) -> str:
    if isinstance(value, Value):
        return f"%{value.name}"
    return "null" if value is None else str(value).lower()


def _type(value: Operand) -> str:
    return (
        _TYPES[value.kind]
        if isinstance(value, Value)
        else "ptr"
        if value is None
        else "i1"
        if isinstance(value, bool)
        else "i64"
    )


class _Printer:
    def __init__(self, steps: Steps, architecture: str, pointer: int, order: ByteOrder) -> None:
        self.steps, self.architecture, self.pointer, self.order = steps, architecture, pointer, order
        self.context, self.tensor = CONTEXT.offsets(pointer), TENSOR.offsets(pointer)
        self.lines: list[str] = []
        self.tail: list[str] = []
        self.count = 0
        self.block = "entry"
        self.failed: list[
            tuple[str, str, int]
        ] = []  # what a kernel returned, the block that it was called in, its item

    def do(self, text: str) -> None:
        self.lines.append("  " + text)

    def new(self, text: str) -> str:
        self.count += 1
        self.do(f"%t{self.count} = {text}")
        return f"%t{self.count}"

    def label(self) -> str:
        self.count += 1
        return f"b{self.count}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def at(self, base: str, offset: int | str) -> str:
        return base if offset == 0 else self.new(f"getelementptr i8, ptr {base}, i64 {offset}")

    def size(self, kind: str) -> int:
        """Bytes of a pointer or an integer type."""
        return self.pointer if kind == "pointer" else dtype(kind).bytes

    def load(self, result: Value, kind: str, at: str) -> None:
        """A number or pointer in memory: `kind` is pointer or an integer type."""
        size = self.size(kind)
        if kind == "pointer" or size == 8:
            self.do(f"%{result.name} = load {_TYPES[result.kind]}, ptr {at}, align {size}")
        else:
            narrow = self.new(f"load i{8 * size}, ptr {at}, align {size}")
            self.do(f"%{result.name} = {'zext' if kind.startswith('u') else 'sext'} i{8 * size} {narrow} to i64")

    def print(self, step: Step) -> None:
        match step:
            case Compute():
                self.compute(step)
            case Checked(result, beyond, op, a, b):
                pair = self.new(f"call {{i64, i1}} @llvm.s{op}.with.overflow.i64(i64 {_operand(a)}, i64 {_operand(b)})")
                self.do(f"%{result.name} = extractvalue {{i64, i1}} {pair}, 0")
                self.do(f"%{beyond.name} = extractvalue {{i64, i1}} {pair}, 1")
            case LoadField(result, base, structure, field):
                kind = next(f.kind for f in structure.fields if f.name == field)
                self.load(result, kind, self.at(_operand(base), structure.offsets(self.pointer)[field]))
            case TypeWord(result, tensor):
                self.type_word(result, _operand(tensor))
            case LoadElement(result, base, kind, index):
                self.load(result, kind, self.at(_operand(base), index * self.size(kind)))
            case StoreElement(base, kind, index, value):
                size = self.size(kind)
                at = self.at(_operand(base), size * index)
                self.do(f"store {_type(value)} {_operand(value)}, ptr {at}, align {size}")
            case Advance(result, base, bytes_):
                self.do(f"%{result.name} = getelementptr i8, ptr {_operand(base)}, i64 {_operand(bytes_)}")
            case If():
                self.branch(step)
            case Require():
                self.require(step)
            case AllocateArena(result, bytes_):
                function = self.function("allocate_arena")
                self.do(f"%{result.name} = call ptr {function}(ptr %ctx, i64 {_operand(bytes_)})")
            case AllocateStorage(result, output, rank):
                function = self.function("allocate_output")
                status = self.new(f"call i32 {function}(ptr %ctx, i64 {output}, i64 {rank}, ptr %dims)")
                self.do(f"%{result.name} = sext i32 {status} to i64")
            case CallKernel(kernel, item):
                code = self.new(f"call i32 {_quote(kernel)}(ptr %ctx, ptr %buffers, ptr %dims)")
                good, on = self.new(f"icmp eq i32 {code}, 0"), self.label()
                self.do(f"br i1 {good}, label %{on}, label %kernel_failed, !prof !0")
                self.failed.append((code, self.block, item))
                self.start(on)
            case Ticks(result):
                if self.architecture not in COUNTERS:
                    hint = "known: " + ", ".join(COUNTERS)
                    raise CodegenError(
                        f"there is no clock to read on {self.architecture}", where=self.steps.name, hint=hint
                    )
                self.do(f"%{result.name} = call i64 @{COUNTERS[self.architecture]}()")

    def type_word(self, result: Value, tensor: str) -> None:
        """The fields from `ndim` on, the first one lowest."""
        first = self.tensor["ndim"]
        if self.order == "little":
            self.do(f"%{result.name} = load i64, ptr {self.at(tensor, first)}, align {math.gcd(first, 8)}")
            return
        word = ""
        for field in ("ndim", "code", "bits", "lanes"):
            size, place = next(self.size(f.kind) for f in TENSOR.fields if f.name == field), self.tensor[field]
            part = self.new(f"load i{8 * size}, ptr {self.at(tensor, place)}, align {size}")
            wide = self.new(f"zext i{8 * size} {part} to i64")
            moved = self.new(f"shl i64 {wide}, {8 * (place - first)}")
            word = self.new(f"or i64 {word}, {moved}") if word else moved
        self.do(f"%{result.name} = add i64 {word}, 0")

    def function(self, field: str) -> str:
        """A function that the context has."""
        return self.new(f"load ptr, ptr {self.at('%ctx', self.context[field])}, align {self.pointer}")

    def compute(self, step: Compute) -> None:
        given = [_operand(o) for o in step.operands]
        if step.op in _COMPARE:
            kind = next((_type(o) for o in step.operands if isinstance(o, Value)), _type(step.operands[0]))
            text = f"icmp {_COMPARE[step.op]} {kind} {given[0]}, {given[1]}"
        elif step.op == "select":
            text = f"select i1 {given[0]}, {_TYPES[step.result.kind]} {given[1]}, {_TYPES[step.result.kind]} {given[2]}"
        elif step.op == "not":
            text = f"xor i1 {given[0]}, true"
        elif step.op == "int":
            text = f"zext i1 {given[0]} to i64"
        else:
            text = f"{_OPS.get(step.op, step.op)} {_TYPES[step.result.kind]} {given[0]}, {given[1]}"
        self.do(f"%{step.result.name} = {text}")

    def branch(self, step: If) -> None:
        then, orelse, end = self.label(), self.label(), self.label()
        self.do(f"br i1 {_operand(step.cond)}, label %{then}, label %{orelse}")
        for label, body in ((then, step.then), (orelse, step.orelse)):
            self.start(label)
            for inner in body:
                self.print(inner)
            self.do(f"br label %{end}")
        self.start(end)

    def require(self, step: Require) -> None:
        on, bad = self.label(), self.label()
        self.do(f"br i1 {_operand(step.cond)}, label %{on}, label %{bad}, !prof !0")
        here, self.lines = self.lines, self.tail
        self.start(bad)
        for offset, value in [
            (self.context["error_code"], step.code),
            *((self.context["error_args"] + 8 * k, a) for k, a in enumerate(step.args)),
        ]:
            self.do(f"store i64 {_operand(value)}, ptr {self.at('%ctx', offset)}, align 8")
        self.do(f"ret i32 {step.code}")
        self.lines = here
        self.start(on)

    def text(self, entry: str) -> str:
        for step in self.steps.body:
            self.print(step)
        text = [f"; segment {self.steps.name}"]
        text += [f"declare hidden i32 {_quote(k)}(ptr, ptr, ptr) nounwind" for k in self.steps.kernels]
        if any(isinstance(s, Ticks) for s in self.steps.walk()):
            text.append(f"declare i64 @{COUNTERS[self.architecture]}()")
        text += [f"declare {{i64, i1}} @llvm.s{op}.with.overflow.i64(i64, i64)" for op in ("add", "sub", "mul")]
        # Windows wants a function of its own called for a large frame.
        text += [
            f'define i32 {_quote(entry)}(ptr %ctx, ptr %in, ptr %out) nounwind "no-stack-arg-probe" {{',
            "entry:",
        ]
        text += [
            f"  %buffers = alloca [{self.steps.buffers} x ptr], align 16",
            f"  %dims = alloca [{self.steps.dims} x i64], align 16",
        ]
        text += [
            *self.lines,
            "  ret i32 0",
            *self.tail,
            *self.kernel_failed(),
            "}",
            '!0 = !{!"branch_weights", i32 2000, i32 1}',
        ]
        return "\n".join(text) + "\n"

    def kernel_failed(self) -> list[str]:
        if not self.failed:
            return []
        return f"""kernel_failed:
  %failed = phi i32 {", ".join(f"[ {code}, %{block} ]" for code, block, _ in self.failed)}
  %failed_item = phi i64 {", ".join(f"[ {number}, %{block} ]" for _, block, number in self.failed)}
  %code_at = getelementptr i8, ptr %ctx, i64 {self.context["error_code"]}
  %code = load i64, ptr %code_at, align 8
  %told = icmp ne i64 %code, 0
  br i1 %told, label %leave, label %tell
tell:
  store i64 {int(ErrorCode.KERNEL)}, ptr %code_at, align 8
  %arg0 = getelementptr i8, ptr %ctx, i64 {self.context["error_args"]}
  store i64 %failed_item, ptr %arg0, align 8
  %arg1 = getelementptr i8, ptr %ctx, i64 {self.context["error_args"] + 8}
  %wide = sext i32 %failed to i64
  store i64 %wide, ptr %arg1, align 8
  br label %leave
leave:
  ret i32 %failed""".split("\n")
