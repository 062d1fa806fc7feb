"""The runtime's own native code as LLVM IR: the worker pool, and memory for segments. The runtime ships it compiled,
for every architecture alike.

    python -m weft_llvm.support FOLDER          writes the images and their table; FOLDER is runtime/weft_runtime/images

A segment asks for memory while it runs. What answers is native code and never Python's: Python would run handlers of
signals there, and an exception that one of them raises cannot pass through native code.

Entries: those of `weft_llvm.pool`; `allocate_arena(ctx, bytes)` and `allocate_output(ctx, index, rank, dims)`, see
docs/architecture.md. What they reserve is kept for the next call with this context, until `release_memory(ctx)`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from weft_llvm.link import Image, link
from weft_llvm.pool import emit_pool
from weft_llvm.target import RESERVED
from weft_llvm.toolchain import Cpu, compile_object
from weft_runtime.abi import HOST, IMPORTS, OFFSETS, POINTER, ROOM, TENSOR_OFFSETS

CPUS = {
    "x86_64": Cpu("x86_64-unknown-linux-gnu", "x86-64", "", 2),
    "aarch64": Cpu("aarch64-unknown-linux-gnu", "generic", RESERVED["aarch64"], 2),
}
"""What the images are compiled for: every processor of an architecture. Their code asks the system for nothing but
`abi.IMPORTS`."""

_HUGE = 4 << 20  # from so many bytes on memory is on boundaries of pages, and the system is asked for huge ones
_PAGE = 65536  # a multiple of every system's
_MADV_HUGEPAGE = 14
_HOST = HOST.offsets()

_MEMORY = f"""; memory
declare {{ i64, i1 }} @llvm.umul.with.overflow.i64(i64, i64)

define internal ptr @import(ptr %ctx, i64 %offset) alwaysinline nounwind {{
  %table.at = getelementptr i8, ptr %ctx, i64 {OFFSETS["imports"]}
  %table = load ptr, ptr %table.at, align 8
  %at = getelementptr i8, ptr %table, i64 %offset
  %found = load ptr, ptr %at, align 8
  ret ptr %found
}}

; at least so many bytes, null if there are none
define internal ptr @reserve(ptr %ctx, i64 %bytes) noinline nounwind {{
  %place = alloca ptr, align 8
  %memalign = call ptr @import(ptr %ctx, i64 {POINTER * IMPORTS.index("posix_memalign")})
  %large = icmp uge i64 %bytes, {_HUGE}
  %alignment = select i1 %large, i64 {_PAGE}, i64 64
  %failed = call i32 %memalign(ptr %place, i64 %alignment, i64 %bytes)
  %good = icmp eq i32 %failed, 0
  br i1 %good, label %there, label %none
there:
  %data = load ptr, ptr %place, align 8
  br i1 %large, label %advise, label %leave
advise:
  %madvise = call ptr @import(ptr %ctx, i64 {POINTER * IMPORTS.index("madvise")})
  %whole = and i64 %bytes, {-_PAGE}
  %advised = call i32 %madvise(ptr %data, i64 %whole, i32 {_MADV_HUGEPAGE})
  br label %leave
leave:
  ret ptr %data
none:
  ret ptr null
}}

define internal void @release(ptr %ctx, ptr %data) noinline nounwind {{
  %free = call ptr @import(ptr %ctx, i64 {POINTER * IMPORTS.index("free")})
  call void %free(ptr %data)
  ret void
}}

define ptr @allocate_arena(ptr %ctx, i64 %bytes) nounwind {{
  ; negative sizes are large ones
  %sane = icmp ult i64 %bytes, {1 << 62}
  br i1 %sane, label %ask, label %none
ask:
  %more = add i64 %bytes, 4096
  %size = and i64 %more, -4096
  %data = call ptr @reserve(ptr %ctx, i64 %size)
  %good = icmp ne ptr %data, null
  br i1 %good, label %there, label %none
there:
  %arena.at = getelementptr i8, ptr %ctx, i64 {OFFSETS["arena"]}
  %size.at = getelementptr i8, ptr %ctx, i64 {OFFSETS["arena_bytes"]}
  %old = load ptr, ptr %arena.at, align 8
  %first = icmp eq ptr %old, null
  br i1 %first, label %keep, label %move
move:
  %held = load i64, ptr %size.at, align 8
  %memcpy = call ptr @import(ptr %ctx, i64 {POINTER * IMPORTS.index("memcpy")})
  %copied = call ptr %memcpy(ptr %data, ptr %old, i64 %held)
  call void @release(ptr %ctx, ptr %old)
  br label %keep
keep:
  store ptr %data, ptr %arena.at, align 8
  store i64 %size, ptr %size.at, align 8
  ret ptr %data
none:
  ret ptr null
}}

