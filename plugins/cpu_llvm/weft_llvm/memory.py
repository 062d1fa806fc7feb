"""Memory for segments as LLVM IR: what answers when a segment asks for an arena, or for the storage of an output.

Entries: `allocate_arena(ctx, bytes)` and `allocate_output(ctx, index, rank, dims)`, see docs/architecture.md. What they
reserve is kept for the next call with this context, until `release_memory(ctx)`.
"""

from __future__ import annotations

from weft_runtime.abi import CONTEXT, HOST, IMPORTS, POINTER, ROOM, TENSOR

_HUGE = 4 << 20  # from so many bytes on memory is on boundaries of pages, and the system is asked for huge ones
_PAGE = 65536  # a multiple of every system's
_MADV_HUGEPAGE = 14
RESERVE, RELEASE = "weft_reserve", "weft_release"
"""Functions that a WebAssembly module takes from its host: RESERVE(bytes) is the address of so many bytes, a multiple
of 64, or 0 if there are none; RELEASE(address) gives them back; an address of 0 is none."""


def emit_memory(pointer: int = POINTER) -> str:
    """LLVM IR text, without target triple, for a process whose functions of C are in the context's imports."""
    return _HEAD + _process(pointer) + _entries(pointer)


def emit_wasm_memory() -> str:
    """The same for a WebAssembly module of 32-bit addresses, which takes RESERVE and RELEASE from its host."""
    return _HEAD + _HOSTED + _entries(4)


_HEAD = """; memory
declare { i64, i1 } @llvm.umul.with.overflow.i64(i64, i64)
"""

_HOSTED = f"""
declare ptr @{RESERVE}(i64)
declare void @{RELEASE}(ptr)
declare void @llvm.memcpy.p0.p0.i32(ptr, ptr, i32, i1)

define internal ptr @reserve(ptr %ctx, i64 %bytes) alwaysinline nounwind {{
  %data = call ptr @{RESERVE}(i64 %bytes)
  ret ptr %data
}}

define internal void @release(ptr %ctx, ptr %data) alwaysinline nounwind {{
  call void @{RELEASE}(ptr %data)
  ret void
}}

define internal void @copy(ptr %ctx, ptr %to, ptr %from, i64 %bytes) alwaysinline nounwind {{
  %short = trunc i64 %bytes to i32
  call void @llvm.memcpy.p0.p0.i32(ptr %to, ptr %from, i32 %short, i1 false)
  ret void
}}
"""


def _process(pointer: int) -> str:
    context = CONTEXT.offsets(pointer)
    return f"""
define internal ptr @import(ptr %ctx, i64 %offset) alwaysinline nounwind {{
  %table.at = getelementptr i8, ptr %ctx, i64 {context["imports"]}
  %table = load ptr, ptr %table.at, align {pointer}
  %at = getelementptr i8, ptr %table, i64 %offset
  %found = load ptr, ptr %at, align {pointer}
  ret ptr %found
}}

; at least so many bytes, null if there are none
define internal ptr @reserve(ptr %ctx, i64 %bytes) noinline nounwind {{
  %place = alloca ptr, align 8
  %memalign = call ptr @import(ptr %ctx, i64 {pointer * IMPORTS.index("posix_memalign")})
  %large = icmp uge i64 %bytes, {_HUGE}
  %alignment = select i1 %large, i64 {_PAGE}, i64 64
  %failed = call i32 %memalign(ptr %place, i64 %alignment, i64 %bytes)
  %good = icmp eq i32 %failed, 0
  br i1 %good, label %there, label %none
there:
  %data = load ptr, ptr %place, align {pointer}
  br i1 %large, label %advise, label %leave
advise:
  %madvise = call ptr @import(ptr %ctx, i64 {pointer * IMPORTS.index("madvise")})
  %whole = and i64 %bytes, {-_PAGE}
  %advised = call i32 %madvise(ptr %data, i64 %whole, i32 {_MADV_HUGEPAGE})
  br label %leave
leave:
  ret ptr %data
none:
  ret ptr null
}}

define internal void @release(ptr %ctx, ptr %data) noinline nounwind {{
  %free = call ptr @import(ptr %ctx, i64 {pointer * IMPORTS.index("free")})
  call void %free(ptr %data)
  ret void
}}

define internal void @copy(ptr %ctx, ptr %to, ptr %from, i64 %bytes) alwaysinline nounwind {{
  %memcpy = call ptr @import(ptr %ctx, i64 {pointer * IMPORTS.index("memcpy")})
  %copied = call ptr %memcpy(ptr %to, ptr %from, i64 %bytes)
  ret void
}}
"""


def _entries(pointer: int) -> str:
    return _ENTRIES.format(
        context=CONTEXT.offsets(pointer),
        tensor=TENSOR.offsets(pointer),
        host=HOST.offsets(pointer),
        room_size=ROOM.size(pointer),
        room_bytes=ROOM.offsets(pointer)["bytes"],
        pointer=pointer,
    )


