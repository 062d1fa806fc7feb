"""From the description of a segment to its steps, for every code generator of a host alike: `build_segment(spec)`.

What a segment does, and in which order, `weft.codegen.segment` says; here each part of it becomes loads, arithmetic,
checks and calls (`weft.codegen.steps`), which a code generator prints one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

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
)
from weft.codegen.step_formulas import Formulas
from weft.codegen.steps import (
    BUFFERS,
    CTX,
    DIMS,
    IN,
    OUT,
    AllocateArena,
    AllocateStorage,
    CallKernel,
    If,
    Operand,
    Require,
    Steps,
    StoreElement,
    TypeWord,
    Value,
)
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft_runtime.abi import CONTEXT, ERROR_ARGS, TENSOR, ErrorCode, type_word


def build_segment(spec: SegmentSpec) -> Steps:
    """The steps of a segment.

    Raises:
        CodegenError: for a spec that uses a symbol, buffer or output before it exists, or a formula that has no integer
            form.
    """
    return _Builder(spec).build()


class _Builder:
    def __init__(self, spec: SegmentSpec) -> None:
        self.spec = spec
        self.f = Formulas(spec.name)
        self.number = -1  # of the item at hand
        self.sources = {s.name: s.source for s in spec.symbols}
        self.pending = [(i, axis, d) for i, t in enumerate(spec.inputs) for axis, d in enumerate(t.dims)]
        self.inputs: list[Value] = []
        self.shapes: dict[int, Value] = {}
        self.sizes: dict[tuple[int, int], Value] = {}
        self.data: dict[tuple[str, int], Value] = {}  # of inputs, outputs and constants
        self.constants: Value | None = None
        self.arena: Value | None = None

    def build(self) -> Steps:
        spec = self.spec
        self.bind_inputs()
        first = leading_checks(spec.items)
        for number, item in enumerate(spec.items):
            if number == first:
                self.reserve(spec.arena_bytes)
            self.number = number
            self.item(item, number)
        if first == len(spec.items):
            self.reserve(spec.arena_bytes)
        for index, axis, expected in self.pending:
            what = f"dimension {axis} of input '{spec.inputs[index].name}' is never known"
            raise CodegenError(what, where=str(expected), why="a symbol in it is never bound")
        calls = [i for i in spec.items if isinstance(i, KernelCall)]
        dims = [len(i.dims) for i in calls] + [len(i.shape) for i in spec.items if isinstance(i, AllocateOutput)]
        return Steps(
            spec.name, spec.kernels(), max([1, *(len(i.buffers) for i in calls)]), max([1, *dims]), tuple(self.f.steps)
        )

    # -- checks
    def require(self, cond: Operand, code: int, args: Sequence[Operand] = ()) -> None:
        """The run ends with `code` unless `cond` holds."""
        if len(args) > ERROR_ARGS:
            raise CodegenError(f"a check has {len(args)} arguments, at most {ERROR_ARGS} fit", where=self.spec.name)
        if cond is not True:
            self.f.steps.append(Require(cond, int(code), tuple(args)))

    def exact(self, e: ex.Expr) -> Operand:
        """`e` as an integer; the run ends where it leaves int64."""
        value = self.f.number(e)
        flag = self.f.flag(e)
        if flag is not False:
            self.require(self.f.test("not", flag), ErrorCode.OVERFLOW, (self.number,))
            self.f.asked.add(flag)
        return value

    def check(self, item: Check) -> None:
        f = self.f
        cond, flag = f.value(item.cond), f.flag(item.cond)
        if flag is not False:
            cond = f.test("both", cond, f.test("not", flag))
        self.require(cond, item.code, [self.argument(a) for a in item.args])
        if flag is not False:
            f.asked.add(flag)
        f.suppose(narrowed(f.ranges.ranges, item.cond))

    def argument(self, e: ex.Expr) -> Operand:
        """What an error says of `e`: the greatest number of int64 where it leaves that."""
        value, flag = self.f.number(e), self.f.flag(e)
        return value if flag is False else self.f.compute("select", flag, INT64.hi, value)

    # -- inputs
    def bind_inputs(self) -> None:
        for i, tensor in enumerate(self.spec.inputs):
            pointer = self.f.element(IN, "pointer", i)
            self.inputs.append(pointer)
            word = self.type_word(pointer)
            fits = self.f.test("eq", word, type_word(tensor.dtype, len(tensor.dims)))
            args = i, self.f.compute("and", word, 0xFFFFFFFF), self.f.compute("ushr", word, 32)
            self.require(fits, ErrorCode.INPUT_TYPE, args)
        for symbol in self.spec.symbols:
            if isinstance(symbol.source, InputDim):
                self.f.bind(symbol.name, self.size(symbol.source.input, symbol.source.axis), INT64)
        self.check_sizes()
        later = {i.symbol for i in self.spec.items if isinstance(i, BindData)}
        for symbol in self.spec.symbols:
            if isinstance(symbol.source, Data) and symbol.name not in later:
                number, buffers = symbol.source.buffer, self.spec.buffers
                if not 0 <= number < len(buffers) or not isinstance(buffers[number], (Input, Constant)):
                    what = f"data symbol '{symbol.name}' of segment '{self.spec.name}' is never bound"
                    raise CodegenError(what, hint="put a BindData after the kernel that computes it")
                self.bind_data(symbol.name)
        self.check_sizes()

    def type_word(self, tensor: Value) -> Value:
        result = self.f.new()
        self.f.steps.append(TypeWord(result, tensor))
        return result

    def size(self, index: int, axis: int) -> Value:
        """A dimension of an input."""
        if index not in self.shapes:
            self.shapes[index] = self.f.field(self.inputs[index], TENSOR, "shape")
        if (index, axis) not in self.sizes:
            self.sizes[index, axis] = self.f.element(self.shapes[index], "int64", axis)
        return self.sizes[index, axis]

    def check_sizes(self) -> None:
        """Compares every input dimension whose formula has become known."""
        waiting = []
        for index, axis, expected in self.pending:
            if not self.f.known(expected):
                waiting.append((index, axis, expected))
                continue
            want, got = self.exact(expected), self.size(index, axis)
            if want != got:
                self.require(self.f.test("eq", want, got), ErrorCode.INPUT_SIZE, (index, axis, want, got))
        self.pending = waiting

    def bind_data(self, name: str) -> None:
        source = self.sources.get(name)
        if not isinstance(source, Data):
            raise CodegenError(f"'{name}' is no data symbol of segment '{self.spec.name}'")
        dtype = source.dtype
        if not (dtype.is_bool or (dtype.is_integer and dtype.bits >= 8)):
            raise CodegenError(
                f"data symbol '{name}' has dtype {dtype}", where=self.spec.name, hint="convert it to int64 in a kernel"
            )
        ref = self.spec.buffers[source.buffer] if 0 <= source.buffer < len(self.spec.buffers) else None
        if isinstance(ref, Input):
            # Reading beyond a tensor that the caller made too small must be an error, not a wild read.
            self.check_sizes()
            total: Operand = 1
            for axis in range(len(self.spec.inputs[ref.index].dims)):
                total = self.f.compute("mul", total, self.size(ref.index, axis))
            self.require(self.f.test("lt", source.index, total), ErrorCode.DATA_SIZE, (ref.index, source.index, total))
        pointer = self.pointer(source.buffer)
        assert pointer is not None
        self.f.bind(
            name, self.f.element(pointer, "uint8" if dtype.is_bool else dtype.name, source.index), range_of_data(dtype)
        )

    # -- buffers
    def pointer(self, index: int) -> Value | None:
        """The address of a buffer of the table; None if it has no element, and is neither read nor written."""
        spec = self.spec
        if not 0 <= index < len(spec.buffers):
            raise CodegenError(f"segment '{spec.name}' has no buffer {index}", why=f"its table has {len(spec.buffers)}")
        ref = spec.buffers[index]
        if isinstance(ref, Input):
            if ("input", ref.index) not in self.data:
                self.data["input", ref.index] = self.data_of(self.inputs[ref.index])
            return self.data["input", ref.index]
        if isinstance(ref, Output):
            if ("output", ref.index) not in self.data:
                raise CodegenError(
                    f"output {ref.index} of segment '{spec.name}' is used before it is allocated",
                    hint="put its AllocateOutput first",
                )
            return self.data["output", ref.index]
        if isinstance(ref, Constant):
            return self.constant(ref.index)
        if isinstance(ref.bytes, ex.Const) and ref.bytes.value == 0:
            return None
        if self.arena is None:
            raise CodegenError(
                f"buffer {index} of segment '{spec.name}' lies in an arena of no bytes", hint="set arena_bytes"
            )
        return self.f.advance(self.arena, self.exact(ref.offset))

    def constant(self, index: int) -> Value:
        if not 0 <= index < self.spec.constants:
            raise CodegenError(
                f"segment '{self.spec.name}' has no constant {index}", why=f"it has {self.spec.constants}"
            )
        if self.constants is None:
            self.constants = self.f.field(CTX, CONTEXT, "constants")
        if ("constant", index) not in self.data:
            self.data["constant", index] = self.f.element(self.constants, "pointer", index)
        return self.data["constant", index]

    def data_of(self, tensor: Value) -> Value:
        data = self.f.field(tensor, TENSOR, "data")
        return self.f.advance(data, self.f.field(tensor, TENSOR, "byte_offset"))

    # -- items
    def item(self, item: Item, number: int) -> None:
        match item:
            case KernelCall():
                for slot, buffer in enumerate(item.buffers):
                    self.f.steps.append(StoreElement(BUFFERS, "pointer", slot, self.pointer(buffer)))
                self.store_dims(item.dims)
                called = self.f.value(item.when)
                call = CallKernel(item.kernel, number)
                self.f.steps.append(call if called is True else If(called, (call,)))
            case BindSymbol():
                self.f.bind(item.name, self.exact(item.value), self.f.ranges.of(item.value))
                self.check_sizes()
            case BindData():
                self.bind_data(item.symbol)
                self.check_sizes()
            case Check():
                self.check(item)
            case AllocateOutput():
                self.allocate(item)
            case Stamp():
                pointer = self.pointer(item.buffer)
                assert pointer is not None
                self.f.steps.append(StoreElement(pointer, "int64", item.index, self.f.ticks()))
            case _:
                self.reserve(item.bytes)

    def store_dims(self, dims: Sequence[ex.Expr]) -> list[Operand]:
        values = [self.exact(d) for d in dims]
        self.f.steps += [StoreElement(DIMS, "int64", slot, value) for slot, value in enumerate(values)]
        return values

    def reserve(self, size: ex.Expr) -> None:
        need = self.exact(size)
        if need == 0 and self.arena is None:
            return
        f = self.f
        short = f.test("lt", f.field(CTX, CONTEXT, "arena_bytes"), need)
        outer, f.steps = f.steps, []
        grown = f.new("pointer")
        f.steps.append(AllocateArena(grown, need))
        self.require(f.test("ne", grown, None), ErrorCode.ARENA, (need,))
        outer.append(If(short, tuple(f.steps)))
        f.steps = outer
        self.arena = f.field(CTX, CONTEXT, "arena")

    def allocate(self, item: AllocateOutput) -> None:
        k, rank, f = item.index, len(item.shape), self.f
        if not 0 <= k < len(self.spec.outputs):
            raise CodegenError(f"segment '{self.spec.name}' has no output {k}")
        dims = self.store_dims(item.shape)
        tensor = f.element(OUT, "pointer", k)
        missing = f.test("eq", f.field(tensor, TENSOR, "data"), None)
        outer, f.steps = f.steps, []
        status = f.new()
        f.steps.append(AllocateStorage(status, k, rank))
        self.require(f.test("eq", status, 0), ErrorCode.OUTPUT_ALLOCATION, (k,))
        asked, f.steps = f.steps, []
        self.check_storage(tensor, k, dims)
        outer.append(If(missing, tuple(asked), tuple(f.steps)))
        f.steps = outer
        self.data["output", k] = self.data_of(tensor)

    def check_storage(self, tensor: Value, k: int, dims: Sequence[Operand]) -> None:
        """That the caller's storage for an output is of its type and of these sizes."""
        f, rank = self.f, len(dims)
        word = self.type_word(tensor)
        fits = f.test("eq", word, type_word(self.spec.outputs[k].dtype, rank))
        self.require(fits, ErrorCode.OUTPUT_SIZE, (k, -1, rank, f.compute("and", word, 0xFFFFFFFF)))
        shape = f.field(tensor, TENSOR, "shape") if rank else None
        for axis, dim in enumerate(dims):
            assert shape is not None
            got = f.element(shape, "int64", axis)
            self.require(f.test("eq", dim, got), ErrorCode.OUTPUT_SIZE, (k, axis, dim, got))
