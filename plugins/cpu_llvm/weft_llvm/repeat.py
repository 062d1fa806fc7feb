"""What runs the iterations of a loop, as LLVM IR: `int32 repeat(ctx*, run*, const DLTensor* const* in, DLTensor* const*
out, Trips*)`.

It calls a segment again and again. Between two calls it moves the data of items and results on by their steps,
exchanges the data of what is carried with that of what the iteration gave in its place, and counts; nothing is copied.
It ends after so many iterations, after one whose test says so, or with the code of one that failed, before anything has
moved. `weft_runtime.abi.TRIPS` has the fields.
"""

from __future__ import annotations

from weft_runtime.abi import MOVE, POINTER, SWAP, TENSOR, TRIPS


def emit_repeat(pointer: int = POINTER) -> str:
    """LLVM IR text, without target triple, for pointers of so many bytes; else the same for every architecture."""
    places = {
        "DATA": TENSOR.offsets(pointer)["data"], "MOVE": MOVE.size(pointer), "STEP": MOVE.offsets(pointer)["bytes"],
        "SWAP": SWAP.size(pointer), "GIVEN": SWAP.offsets(pointer)["given"], "POINTER": pointer,
        **{name.upper(): offset for name, offset in TRIPS.offsets(pointer).items()},
    }  # fmt: skip
    text = _SOURCE
    for name, offset in places.items():
        text = text.replace(f"<{name}>", str(offset))
    return text


_SOURCE = """; trips of a loop
define i32 @repeat(ptr %ctx, ptr %run, ptr %in, ptr %out, ptr %d) nounwind {
entry:
  %trips.at = getelementptr i8, ptr %d, i64 <TRIPS>
  %trips = load i64, ptr %trips.at, align 8
  %done.at = getelementptr i8, ptr %d, i64 <DONE>
  %going.at = getelementptr i8, ptr %d, i64 <GOING>
  %number.at = getelementptr i8, ptr %d, i64 <NUMBER>
  %number = load ptr, ptr %number.at, align <POINTER>
  %test.at = getelementptr i8, ptr %d, i64 <TEST>
  %test = load ptr, ptr %test.at, align <POINTER>
  %tests = icmp ne ptr %test, null
  %moving.at = getelementptr i8, ptr %d, i64 <MOVING>
  %moving = load i64, ptr %moving.at, align 8
  %moves.at = getelementptr i8, ptr %d, i64 <MOVES>
  %moves = load ptr, ptr %moves.at, align <POINTER>
  %carried.at = getelementptr i8, ptr %d, i64 <CARRIED>
  %carried = load i64, ptr %carried.at, align 8
  %swaps.at = getelementptr i8, ptr %d, i64 <SWAPS>
  %swaps = load ptr, ptr %swaps.at, align <POINTER>
  store i64 0, ptr %done.at, align 8
  store i64 1, ptr %going.at, align 8
  %any = icmp sgt i64 %trips, 0
  br i1 %any, label %trip, label %leave
trip:
  %k = phi i64 [ 0, %entry ], [ %next, %again ]
  %code = call i32 %run(ptr %ctx, ptr %in, ptr %out)
  %good = icmp eq i32 %code, 0
  br i1 %good, label %move, label %failed
move:
  %m = phi i64 [ 0, %trip ], [ %m.next, %moved ]
  %m.more = icmp slt i64 %m, %moving
  br i1 %m.more, label %moved, label %swap
moved:
  %m.byte = mul i64 %m, <MOVE>
  %m.tensor.at = getelementptr i8, ptr %moves, i64 %m.byte
  %m.tensor = load ptr, ptr %m.tensor.at, align <POINTER>
  %m.step.at = getelementptr i8, ptr %m.tensor.at, i64 <STEP>
  %m.step = load i64, ptr %m.step.at, align 8
  %m.data.at = getelementptr i8, ptr %m.tensor, i64 <DATA>
  %m.data = load ptr, ptr %m.data.at, align <POINTER>
  %m.data.next = getelementptr i8, ptr %m.data, i64 %m.step
  store ptr %m.data.next, ptr %m.data.at, align <POINTER>
  %m.next = add i64 %m, 1
  br label %move
swap:
  %s = phi i64 [ 0, %move ], [ %s.next, %swapped ]
  %s.more = icmp slt i64 %s, %carried
  br i1 %s.more, label %swapped, label %count
swapped:
  %s.byte = mul i64 %s, <SWAP>
  %s.in.at = getelementptr i8, ptr %swaps, i64 %s.byte
  %s.in = load ptr, ptr %s.in.at, align <POINTER>
  %s.out.at = getelementptr i8, ptr %s.in.at, i64 <GIVEN>
  %s.out = load ptr, ptr %s.out.at, align <POINTER>
  %s.taken.at = getelementptr i8, ptr %s.in, i64 <DATA>
  %s.given.at = getelementptr i8, ptr %s.out, i64 <DATA>
  %s.taken = load ptr, ptr %s.taken.at, align <POINTER>
  %s.given = load ptr, ptr %s.given.at, align <POINTER>
  store ptr %s.given, ptr %s.taken.at, align <POINTER>
  store ptr %s.taken, ptr %s.given.at, align <POINTER>
  %s.next = add i64 %s, 1
  br label %swap
count:
  %n = load i64, ptr %number, align 8
  %n.next = add i64 %n, 1
  store i64 %n.next, ptr %number, align 8
  %next = add i64 %k, 1
  br i1 %tests, label %ask, label %again
ask:
  %said = load i8, ptr %test, align 1
  %yes = icmp ne i8 %said, 0
  br i1 %yes, label %again, label %end
again:
  %more = icmp slt i64 %next, %trips
  br i1 %more, label %trip, label %all
end:
  store i64 0, ptr %going.at, align 8
  br label %all
all:
  store i64 %next, ptr %done.at, align 8
  br label %leave
failed:
  store i64 %k, ptr %done.at, align 8
  ret i32 %code
leave:
  ret i32 0
}
"""
