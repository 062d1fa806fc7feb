"""A segment as LLVM IR: `int32 run(ctx*, const DLTensor* const* in, DLTensor* const* out)`.

The function is a straight line of blocks: every value computed dominates what follows, so a formula is emitted once. Anything that fails branches
to a block at the end that writes code and arguments into the context.

A formula has a value and, where ranges do not exclude that it leaves int64, a flag that says whether it did; an item asks for the flags of its formulas before
it uses their values.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.base import THREADS
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
    Tensor,
    leading_checks,
    narrowed,
    range_of_data,
)
from weft.dtypes import DType, int64
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.ranges import Range, Ranges
from weft_llvm.pool import COUNTERS
from weft_runtime.abi import ERROR_ARGS, OFFSETS, TENSOR_OFFSETS, ErrorCode, type_word


def emit_segment(spec: SegmentSpec, entry: str = "run", architecture: str = "x86_64") -> str:
    """LLVM IR text of the segment, without target triple; kernels are declared, not defined.

    Raises:
        CodegenError: for a spec that uses a symbol, buffer or output before it exists, or a formula that has no integer form.
    """
    return _Emitter(spec, architecture).emit(entry)


def _quote(name: str) -> str:
    return '@"' + "".join(chr(b) if (chr(b).isalnum() and b < 128) or chr(b) in "._-$" else f"\\{b:02X}" for b in name.encode()) + '"'


_SIMPLE = {ex.Add: "add", ex.Sub: "sub", ex.Mul: "mul", ex.BitAnd: "and", ex.BitOr: "or", ex.BitXor: "xor", ex.And: "and", ex.Or: "or"}
_CHECKED = (ex.Add, ex.Sub, ex.Mul)
_COMPARE = {ex.Lt: "lt", ex.Le: "le", ex.Eq: "eq", ex.Ne: "ne"}


class _Emitter:
    def __init__(self, spec: SegmentSpec, architecture: str) -> None:
        self.spec = spec
        self.architecture = architecture
        self.lines: list[str] = []
        self.tail: list[str] = []
        self.count = 0
        self.env: dict[str, str] = {}
        self.memo: dict[ex.Expr, str] = {}
        self.flags: dict[ex.Expr, str] = {}  # a formula that may leave int64 → the i1 that says whether it did
        self.asked: set[str] = set()  # flags that are false from here on
        self.ranges = Ranges({THREADS.name: Range(1, 1 << 20)})
        self.number = -1  # of the item at hand
        self.sources = {s.name: s.source for s in spec.symbols}
        self.input_tensors: list[str] = []
        self.input_shapes: list[str] = []
        self.input_data: list[str | None] = []
        self.output_data: dict[int, str] = {}
        self.constants: dict[int, str] = {}
        self.constant_table: str | None = None
        self.arena: str | None = None
        self.pending: list[tuple[int, int, ex.Expr]] = []
        self.kernel_failures: list[tuple[str, str, int]] = []
        self.block = "entry"
        self.counter = ""

    # -- text
    def value(self, text: str) -> str:
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self) -> str:
        self.count += 1
        return f"b{self.count}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def at(self, base: str, offset: int | str) -> str:
        return base if offset == 0 else self.value(f"getelementptr i8, ptr {base}, i64 {offset}")

    def field(self, name: str, kind: str = "ptr") -> str:
        return self.value(f"load {kind}, ptr {self.at('%ctx', OFFSETS[name])}, align 8")

    def fail_unless(self, cond: str, code: int, args: Sequence[str]) -> None:
        """Goes on if `cond` (i1) holds; else writes the error and returns the code."""
        if len(args) > ERROR_ARGS:
            raise CodegenError(f"a check has {len(args)} arguments, at most {ERROR_ARGS} fit", where=self.spec.name)
        if cond == "true":
            return
        on, bad = self.label(), self.label()
        self.do(f"br i1 {cond}, label %{on}, label %{bad}, !prof !0")
        here = self.lines
        self.lines = self.tail
        self.start(bad)
        self.do(f"store i64 {code}, ptr {self.at('%ctx', OFFSETS['error_code'])}, align 8")
        for i, arg in enumerate(args):
            self.do(f"store i64 {arg}, ptr {self.at('%ctx', OFFSETS['error_args'] + 8 * i)}, align 8")
        self.do(f"ret i32 {code}")
        self.lines = here
        self.start(on)

    # -- formulas
    def known(self, e: ex.Expr) -> bool:
        return all(name in self.env or v == THREADS for name, v in ex.free_vars(e).items())

    def suppose(self, name: str, values: Range) -> None:
        """What a symbol may be, from here on."""
        self.ranges = Ranges({**self.ranges.ranges, name: values})

    def integer(self, e: ex.Expr) -> str:
        """`e` as an i64 operand; the run ends where it leaves int64."""
        value = self.formula(e)
        flag = self.flag(e)
        if flag is not None:
            self.fail_unless(self.value(f"xor i1 {flag}, true"), ErrorCode.OVERFLOW, (str(self.number),))
            self.asked.add(flag)
        return self.resize(value, e.dtype, 64)

    def flag(self, e: ex.Expr) -> str | None:
        """What says whether `e`, which has been computed, left int64; None if it certainly did not."""
        found = self.flags.get(e)
        return None if found in self.asked else found

    def either(self, *flags: str | None) -> str | None:
        """Whether one of them is true."""
        result = None
        for flag in flags:
            if flag is not None and flag != result:
                result = flag if result is None else self.value(f"or i1 {result}, {flag}")
        return result

    def resize(self, value: str, dtype: DType, bits: int) -> str:
        width = self.width(dtype)
        if width == bits:
            return value
        if value.lstrip("-").isdigit():
            return value
        if value in ("true", "false"):
            return str(int(value == "true"))
        op = "trunc" if width > bits else "sext" if dtype.kind == "int" else "zext"
        return self.value(f"{op} i{width} {value} to i{bits}")

    def width(self, dtype: DType) -> int:
        if dtype.is_bool:
            return 1
        if not dtype.is_integer or dtype.lanes != 1 or dtype.bits < 8:
            raise CodegenError(
                f"a formula of a segment has dtype {dtype}", where=self.spec.name, hint="shape formulas are integers; compute others in a kernel"
            )
        return dtype.bits

    def formula(self, e: ex.Expr) -> str:
        found = self.memo.get(e)
        if found is None:
            found = self.memo[e] = self.emit_formula(e)
        return found

    def emit_formula(self, e: ex.Expr) -> str:
        if isinstance(e, ex.Const):
            return ("true" if e.value else "false") if e.dtype.is_bool else str(e.value)
        if isinstance(e, ex.Var):
            if e == THREADS:
                threads = self.field("threads", "i64")
                several = self.value(f"icmp sgt i64 {threads}, 1")
                return self.value(f"select i1 {several}, i64 {threads}, i64 1")
            if e.name not in self.env:
                raise CodegenError(
                    f"symbol '{e.name}' is used before it is bound", where=self.spec.name, hint="bound so far: " + (", ".join(self.env) or "none")
                )
            return self.env[e.name] if self.width(e.dtype) == 64 else self.value(f"trunc i64 {self.env[e.name]} to i{e.dtype.bits}")
        if isinstance(e, ex.Not):
            value = self.value(f"xor i1 {self.formula(e.a)}, true")
            self.inherit(e, e.a)
            return value
        if isinstance(e, ex.Select):
            cond, kind = self.formula(e.cond), f"i{self.width(e.dtype)}"
            value = self.value(f"select i1 {cond}, {kind} {self.formula(e.a)}, {kind} {self.formula(e.b)}")
            a, b = self.flag(e.a), self.flag(e.b)
            chosen = None if a is None and b is None else self.value(f"select i1 {cond}, i1 {a or 'false'}, i1 {b or 'false'}")
            self.raise_flag(e, self.flag(e.cond), chosen)
            return value
        if isinstance(e, ex.Cast):
            self.formula(e.value)
            self.inherit(e, e.value)
            if e.dtype.is_bool:
                return self.value(f"icmp ne i{self.width(e.value.dtype)} {self.formula(e.value)}, 0")
            return self.resize(self.formula(e.value), e.value.dtype, self.width(e.dtype))
        if isinstance(e, ex.Binary):
            return self.emit_binary(e)
        raise CodegenError(
            f"a segment cannot compute '{e}'", where=self.spec.name, why=f"{type(e).__name__} has no integer form here", hint="compute it in a kernel"
        )

    def raise_flag(self, e: ex.Expr, *flags: str | None) -> None:
        flag = self.either(*flags)
        if flag is not None:
            self.flags[e] = flag

    def inherit(self, e: ex.Expr, *parts: ex.Expr) -> None:
        """`e` is as exact as what it is made of."""
        self.raise_flag(e, *(self.flag(p) for p in parts))

    def fits(self, e: ex.Expr) -> bool:
        """Whether `e` is certain to be in int64. Ranges take a symbol of which nothing is known for unbounded."""
        return self.ranges.of(e).within(*INT64)

    def emit_binary(self, e: ex.Binary) -> str:
        width = self.width(e.a.dtype)
        a, b, kind = self.formula(e.a), self.formula(e.b), f"i{width}"
        signed = "s" if e.a.dtype.kind == "int" else "u"
        self.inherit(e, e.a, e.b)
        if e.dtype == int64 and isinstance(e, _CHECKED) and not self.fits(e):
            pair = self.value(f"call {{i64, i1}} @llvm.s{_SIMPLE[type(e)]}.with.overflow.i64(i64 {a}, i64 {b})")
            self.raise_flag(e, self.flag(e), self.value(f"extractvalue {{i64, i1}} {pair}, 1"))
            return self.value(f"extractvalue {{i64, i1}} {pair}, 0")
        simple = _SIMPLE.get(type(e))
        if simple is not None:
            return self.value(f"{simple} {kind} {a}, {b}")
        compare = _COMPARE.get(type(e))
        if compare is not None:
            return self.value(f"icmp {compare if compare in ('eq', 'ne') else signed + compare} {kind} {a}, {b}")
        if isinstance(e, (ex.Min, ex.Max)):
            below = self.value(f"icmp {signed}{'lt' if isinstance(e, ex.Min) else 'gt'} {kind} {a}, {b}")
            return self.value(f"select i1 {below}, {kind} {a}, {kind} {b}")
        if isinstance(e, (ex.FloorDiv, ex.FloorMod, ex.TruncDiv, ex.TruncMod)):
            return self.emit_division(e, a, b, kind, signed)
        if isinstance(e, (ex.ShiftLeft, ex.ShiftRight)):
            # LLVM leaves a shift by the width or more undefined; formulas give it a value.
            inside = self.value(f"icmp ult {kind} {b}, {width}")
            if isinstance(e, ex.ShiftRight) and signed == "s":
                amount = self.value(f"select i1 {inside}, {kind} {b}, {kind} {width - 1}")
                return self.value(f"ashr {kind} {a}, {amount}")
            amount = self.value(f"select i1 {inside}, {kind} {b}, {kind} 0")
            shifted = self.value(f"{'shl' if isinstance(e, ex.ShiftLeft) else 'lshr'} {kind} {a}, {amount}")
            return self.value(f"select i1 {inside}, {kind} {shifted}, {kind} 0")
        raise CodegenError(f"a segment cannot compute '{e}'", where=self.spec.name, why=f"{type(e).__name__} has no integer form here")

    def emit_division(self, e: ex.Binary, a: str, b: str, kind: str, signed: str) -> str:
        rest = isinstance(e, (ex.FloorMod, ex.TruncMod))
        if isinstance(e.b, ex.Const):
            divisor = int(e.b.value)
            if divisor > 0 and divisor & (divisor - 1) == 0 and (signed == "u" or isinstance(e, (ex.FloorDiv, ex.FloorMod))):
                shift = divisor.bit_length() - 1
                return self.value(f"and {kind} {a}, {divisor - 1}" if rest else f"{'ashr' if signed == 's' else 'lshr'} {kind} {a}, {shift}")
        else:
            # A size of zero may reach a divisor (the inferred dimension of an empty reshape); the processor would trap.
            zero = self.value(f"icmp eq {kind} {b}, 0")
            b = self.value(f"select i1 {zero}, {kind} 1, {kind} {b}")
        if signed == "s" and (self.flag(e.b) is not None or -1 in self.ranges.of(e.b)):
            # The least number by -1 is none of the dtype's; the processor would trap.
            least = self.value(f"icmp eq {kind} {a}, {-(1 << (self.width(e.a.dtype) - 1))}")
            wraps = self.value(f"and i1 {least}, {self.value(f'icmp eq {kind} {b}, -1')}")
            b = self.value(f"select i1 {wraps}, {kind} 1, {kind} {b}")
            if not rest:
                self.raise_flag(e, self.flag(e), wraps)
        quotient = self.value(f"{signed}div {kind} {a}, {b}")
        remainder = self.value(f"{signed}rem {kind} {a}, {b}")
        if signed == "u" or isinstance(e, (ex.TruncDiv, ex.TruncMod)):
            return remainder if rest else quotient
        signs = self.value(f"xor {kind} {remainder}, {b}")
        crossed = self.value(f"icmp slt {kind} {signs}, 0")
        inexact = self.value(f"icmp ne {kind} {remainder}, 0")
        adjust = self.value(f"and i1 {crossed}, {inexact}")
        if rest:
            return self.value(f"select i1 {adjust}, {kind} {self.value(f'add {kind} {remainder}, {b}')}, {kind} {remainder}")
        return self.value(f"add {kind} {quotient}, {self.value(f'sext i1 {adjust} to {kind}')}")

    # -- buffers
    def pointer(self, index: int) -> str:
        if not 0 <= index < len(self.spec.buffers):
            raise CodegenError(f"segment '{self.spec.name}' has no buffer {index}", why=f"its table has {len(self.spec.buffers)}")
        ref = self.spec.buffers[index]
        if isinstance(ref, Input):
            data = self.input_data[ref.index]
            if data is None:
                data = self.input_data[ref.index] = self.data_of(self.input_tensors[ref.index])
            return data
        if isinstance(ref, Output):
            if ref.index not in self.output_data:
                raise CodegenError(f"output {ref.index} of segment '{self.spec.name}' is used before it is allocated", hint="put its AllocateOutput first")
            return self.output_data[ref.index]
        if isinstance(ref, Constant):
            if not 0 <= ref.index < self.spec.constants:
                raise CodegenError(f"segment '{self.spec.name}' has no constant {ref.index}", why=f"it has {self.spec.constants}")
            if ref.index not in self.constants:
                if self.constant_table is None:
                    self.constant_table = self.field("constants")
                self.constants[ref.index] = self.value(f"load ptr, ptr {self.at(self.constant_table, 8 * ref.index)}, align 8")
            return self.constants[ref.index]
        if isinstance(ref.bytes, ex.Const) and ref.bytes.value == 0:
            return "null"  # no element, so nobody reads or writes there
        if self.arena is None:
            raise CodegenError(f"buffer {index} of segment '{self.spec.name}' lies in an arena of no bytes", hint="set arena_bytes")
        return self.at(self.arena, self.integer(ref.offset))

    def data_of(self, tensor: str) -> str:
        data = self.value(f"load ptr, ptr {tensor}, align 8")
        offset = self.value(f"load i64, ptr {self.at(tensor, TENSOR_OFFSETS['byte_offset'])}, align 8")
        return self.at(data, offset)

    def bind_data(self, name: str) -> None:
        source = self.sources.get(name)
        if not isinstance(source, Data):
            raise CodegenError(f"'{name}' is no data symbol of segment '{self.spec.name}'")
        ref = self.spec.buffers[source.buffer] if 0 <= source.buffer < len(self.spec.buffers) else None
        if isinstance(ref, Input):
            # Reading beyond a tensor that the caller made too small must be an error, not a wild read.
            self.check_dims()
            tensor = self.spec.inputs[ref.index]
            total = "1"
            for axis in range(len(tensor.dims)):
                total = self.value(f"mul i64 {total}, {self.dim(ref.index, axis)}")
            enough = self.value(f"icmp sgt i64 {total}, {source.index}")
            self.fail_unless(enough, ErrorCode.DATA_SIZE, (str(ref.index), str(source.index), total))
        where = self.at(self.pointer(source.buffer), source.index * source.dtype.bytes)
        bits = source.dtype.bytes * 8
        loaded = self.value(f"load i{bits}, ptr {where}, align {source.dtype.bytes}")
        if source.dtype.is_bool or source.dtype.is_integer:
            self.env[name] = loaded if bits == 64 else self.value(f"{'sext' if source.dtype.kind == 'int' else 'zext'} i{bits} {loaded} to i64")
            self.suppose(name, range_of_data(source.dtype))
        else:
            raise CodegenError(f"data symbol '{name}' has dtype {source.dtype}", where=self.spec.name, hint="convert it to int64 in a kernel")

    def dim(self, index: int, axis: int) -> str:
        key = ex.Var(f"<dim {index} {axis}>")  # no symbol can be called so: the memo then loads a dimension once
        if key not in self.memo:
            self.memo[key] = self.value(f"load i64, ptr {self.at(self.input_shapes[index], 8 * axis)}, align 8")
        return self.memo[key]

    def check_dims(self) -> None:
        """Compares every input dimension whose formula has become known."""
        waiting = []
        for index, axis, expected in self.pending:
            if not self.known(expected):
                waiting.append((index, axis, expected))
                continue
            want, got = self.integer(expected), self.dim(index, axis)
            if want != got:
                self.fail_unless(self.value(f"icmp eq i64 {want}, {got}"), ErrorCode.INPUT_SIZE, (str(index), str(axis), want, got))
        self.pending = waiting

    def reserve(self, size: ex.Expr) -> None:
        need = self.integer(size)
        if need == "0" and self.arena is None:
            return
        have = self.field("arena_bytes", "i64")
        arena = self.field("arena")
        enough = self.value(f"icmp sge i64 {have}, {need}")
        grow, on, before = self.label(), self.label(), self.block
        self.do(f"br i1 {enough}, label %{on}, label %{grow}")
        self.start(grow)
        allocate = self.field("allocate_arena")
        grown = self.value(f"call ptr {allocate}(ptr %ctx, i64 {need})")
        ok = self.value(f"icmp ne ptr {grown}, null")
        self.fail_unless(ok, ErrorCode.ARENA, (need,))
        self.do(f"br label %{on}")
        after = self.block
        self.start(on)
        self.arena = self.value(f"phi ptr [ {arena}, %{before} ], [ {grown}, %{after} ]")

    def allocate_output(self, item: AllocateOutput) -> None:
        if not 0 <= item.index < len(self.spec.outputs):
            raise CodegenError(f"segment '{self.spec.name}' has no output {item.index}")
        output = self.spec.outputs[item.index]
        rank = len(item.shape)
        dims = [self.integer(d) for d in item.shape]
        tensor = self.value(f"load ptr, ptr {self.at('%out', 8 * item.index)}, align 8")
        data = self.value(f"load ptr, ptr {tensor}, align 8")
        missing = self.value(f"icmp eq ptr {data}, null")
        ask, check, on = self.label(), self.label(), self.label()
        self.do(f"br i1 {missing}, label %{ask}, label %{check}")
        # Blocks of the two ways must not leave formulas or loads in the memo that the way taken would not have computed.
        self.start(ask)
        for axis, dim in enumerate(dims):
            self.do(f"store i64 {dim}, ptr {self.at('%dims', 8 * axis)}, align 8")
        allocate = self.field("allocate_output")
        code = self.value(f"call i32 {allocate}(ptr %ctx, i64 {item.index}, i64 {rank}, ptr %dims)")
        self.fail_unless(self.value(f"icmp eq i32 {code}, 0"), ErrorCode.OUTPUT_ALLOCATION, (str(item.index),))
        self.do(f"br label %{on}")
        self.start(check)
        word = self.value(f"load i64, ptr {self.at(tensor, TENSOR_OFFSETS['ndim'])}, align 8")
        fits = self.value(f"icmp eq i64 {word}, {type_word(output.dtype, rank)}")
        self.fail_unless(fits, ErrorCode.OUTPUT_SIZE, (str(item.index), "-1", str(rank), self.value(f"and i64 {word}, 4294967295")))
        shape = self.value(f"load ptr, ptr {self.at(tensor, TENSOR_OFFSETS['shape'])}, align 8") if rank else ""
        for axis, dim in enumerate(dims):
            got = self.value(f"load i64, ptr {self.at(shape, 8 * axis)}, align 8")
            self.fail_unless(self.value(f"icmp eq i64 {dim}, {got}"), ErrorCode.OUTPUT_SIZE, (str(item.index), str(axis), dim, got))
        self.do(f"br label %{on}")
        self.start(on)
        self.output_data[item.index] = self.data_of(tensor)

    def call_kernel(self, item: KernelCall, number: int) -> None:
        for slot, buffer in enumerate(item.buffers):
            pointer = self.pointer(buffer)
            self.do(f"store ptr {pointer}, ptr {self.at('%buffers', 8 * slot)}, align 8")
        for slot, dim in enumerate(item.dims):
            value = self.integer(dim)
            self.do(f"store i64 {value}, ptr {self.at('%dims', 8 * slot)}, align 8")
        code = self.value(f"call i32 {_quote(item.kernel)}(ptr %ctx, ptr %buffers, ptr %dims)")
        good = self.value(f"icmp eq i32 {code}, 0")
        on = self.label()
        self.do(f"br i1 {good}, label %{on}, label %kernel_failed, !prof !0")
        self.kernel_failures.append((code, self.block, number))
        self.start(on)

    def stamp(self, item: Stamp) -> None:
        counter = COUNTERS.get(self.architecture)
        if counter is None:
            raise CodegenError(f"there is no clock to read on {self.architecture}", where=self.spec.name, hint="known: " + ", ".join(COUNTERS))
        ticks = self.value(f"call i64 @{counter}()")
        self.do(f"store i64 {ticks}, ptr {self.at(self.pointer(item.buffer), 8 * item.index)}, align 8")
        self.counter = counter

    def check(self, item: Check) -> None:
        cond = self.formula(item.cond)
        flag = self.flag(item.cond)
        if flag is not None:
            cond = self.value(f"and i1 {cond}, {self.value(f'xor i1 {flag}, true')}")
        self.fail_unless(cond, item.code, [self.argument(a) for a in item.args])
        if flag is not None:
            self.asked.add(flag)
        self.ranges = Ranges(narrowed(self.ranges.ranges, item.cond))

    def argument(self, e: ex.Expr) -> str:
        """What an error says of `e`: the greatest number of int64 where it leaves that."""
        value = self.resize(self.formula(e), e.dtype, 64)
        flag = self.flag(e)
        return value if flag is None else self.value(f"select i1 {flag}, i64 {INT64.hi}, i64 {value}")

    def item(self, item: Item, number: int) -> None:
        self.number = number
        if isinstance(item, KernelCall):
            self.call_kernel(item, number)
        elif isinstance(item, BindSymbol):
            self.env[item.name] = self.integer(item.value)
            self.suppose(item.name, self.ranges.of(item.value))
            self.check_dims()
        elif isinstance(item, BindData):
            self.bind_data(item.symbol)
            self.check_dims()
        elif isinstance(item, Check):
            self.check(item)
        elif isinstance(item, AllocateOutput):
            self.allocate_output(item)
        elif isinstance(item, Stamp):
            self.stamp(item)
        else:
            self.reserve(item.bytes)

    def bind_inputs(self) -> None:
        for i, tensor in enumerate(self.spec.inputs):
            self.bind_tensor(i, tensor)
        for symbol in self.spec.symbols:
            if isinstance(symbol.source, InputDim):
                self.env[symbol.name] = self.dim(symbol.source.input, symbol.source.axis)
                self.suppose(symbol.name, INT64)
        self.pending = [(i, axis, d) for i, t in enumerate(self.spec.inputs) for axis, d in enumerate(t.dims)]
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

    def bind_tensor(self, index: int, tensor: Tensor) -> None:
        pointer = self.value(f"load ptr, ptr {self.at('%in', 8 * index)}, align 8")
        word = self.value(f"load i64, ptr {self.at(pointer, TENSOR_OFFSETS['ndim'])}, align 8")
        fits = self.value(f"icmp eq i64 {word}, {type_word(tensor.dtype, len(tensor.dims))}")
        rank = self.value(f"and i64 {word}, 4294967295")
        kind = self.value(f"lshr i64 {word}, 32")
        self.fail_unless(fits, ErrorCode.INPUT_TYPE, (str(index), rank, kind))
        self.input_tensors.append(pointer)
        self.input_shapes.append(self.value(f"load ptr, ptr {self.at(pointer, TENSOR_OFFSETS['shape'])}, align 8") if tensor.dims else "null")
        self.input_data.append(None)

    def emit(self, entry: str) -> str:
        spec = self.spec
        slots = max([1] + [len(i.buffers) for i in spec.items if isinstance(i, KernelCall)])
        dims = max([1] + [len(i.dims) for i in spec.items if isinstance(i, KernelCall)] + [len(i.shape) for i in spec.items if isinstance(i, AllocateOutput)])
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
        self.do("ret i32 0")
        text = [f"; segment {spec.name}"]
        text += [f"declare hidden i32 {_quote(k)}(ptr, ptr, ptr) nounwind" for k in spec.kernels()]
        if self.counter:
            text.append(f"declare i64 @{self.counter}()")
        text += [f"declare {{i64, i1}} @llvm.s{_SIMPLE[kind]}.with.overflow.i64(i64, i64)" for kind in _CHECKED]
        text.append(f"define i32 {_quote(entry)}(ptr %ctx, ptr %in, ptr %out) nounwind {{")
        text.append("entry:")
        text.append(f"  %buffers = alloca [{slots} x ptr], align 16")
        text.append(f"  %dims = alloca [{dims} x i64], align 16")
        text += self.lines
        text += self.tail
        if self.kernel_failures:
            text.append("kernel_failed:")
            text.append("  %failed = phi i32 " + ", ".join(f"[ {code}, %{block} ]" for code, block, _ in self.kernel_failures))
            text.append("  %failed_item = phi i64 " + ", ".join(f"[ {number}, %{block} ]" for _, block, number in self.kernel_failures))
            text.append(f"  %code_at = getelementptr i8, ptr %ctx, i64 {OFFSETS['error_code']}")
            text.append("  %code = load i64, ptr %code_at, align 8")
            text.append("  %told = icmp ne i64 %code, 0")
            text.append("  br i1 %told, label %leave, label %tell")
            text.append("tell:")
            text.append(f"  store i64 {int(ErrorCode.KERNEL)}, ptr %code_at, align 8")
            text.append(f"  %arg0 = getelementptr i8, ptr %ctx, i64 {OFFSETS['error_args']}")
            text.append("  store i64 %failed_item, ptr %arg0, align 8")
            text.append(f"  %arg1 = getelementptr i8, ptr %ctx, i64 {OFFSETS['error_args'] + 8}")
            text.append("  %wide = sext i32 %failed to i64")
            text.append("  store i64 %wide, ptr %arg1, align 8")
            text.append("  br label %leave")
            text.append("leave:")
            text.append("  ret i32 %failed")
        text.append("}")
        text.append('!0 = !{!"branch_weights", i32 2000, i32 1}')
        return "\n".join(text) + "\n"