define i32 @allocate_output(ptr %ctx, i64 %index, i64 %rank, ptr %dims) nounwind {{
entry:
  %host.at = getelementptr i8, ptr %ctx, i64 {OFFSETS["host"]}
  %host = load ptr, ptr %host.at, align 8
  %outputs.at = getelementptr i8, ptr %host, i64 {_HOST["outputs"]}
  %outputs = load ptr, ptr %outputs.at, align 8
  %tensor.at = getelementptr ptr, ptr %outputs, i64 %index
  %tensor = load ptr, ptr %tensor.at, align 8
  %rooms.at = getelementptr i8, ptr %host, i64 {_HOST["rooms"]}
  %rooms = load ptr, ptr %rooms.at, align 8
  %room.offset = mul i64 %index, {ROOM.size()}
  %room = getelementptr i8, ptr %rooms, i64 %room.offset
  %room.bytes = getelementptr i8, ptr %room, i64 {ROOM.offsets()["bytes"]}
  %shape.at = getelementptr i8, ptr %tensor, i64 {TENSOR_OFFSETS["shape"]}
  %shape = load ptr, ptr %shape.at, align 8
  %bits.at = getelementptr i8, ptr %tensor, i64 {TENSOR_OFFSETS["bits"]}
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
  %large = icmp uge i64 %count, {1 << 62}
  %refused = or i1 %wrong, %large
  br i1 %refused, label %fail, label %fit
fit:
  %bytes = select i1 %empty, i64 1, i64 %count
  %have = load i64, ptr %room.bytes, align 8
  %enough = icmp uge i64 %have, %bytes
  br i1 %enough, label %give, label %drop
drop:
  %old = load ptr, ptr %room, align 8
  store ptr null, ptr %room, align 8
  store i64 0, ptr %room.bytes, align 8
  call void @release(ptr %ctx, ptr %old)
  %fresh = call ptr @reserve(ptr %ctx, i64 %bytes)
  %good = icmp ne ptr %fresh, null
  br i1 %good, label %hold, label %fail
hold:
  store ptr %fresh, ptr %room, align 8
  store i64 %bytes, ptr %room.bytes, align 8
  br label %give
give:
  %data = load ptr, ptr %room, align 8
  store ptr %data, ptr %tensor, align 8
  ret i32 0
fail:
  ret i32 1
}}

define void @release_memory(ptr %ctx) nounwind {{
entry:
  %arena.at = getelementptr i8, ptr %ctx, i64 {OFFSETS["arena"]}
  %arena = load ptr, ptr %arena.at, align 8
  call void @release(ptr %ctx, ptr %arena)
  store ptr null, ptr %arena.at, align 8
  %arena.bytes = getelementptr i8, ptr %ctx, i64 {OFFSETS["arena_bytes"]}
  store i64 0, ptr %arena.bytes, align 8
  %host.at = getelementptr i8, ptr %ctx, i64 {OFFSETS["host"]}
  %host = load ptr, ptr %host.at, align 8
  %count.at = getelementptr i8, ptr %host, i64 {_HOST["count"]}
  %count = load i64, ptr %count.at, align 8
  %rooms.at = getelementptr i8, ptr %host, i64 {_HOST["rooms"]}
  %rooms = load ptr, ptr %rooms.at, align 8
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %body, label %done
body:
  %offset = mul i64 %k, {ROOM.size()}
  %room = getelementptr i8, ptr %rooms, i64 %offset
  %data = load ptr, ptr %room, align 8
  call void @release(ptr %ctx, ptr %data)
  store ptr null, ptr %room, align 8
  %bytes.at = getelementptr i8, ptr %room, i64 {ROOM.offsets()["bytes"]}
  store i64 0, ptr %bytes.at, align 8
  %next = add i64 %k, 1
  br label %head
done:
  ret void
}}
"""


def support_image(architecture: str) -> Image:
    """The image for an architecture of `CPUS`, the same on every machine."""
    cpu = CPUS[architecture]
    return link({"pool": compile_object(emit_pool(architecture), cpu), "memory": compile_object(_MEMORY, cpu)})


def write(folder: Path) -> None:
    """Writes an image for each architecture, and table.json: their hashes, their entries, and the version of LLVM that
    made them."""
    from llvmlite.binding import llvm_version_info

    table = {}
    for architecture in CPUS:
        image = support_image(architecture)
        (folder / f"{architecture}.bin").write_bytes(image.bytes)
        table[architecture] = {
            "sha256": hashlib.sha256(image.bytes).hexdigest(),
            "entries": dict(sorted(image.entries.items())),
        }
    text = json.dumps({"llvm": ".".join(map(str, llvm_version_info)), "images": table}, indent=1)
    (folder / "table.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