_ENTRIES = """
define ptr @allocate_arena(ptr %ctx, i64 %bytes) nounwind {{
  ; negative sizes are large ones
  %sane = icmp ult i64 %bytes, 4611686018427387904
  br i1 %sane, label %ask, label %none
ask:
  %more = add i64 %bytes, 4096
  %size = and i64 %more, -4096
  %data = call ptr @reserve(ptr %ctx, i64 %size)
  %good = icmp ne ptr %data, null
  br i1 %good, label %there, label %none
there:
  %arena.at = getelementptr i8, ptr %ctx, i64 {context[arena]}
  %size.at = getelementptr i8, ptr %ctx, i64 {context[arena_bytes]}
  %old = load ptr, ptr %arena.at, align {pointer}
  %first = icmp eq ptr %old, null
  br i1 %first, label %keep, label %move
move:
  %held = load i64, ptr %size.at, align 8
  call void @copy(ptr %ctx, ptr %data, ptr %old, i64 %held)
  call void @release(ptr %ctx, ptr %old)
  br label %keep
keep:
  store ptr %data, ptr %arena.at, align {pointer}
  store i64 %size, ptr %size.at, align 8
  ret ptr %data
none:
  ret ptr null
}}

define i32 @allocate_output(ptr %ctx, i64 %index, i64 %rank, ptr %dims) nounwind {{
entry:
  %host.at = getelementptr i8, ptr %ctx, i64 {context[host]}
  %host = load ptr, ptr %host.at, align {pointer}
  %outputs.at = getelementptr i8, ptr %host, i64 {host[outputs]}
  %outputs = load ptr, ptr %outputs.at, align {pointer}
  %tensor.at = getelementptr ptr, ptr %outputs, i64 %index
  %tensor = load ptr, ptr %tensor.at, align {pointer}
  %rooms.at = getelementptr i8, ptr %host, i64 {host[rooms]}
  %rooms = load ptr, ptr %rooms.at, align {pointer}
  %room.offset = mul i64 %index, {room_size}
  %room = getelementptr i8, ptr %rooms, i64 %room.offset
  %room.bytes = getelementptr i8, ptr %room, i64 {room_bytes}
  %shape.at = getelementptr i8, ptr %tensor, i64 {tensor[shape]}
  %shape = load ptr, ptr %shape.at, align {pointer}
  %bits.at = getelementptr i8, ptr %tensor, i64 {tensor[bits]}
  %bits8 = load i8, ptr %bits.at, align 1
  %bits = zext i8 %bits8 to i64
  %rounded = add i64 %bits, 7
  %element = lshr i64 %rounded, 3
  br label %head
head:
  %axis = phi i64 [ 0, %entry ], [ %axis.next, %body ]
  %count = phi i64 [ %element, %entry ], [ %count.next, %body ]
  %empty = phi i1 [ false, %entry ], [ %empty.next, %body ]
  %wrong = phi i1 [ false, %entry ], [ %wrong.next, %body ]
  %more = icmp ult i64 %axis, %rank
  br i1 %more, label %body, label %known
body:
  %dim.at = getelementptr i64, ptr %dims, i64 %axis
  %dim = load i64, ptr %dim.at, align 8
  %told.at = getelementptr i64, ptr %shape, i64 %axis
  store i64 %dim, ptr %told.at, align 8
  ; a size of 0 leaves the product of the others, which must not overflow either
  %zero = icmp eq i64 %dim, 0
  %empty.next = or i1 %empty, %zero
  %factor = select i1 %zero, i64 1, i64 %dim
  %product = call {{ i64, i1 }} @llvm.umul.with.overflow.i64(i64 %count, i64 %factor)
  %count.next = extractvalue {{ i64, i1 }} %product, 0
  %over = extractvalue {{ i64, i1 }} %product, 1
  %below = icmp slt i64 %dim, 0
  %wrong.one = or i1 %over, %below
  %wrong.next = or i1 %wrong, %wrong.one
  %axis.next = add i64 %axis, 1
  br label %head
known:
  %large = icmp uge i64 %count, 4611686018427387904
  %refused = or i1 %wrong, %large
  br i1 %refused, label %fail, label %fit
fit:
  %bytes = select i1 %empty, i64 1, i64 %count
  %have = load i64, ptr %room.bytes, align 8
  %enough = icmp uge i64 %have, %bytes
  br i1 %enough, label %give, label %drop
drop:
  %old = load ptr, ptr %room, align {pointer}
  store ptr null, ptr %room, align {pointer}
  store i64 0, ptr %room.bytes, align 8
  call void @release(ptr %ctx, ptr %old)
  %fresh = call ptr @reserve(ptr %ctx, i64 %bytes)
  %good = icmp ne ptr %fresh, null
  br i1 %good, label %hold, label %fail
hold:
  store ptr %fresh, ptr %room, align {pointer}
  store i64 %bytes, ptr %room.bytes, align 8
  br label %give
give:
  %data = load ptr, ptr %room, align {pointer}
  store ptr %data, ptr %tensor, align {pointer}
  ret i32 0
fail:
  ret i32 1
}}

define void @release_memory(ptr %ctx) nounwind {{
entry:
  %arena.at = getelementptr i8, ptr %ctx, i64 {context[arena]}
  %arena = load ptr, ptr %arena.at, align {pointer}
  call void @release(ptr %ctx, ptr %arena)
  store ptr null, ptr %arena.at, align {pointer}
  %arena.bytes = getelementptr i8, ptr %ctx, i64 {context[arena_bytes]}
  store i64 0, ptr %arena.bytes, align 8
  %host.at = getelementptr i8, ptr %ctx, i64 {context[host]}
  %host = load ptr, ptr %host.at, align {pointer}
  %count.at = getelementptr i8, ptr %host, i64 {host[count]}
  %count = load i64, ptr %count.at, align 8
  %rooms.at = getelementptr i8, ptr %host, i64 {host[rooms]}
  %rooms = load ptr, ptr %rooms.at, align {pointer}
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %body, label %done
body:
  %offset = mul i64 %k, {room_size}
  %room = getelementptr i8, ptr %rooms, i64 %offset
  %data = load ptr, ptr %room, align {pointer}
  call void @release(ptr %ctx, ptr %data)
  store ptr null, ptr %room, align {pointer}
  %bytes.at = getelementptr i8, ptr %room, i64 {room_bytes}
  store i64 0, ptr %bytes.at, align 8
  %next = add i64 %k, 1
  br label %head
done:
  ret void
}}
"""
