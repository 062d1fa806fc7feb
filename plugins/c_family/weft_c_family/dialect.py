"""What tells one language of C's family from another: a table that the emitter reads.

Entries are text with fields in braces, as `str.format` takes them. A field that stands for a formula is closed: a name,
a call, or in parentheses. What a table leaves out the language does not have; `Emitter.check` says so of a program,
before anything is emitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from weft.forks import cached_property
from weft_c_family.extension import Extension

if TYPE_CHECKING:
    from weft_c_family.emitter import Kernel


@dataclass(frozen=True)
class Dialect:
    """One language.

    Args:
        name: what errors call it.
        types: dtype's name → the language's name. Floats of less than 32 bits that are absent are words, computed in
            float32 and rounded after every operation; complex numbers are structures, integers of less than eight bits
            are int8 or uint8: none of them needs an entry.
        kernel: the head of a kernel, up to its brace: `{name}`, `{parameters}`, and how many threads are in a group:
            `{threads}`, along x `{group[0]}`.
        header: lines at the top of every text.
        end: the last statement of a kernel.
        buffer: a buffer as a parameter: `{const}` ("const " or nothing), `{type}`, `{name}`, `{index}`. Empty: kernels
            get tables, see `buffer_entry`.
        size: a dim as a parameter: `{type}`, `{name}`, `{index}`, which goes on from those of buffers, and `{number}`,
            which does not.
        more_parameters: parameters of every kernel behind these.
        buffer_entry, size_entry: statements that take a buffer or a dim out of a table, with the same fields;
            `buffer_entry` beside `buffer`: out of what `buffer` has made of it.
        function: what stands before a helper function.
        scopes: memory scope → a declaration inside the kernel, with `{type}`, `{name}`, `{size}` (elements), `{align}`
            (bytes). "global" is no such scope: a buffer of it is scratch, a parameter behind the outputs.
        shared_scopes: those of `scopes` whose declarations must stand at the top of a kernel, since all its threads see
            them.
        stack_bytes: a buffer declared inside the kernel has at most so many bytes, or else it is scratch, where one
            thread runs all (`serial`).
        scratch_align: bytes that sizes of scratch are multiples of.
        called: sums, differences and products that wrap, and shifts of signed integers to the right, are functions.
        index: the type of loop variables and of other int64 that fit into it; empty: that of int64.
        serial: one thread runs the kernel: parallel loops are loops, atomic updates are updates.
        indices: loop kind ("blockIdx.x", "threadIdx.x" …) → the number of the thread or group.
        units: loop kind ("unit.array" …) → the head of a loop whose iterations run at once on the units of that level:
            `{type}`, `{name}`, `{extent}`.
        barrier: the statement at which the threads of a group meet.
        atomics: "add float32" → statement with `{buffer}`, `{index}`, `{value}`, and `{space}`, the buffer's address
            space.
        functions: name of `weft.expr.functions` → formula with `{0}`, `{1}` …; `{f}` is "f" for float32. Floats only;
            what integers need is written out.
        intrinsics: name of an IntrinsicCall → formula or statement with `{0}` … (a value) and `{0:address}` (the
            address of a Load).
        suffixes: dtype's name → what follows a literal of it that does not fit into 32 bits; of floats each, those of
            less than 32 bits as float32.
        infinity, nan: of float32; converted elsewhere.
        bitcast: `{to}` (a type), `{value}`: its bits as another type; empty: memcpy.
        widen, narrow: a float of less than 32 bits → formula of `{0}` that makes it a float32, or it of a float32;
            default: integer arithmetic on its bits.
        vectors: "float32x4" → the language's vector type, where whole vectors can be moved at once.
        vector_copy: statement that moves one: `{type}`, `{to}`, `{to_space}`, `{source}`, `{source_space}` (addresses
            and their address spaces).
        lanes: declaration of the lanes of a vector: `{type}`, `{name}`, `{size}`; aligned as `vector_copy` wants it.
        unroll: a line in front of loops over lanes.
        rolled: a line in front of loops of more than two iterations that call functions of the language's own.
        spaces: scope → the address space in a pointer's type.
        extension: what kernels that call certain intrinsics have beside.
        writer: the class that writes a kernel, for a language whose syntax is not that of C; None: `Kernel`.
        reserved: more names that no variable may have; those in the table's entries are `words`.
    """

    name: str
    types: Mapping[str, str]
    kernel: str
    header: tuple[str, ...] = ()
    end: str = ""
    buffer: str = ""
    size: str = ""
    more_parameters: tuple[str, ...] = ()
    buffer_entry: str = ""
    size_entry: str = ""
    function: str = "static inline"
    scopes: Mapping[str, str] = field(
        default_factory=lambda: {"local": "{type} {name}[{size}];", "register": "{type} {name}[{size}];"}
    )
    shared_scopes: frozenset[str] = frozenset()
    stack_bytes: int = 16 << 10
    scratch_align: int = 64
    called: bool = False
    index: str = ""
    serial: bool = False
    indices: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    barrier: str = ""
    atomics: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    intrinsics: Mapping[str, str] = field(default_factory=dict)
    suffixes: Mapping[str, str] = field(
        default_factory=lambda: {"int64": "LL", "uint64": "ULL", "uint32": "U", "float32": "f"}
    )
    infinity: str = "INFINITY"
    nan: str = "NAN"
    bitcast: str = ""
    widen: Mapping[str, str] = field(default_factory=dict)
    narrow: Mapping[str, str] = field(default_factory=dict)
    vectors: Mapping[str, str] = field(default_factory=dict)
    vector_copy: str = ""
    lanes: str = "{type} {name}[{size}];"
    unroll: str = ""
    rolled: str = ""
    spaces: Mapping[str, str] = field(default_factory=dict)
    extension: Extension | None = None
    writer: type[Kernel] | None = None
    reserved: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Mapping):  # a table is shared by every emitter
                object.__setattr__(self, name, MappingProxyType(dict(value)))

    @cached_property
    def words(self) -> frozenset[str]:
        """Every name that the table uses or reserves."""
        tables = (
            self.types,
            self.functions,
            self.intrinsics,
            self.indices,
            self.units,
            self.atomics,
            self.scopes,
            self.vectors,
            self.widen,
            self.narrow,
        )
        entries = [
            self.kernel,
            self.end,
            self.barrier,
            self.bitcast,
            self.vector_copy,
            self.lanes,
            self.infinity,
            self.nan,
            *self.more_parameters,
        ]
        entries += [] if self.extension is None else self.extension.entries
        text = " ".join([*entries, *(e for table in tables for e in table.values())])
        return self.reserved | {
            w
            for form in ("", "f")
            for w in re.findall(r"(?<![.\w])[A-Za-z_]\w*", re.sub(r"\{.*?\}", " ", text.replace("{f}", form)))
        }

    def __hash__(self) -> int:
        return hash((self.name, self.kernel))
