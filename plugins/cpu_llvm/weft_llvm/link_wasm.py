"""A small static linker: relocatable WebAssembly objects to one module that can be placed anywhere in a memory.

The module follows WebAssembly's conventions for dynamic linking (tool-conventions, DynamicLinking.md): it imports from
`env` the memory, the table of functions, the stack pointer, and where its data and its part of the table begin
(`__memory_base`, `__table_base`), and the section `dylink.0` says how much of both it takes. Several modules therefore
share one memory. The conventions for objects are those of Linking.md there, version 2.

What no export reaches is left out. Numbers that relocations write take five bytes in objects, and as many as they need
in the module.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft.errors import CodegenError
from weft_llvm.link import Image, undefined_symbols
from weft_llvm.wasm_bytes import Reader, section, signed, text, unsigned, vector

MAGIC = b"\0asm\1\0\0\0"
_ENVIRONMENT = "env"  # what a module imports from

_CUSTOM, _TYPE, _IMPORT, _FUNCTION, _EXPORT, _ELEMENT, _CODE, _DATA = 0, 1, 2, 3, 7, 9, 10, 11
_IS_FUNCTION, _IS_TABLE, _IS_MEMORY, _IS_GLOBAL = 0, 1, 2, 3
_SYMBOL_FUNCTION, _SYMBOL_DATA, _SYMBOL_GLOBAL, _SYMBOL_SECTION = 0, 1, 2, 3
_WEAK, _LOCAL, _UNDEFINED, _EXPLICIT_NAME = 1, 2, 0x10, 0x40
_FUNCTION_INDEX, _TYPE_INDEX, _GLOBAL_INDEX = 0, 6, 7
_MEMORY_REL, _TABLE_REL, _TABLE_NUMBER = 11, 12, 20
_ADDENDS = {3, 4, 5, 8, 9, 11, 14, 15, 16, 17, 21, 22, 23, 24, 25, 26}
_GLOBALS = ("__stack_pointer", "__memory_base", "__table_base")
_MUTABLE = {"__stack_pointer"}
_TABLE = "__indirect_function_table"
_MOST_PAGES = 65536
_MOST_ALIGNMENT = 16  # as a power of two: a page of 64 KiB


@dataclass(frozen=True)
class _Relocation:
    kind: int
    offset: int  # in its section
    symbol: int  # of a type: its index
    addend: int


@dataclass(frozen=True)
class _Symbol:
    kind: int
    name: str
    flags: int
    index: int = -1  # of a function, global, table; of data: its segment
    offset: int = 0
    size: int = 0

    @property
    def undefined(self) -> bool:
        return bool(self.flags & _UNDEFINED)


@dataclass(frozen=True)
class _Segment:
    name: str
    align: int
    start: int  # of its bytes in the data section
    data: bytes


@dataclass(eq=False)
class _Object:
    name: str
    types: list[bytes] = field(default_factory=list)
    imported: list[tuple[str, int]] = field(default_factory=list)  # functions: name, type
    imported_globals: list[str] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)  # types
    bodies: list[tuple[int, bytes]] = field(default_factory=list)  # start in the code section, bytes
    segments: list[_Segment] = field(default_factory=list)
    symbols: list[_Symbol] = field(default_factory=list)
    relocations: dict[int, list[_Relocation]] = field(default_factory=dict)  # by the kind of the section


@dataclass(frozen=True, eq=False)
class _Function:
    """A function that an object defines.

    Raises:
        IndexError: it does not.
    """

    object: _Object
    index: int  # among those that it defines

    def __post_init__(self) -> None:
        if not 0 <= self.index < len(self.object.bodies):
            raise IndexError(f"function {self.index} of the {len(self.object.bodies)} that '{self.object.name}' has")


def _parse(name: str, data: bytes) -> _Object:
    try:
        return _parsed(name, data)
    except (ValueError, IndexError) as error:  # UnicodeDecodeError is one
        raise CodegenError(f"object '{name}' is not a well-formed WebAssembly object", why=str(error)) from error


def _parsed(name: str, data: bytes) -> _Object:
    if data[:8] != MAGIC:
        raise ValueError(f"it begins with {data[:8].hex(' ')}")
    found = _Object(name)
    linked: Reader | None = None
    raw: list[tuple[int, int, int]] = []  # start in the data section, bytes
    reader = Reader(data, 8)
    kinds: list[int] = []  # of the sections
    while reader.more:
        kind = reader.byte()
        kinds.append(kind)
        part = reader.part()
        start = part.at
        if kind == _TYPE:
            for _ in range(part.number()):
                found.types.append(_type(part))
        elif kind == _IMPORT:
            _imports(found, part)
        elif kind == _FUNCTION:
            found.functions = [part.number() for _ in range(part.number())]
        elif kind == _CODE:
            for _ in range(part.number()):
                body = part.part()
                found.bodies.append((body.at - start, data[body.at : body.end]))
        elif kind == _DATA:
            for _ in range(part.number()):
                if part.number() != 0 or part.byte() != 0x41:
                    raise ValueError("a data segment that is not placed by a constant")
                part.signed()
                if part.byte() != 0x0B:
                    raise ValueError("a data segment that is not placed by a constant")
                held = part.part()
                raw.append((held.at - start, held.at, held.end))
        elif kind == _CUSTOM:
            title = part.text()
            if title == "linking":
                linked = part
            elif title.startswith("reloc."):
                of = kinds[part.number()]
                found.relocations[of] = sorted(_relocations(part), key=lambda r: r.offset)
    if linked is None or linked.number() != 2:
        raise ValueError("it has no section 'linking' of version 2")
    info: list[tuple[str, int]] = []
    while linked.more:
        kind = linked.byte()
        part = linked.part()
        if kind == 5:
            for _ in range(part.number()):
                info.append((part.text(), _alignment(part.number())))
                part.number()  # flags
        elif kind == 8:
            found.symbols = [_symbol(found, part) for _ in range(part.number())]
    if len(info) != len(raw):
        raise ValueError(f"{len(raw)} data segments, {len(info)} are described")
    found.segments = [
        _Segment(title, align, at, data[start:end]) for (title, align), (at, start, end) in zip(info, raw, strict=True)
    ]
    return found


def _alignment(power: int) -> int:
    if power > _MOST_ALIGNMENT:
        raise ValueError(f"a segment aligned to 2^{power} bytes")
    return 1 << power


def _type(part: Reader) -> bytes:
    start = part.at
    if part.byte() != 0x60:
        raise ValueError("a type that is no function's")
    for _ in range(2):
        part.bytes(part.number())
    return part.data[start : part.at]


def _imports(found: _Object, part: Reader) -> None:
    for _ in range(part.number()):
        part.text()
        name = part.text()
        kind = part.byte()
        if kind == _IS_FUNCTION:
            found.imported.append((name, part.number()))
        elif kind == _IS_GLOBAL:
            part.bytes(2)
            found.imported_globals.append(name)
        elif kind in (_IS_TABLE, _IS_MEMORY):
            if kind == _IS_TABLE:
                part.byte()
            limits = part.byte()
            part.number()
            if limits & 1:
                part.number()
        else:
            raise ValueError(f"an import of kind {kind}")


def _relocations(part: Reader) -> Iterator[_Relocation]:
    for _ in range(part.number()):
        kind = part.byte()
        offset, symbol = part.number(), part.number()
        yield _Relocation(kind, offset, symbol, part.signed() if kind in _ADDENDS else 0)


def _symbol(found: _Object, part: Reader) -> _Symbol:
    kind, flags = part.byte(), part.number()
    if kind == _SYMBOL_SECTION:
        return _Symbol(kind, "", flags, part.number())
    if kind == _SYMBOL_DATA:
        name = part.text()
        if flags & _UNDEFINED:
            return _Symbol(kind, name, flags)
        return _Symbol(kind, name, flags, part.number(), part.number(), part.number())
    index = part.number()
    if not flags & _UNDEFINED or flags & _EXPLICIT_NAME:
        return _Symbol(kind, part.text(), flags, index)
    if kind == _SYMBOL_FUNCTION:
        return _Symbol(kind, found.imported[index][0], flags, index)
    if kind == _SYMBOL_GLOBAL:
        return _Symbol(kind, found.imported_globals[index], flags, index)
    return _Symbol(kind, _TABLE, flags, index)


def _within(relocations: list[_Relocation], start: int, part: bytes) -> list[_Relocation]:
    """Those of a part of a section, which are in order."""
    first, last = (bisect_left(relocations, at, key=lambda r: r.offset) for at in (start, start + len(part)))
    return relocations[first:last]


class _Linker:
    def __init__(self, objects: Sequence[_Object], imports: Mapping[str, bytes]) -> None:
        self.objects, self.imports = objects, imports
        self.types: dict[bytes, int] = {}
        self.defined: dict[str, _Function] = {}
        self.taken: dict[str, int] = {}  # imported functions: their index
        self.numbers: dict[tuple[int, int], int] = {}  # object and function of it → index in the module
        self.kept: list[_Function] = []
        self.table: dict[int, int] = {}  # index of a function → its place in this module's part of the table
        self.data = bytearray()
        self.places: dict[tuple[int, int], int] = {}  # object and segment of it → offset in the data
        self.align = 1

    def define(self) -> None:
        weak: set[str] = set()
        for o in self.objects:
            for symbol in o.symbols:
                if symbol.kind != _SYMBOL_FUNCTION or symbol.undefined or symbol.flags & _LOCAL:
                    continue
                known = self.defined.get(symbol.name)
                if known is not None and symbol.flags & _WEAK:
                    continue
                if known is not None and symbol.name not in weak:
                    raise CodegenError(
                        f"symbol '{symbol.name}' is defined twice",
                        where=f"{known.object.name}\n{o.name}",
                        hint="give kernels names of their own",
                    )
                (weak.add if symbol.flags & _WEAK else weak.discard)(symbol.name)
                self.defined[symbol.name] = _Function(o, symbol.index - len(o.imported))

    def reach(self, exports: Sequence[str]) -> None:
        """Numbers every function and places every data segment that the exports reach."""
        missing: dict[str, set[str]] = {}
        todo = [self.defined[name] for name in exports]
        seen = {(id(f.object), f.index) for f in todo}
        used: dict[str, None] = {}
        while todo:
            f = todo.pop(0)
            self.kept.append(f)
            for r in self.relocations(f):
                if r.kind == _TYPE_INDEX:
                    continue
                symbol = f.object.symbols[r.symbol]
                if symbol.kind == _SYMBOL_DATA:
                    self.place(f.object, symbol)
                if symbol.kind != _SYMBOL_FUNCTION:
                    continue
                target = self.target(f.object, symbol)
                if target is None:
                    if symbol.name in self.imports:
                        used[symbol.name] = None
                    else:
                        missing.setdefault(symbol.name, set()).add(f.object.name)
                elif (id(target.object), target.index) not in seen:
                    seen.add((id(target.object), target.index))
                    todo.append(target)
        if missing:
            raise undefined_symbols(missing)
        self.taken = {name: k for k, name in enumerate(used)}
        for k, f in enumerate(self.kept, len(used)):
            self.numbers[id(f.object), f.index] = k

    def relocations(self, f: _Function) -> list[_Relocation]:
        return _within(f.object.relocations.get(_CODE, []), *f.object.bodies[f.index])

    def target(self, o: _Object, symbol: _Symbol) -> _Function | None:
        if symbol.undefined or not symbol.flags & _LOCAL:
            return self.defined.get(symbol.name)
        return _Function(o, symbol.index - len(o.imported))

    def place(self, o: _Object, symbol: _Symbol) -> None:
        if symbol.undefined:
            raise CodegenError(
                f"compiled code refers to data that nothing defines: {symbol.name}",
                where=o.name,
                hint="make it a constant of the kernel",
            )
        key = id(o), symbol.index
        if key in self.places:
            return
        segment = o.segments[symbol.index]
        if not segment.name.startswith(".rodata"):
            raise CodegenError(
                f"object '{o.name}' has writable data in segment {segment.name}",
                why="every call of a module shares its data",
                hint="make the global a constant; keep state in the arena",
            )
        if _within(o.relocations.get(_DATA, []), segment.start, segment.data):
            raise CodegenError(
                f"object '{o.name}' has constants with addresses in segment {segment.name}",
                why="a module may be placed anywhere",
                hint="compile without tables of pointers",
            )
        self.data.extend(bytes(-len(self.data) % segment.align))
        self.places[key] = len(self.data)
        self.align = max(self.align, segment.align)
        self.data.extend(segment.data)

    def type(self, of: bytes) -> int:
        return self.types.setdefault(of, len(self.types))

    def value(self, o: _Object, r: _Relocation) -> bytes:
        """What a relocation writes."""
        if r.kind == _TYPE_INDEX:
            return unsigned(self.type(o.types[r.symbol]))
        symbol = o.symbols[r.symbol]
        if r.kind in (_FUNCTION_INDEX, _TABLE_REL):
            target = self.target(o, symbol)
            index = self.taken[symbol.name] if target is None else self.numbers[id(target.object), target.index]
            return (
                unsigned(index) if r.kind == _FUNCTION_INDEX else signed(self.table.setdefault(index, len(self.table)))
            )
        if r.kind == _MEMORY_REL and symbol.kind == _SYMBOL_DATA:
            return signed(self.places[id(o), symbol.index] + symbol.offset + r.addend)
        if r.kind == _GLOBAL_INDEX and symbol.name in _GLOBALS:
            return unsigned(_GLOBALS.index(symbol.name))
        if r.kind == _TABLE_NUMBER and symbol.name == _TABLE:
            return unsigned(0)
        raise CodegenError(
            f"relocation R_WASM {r.kind} is not supported",
            where=f"{o.name} → {symbol.name or '?'}",
            hint="compile position-independent",
        )

    def body(self, f: _Function) -> bytes:
        """The code of a function, its relocations applied."""
        start, data = f.object.bodies[f.index]
        out, at = bytearray(), 0
        for r in self.relocations(f):
            place = r.offset - start
            out += data[at:place] + self.value(f.object, r)
            at = place + 5
            if at > len(data) or any(b < 0x80 for b in data[place : at - 1]) or data[at - 1] >= 0x80:
                raise CodegenError(f"object '{f.object.name}' has a relocation of what is no number of five bytes")
        return bytes(out + data[at:])


def link(
    objects: Mapping[str, bytes],
    exports: Sequence[str],
    imports: Mapping[str, bytes] | None = None,
    *,
    shared: bool = False,
) -> Image:
    """One module of the objects (name → bytes), in the order given.

    Args:
        exports: functions that it gives, by name.
        imports: functions that it may take from `env`, with their types as a type section has them.
        shared: its memory may be used by several threads.

    Raises:
        CodegenError: for undefined or doubly defined symbols, relocations that position-independent code has not,
            writable data, or files that are no such objects.
    """
    linker = _Linker([_parse(name, data) for name, data in objects.items()], imports or {})
    try:
        linker.define()
        absent = [name for name in exports if name not in linker.defined]
        if absent:
            raise CodegenError(f"no object defines what is exported: {', '.join(absent)}")
        linker.reach(exports)
        return Image(_module(linker, exports, shared), dict.fromkeys(exports, 0), linker.align)
    except IndexError as error:
        raise CodegenError("an object refers to what it does not have", why=str(error)) from error


def _module(linker: _Linker, exports: Sequence[str], shared: bool) -> bytes:
    for name in linker.taken:
        linker.type(linker.imports[name])
    bodies = [linker.body(f) for f in linker.kept]
    types = [linker.type(f.object.types[f.object.functions[f.index]]) for f in linker.kept]
    env = text(_ENVIRONMENT)
    imports = [
        env + text(name) + bytes([_IS_FUNCTION]) + unsigned(linker.type(linker.imports[name])) for name in linker.taken
    ]
    pages = -(-len(linker.data) // 65536)
    limits = b"\3" + unsigned(pages) + unsigned(_MOST_PAGES) if shared else b"\0" + unsigned(pages)
    imports.append(env + text("memory") + bytes([_IS_MEMORY]) + limits)
    imports.append(env + text(_TABLE) + bytes([_IS_TABLE, 0x70, 0]) + unsigned(len(linker.table)))
    imports += [env + text(name) + bytes([_IS_GLOBAL, 0x7F, name in _MUTABLE]) for name in _GLOBALS]
    functions = {name: linker.defined[name] for name in exports}
    given = [
        text(name) + bytes([_IS_FUNCTION]) + unsigned(linker.numbers[id(f.object), f.index])
        for name, f in functions.items()
    ]
    power = linker.align.bit_length() - 1
    needs = unsigned(len(linker.data)) + unsigned(power) + unsigned(len(linker.table)) + unsigned(0)
    parts = [
        section(_CUSTOM, text("dylink.0") + b"\1" + unsigned(len(needs)) + needs),
        section(_TYPE, vector(list(linker.types))),
        section(_IMPORT, vector(imports)),
        section(_FUNCTION, vector([unsigned(t) for t in types])),
        section(_EXPORT, vector(given)),
    ]
    base: Callable[[str], bytes] = lambda name: b"\x23" + unsigned(_GLOBALS.index(name)) + b"\x0b"
    if linker.table:
        placed = sorted(linker.table, key=lambda k: linker.table[k])
        parts.append(section(_ELEMENT, vector([b"\0" + base("__table_base") + vector([unsigned(k) for k in placed])])))
    parts.append(section(_CODE, vector([unsigned(len(b)) + b for b in bodies])))
    if linker.data:
        held = b"\0" + base("__memory_base") + unsigned(len(linker.data)) + bytes(linker.data)
        parts.append(section(_DATA, vector([held])))
    return MAGIC + b"".join(parts)
