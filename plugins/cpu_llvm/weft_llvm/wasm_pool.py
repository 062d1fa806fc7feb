"""Threads that share a WebAssembly module's memory: `parallel_for` for the caller, and what its workers run.

A host gives each worker an instance of the module with the same memory, the same bases of data and table, and a stack
of its own (`__stack_pointer`), and calls WORK(state, number), which does not return; numbers count from 1. The state is
STATE bytes of zeros, which the context names as its pool.

A job is published by storing its description, then its word: epoch (32 bits), tasks (16), the next task (16). A task is
claimed by comparing and exchanging the word, which fails if it is not the one that was looked at: a worker that is late
claims rightly or not at all. The description may be read after a claim succeeded, because the job does not end before
the claimed task has. An idle worker looks for jobs for a while, then sleeps on the epoch, which is stored once more
after the word. The caller never sleeps: the main thread of a page may not.

The caller takes the first task. Its stack lies at the beginning of the memory, where one that is too long ends the
call; those of workers, which run the same tasks, are as large.
"""

from __future__ import annotations

from weft_runtime.abi import CONTEXT

STATE = 64
WORK, PARALLEL_FOR = "weft_work", "weft_parallel_for"
_WORD, _REMAINING, _FAILED, _TASK, _CLOSURE, _CTX, _EPOCH, _SLEEPERS = 0, 8, 12, 16, 20, 24, 28, 32
_LOOKS = 20_000
"""Looks for a job before a worker sleeps: some 20 µs, longer than the caller is between two loops of most models."""
MOST_TASKS = (1 << 16) - 1


def emit_wasm_pool() -> str:
    """LLVM IR text, without target triple, for a module of 32-bit addresses with the extension `atomics`."""
    text = _SOURCE
    for key, value in {
        "WORD": _WORD, "REMAINING": _REMAINING, "FAILED": _FAILED, "TASK": _TASK, "CLOSURE": _CLOSURE, "CTX": _CTX,
        "EPOCH": _EPOCH, "SLEEPERS": _SLEEPERS, "LOOKS": _LOOKS, "POOL": CONTEXT.offsets(4)["pool"],
        "WORK": WORK, "PARALLEL_FOR": PARALLEL_FOR, "MOST": MOST_TASKS,
    }.items():  # fmt: skip
        text = text.replace(f"<{key}>", str(value))
    return text


_SOURCE = """; threads
declare i32 @llvm.wasm.memory.atomic.wait32(ptr, i32, i64)
declare i32 @llvm.wasm.memory.atomic.notify(ptr, i32)

; the next task of the job that is published, -1 if there is none
define internal i64 @claim(ptr %state) nounwind {
entry:
  %at = getelementptr i8, ptr %state, i32 <WORD>
  br label %look
look:
  %word = load atomic i64, ptr %at seq_cst, align 8
  %next = and i64 %word, 65535
  %shifted = lshr i64 %word, 16
  %tasks = and i64 %shifted, 65535
  %some = icmp ult i64 %next, %tasks
  br i1 %some, label %try, label %none
try:
  %taken = add i64 %word, 1
  %pair = cmpxchg ptr %at, i64 %word, i64 %taken seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %done, label %look
done:
  ret i64 %next
none:
  ret i64 -1
}

; runs tasks until all are claimed
define internal void @share(ptr %state, i64 %thread) nounwind {
entry:
  %remaining.at = getelementptr i8, ptr %state, i32 <REMAINING>
  %task.at = getelementptr i8, ptr %state, i32 <TASK>
  %closure.at = getelementptr i8, ptr %state, i32 <CLOSURE>
  %ctx.at = getelementptr i8, ptr %state, i32 <CTX>
  br label %look
look:
  %k = call i64 @claim(ptr %state)
  %none = icmp slt i64 %k, 0
  br i1 %none, label %done, label %run
run:
  %task = load ptr, ptr %task.at, align 4
  %closure = load ptr, ptr %closure.at, align 4
  %ctx = load ptr, ptr %ctx.at, align 4
  call void %task(ptr %ctx, ptr %closure, i64 %k, i64 %thread)
  %before = atomicrmw sub ptr %remaining.at, i32 1 seq_cst, align 4
  br label %look
done:
  ret void
}

define i32 @<PARALLEL_FOR>(ptr %ctx, ptr %task, ptr %closure, i64 %asked) nounwind {
entry:
  %pool.at = getelementptr i8, ptr %ctx, i32 <POOL>
  %state = load ptr, ptr %pool.at, align 4
  %word.at = getelementptr i8, ptr %state, i32 <WORD>
  %remaining.at = getelementptr i8, ptr %state, i32 <REMAINING>
  %failed.at = getelementptr i8, ptr %state, i32 <FAILED>
  %task.at = getelementptr i8, ptr %state, i32 <TASK>
  %closure.at = getelementptr i8, ptr %state, i32 <CLOSURE>
  %ctx.at = getelementptr i8, ptr %state, i32 <CTX>
  %epoch.at = getelementptr i8, ptr %state, i32 <EPOCH>
  %sleepers.at = getelementptr i8, ptr %state, i32 <SLEEPERS>
  %many = icmp ugt i64 %asked, <MOST>
  br i1 %many, label %refuse, label %publish
publish:
  store ptr %task, ptr %task.at, align 4
  store ptr %closure, ptr %closure.at, align 4
  store ptr %ctx, ptr %ctx.at, align 4
  store atomic i32 0, ptr %failed.at seq_cst, align 4
  %count = trunc i64 %asked to i32
  store atomic i32 %count, ptr %remaining.at seq_cst, align 4
  %old = load atomic i32, ptr %epoch.at seq_cst, align 4
  %epoch = add i32 %old, 1
  %wide = zext i32 %epoch to i64
  %high = shl i64 %wide, 32
  %middle = shl i64 %asked, 16
  %both = or i64 %high, %middle
  %word = or i64 %both, 1
  store atomic i64 %word, ptr %word.at seq_cst, align 8
  store atomic i32 %epoch, ptr %epoch.at seq_cst, align 4
  %asleep = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %quiet = icmp eq i32 %asleep, 0
  br i1 %quiet, label %first, label %wake
wake:
  %woken = call i32 @llvm.wasm.memory.atomic.notify(ptr %epoch.at, i32 -1)
  br label %first
first:
  call void %task(ptr %ctx, ptr %closure, i64 0, i64 0)
  %before = atomicrmw sub ptr %remaining.at, i32 1 seq_cst, align 4
  call void @share(ptr %state, i64 0)
  br label %wait
wait:
  %left = load atomic i32, ptr %remaining.at seq_cst, align 4
  %over = icmp eq i32 %left, 0
  br i1 %over, label %done, label %wait
done:
  %failed = load atomic i32, ptr %failed.at seq_cst, align 4
  ret i32 %failed
refuse:
  ret i32 1
}

define void @<WORK>(ptr %state, i32 %number) nounwind {
entry:
  %thread = zext i32 %number to i64
  %epoch.at = getelementptr i8, ptr %state, i32 <EPOCH>
  %sleepers.at = getelementptr i8, ptr %state, i32 <SLEEPERS>
  br label %look
look:
  %seen = load atomic i32, ptr %epoch.at seq_cst, align 4
  call void @share(ptr %state, i64 %thread)
  br label %idle
idle:
  %looks = phi i32 [ 0, %look ], [ %more, %again ]
  %now = load atomic i32, ptr %epoch.at seq_cst, align 4
  %new = icmp ne i32 %now, %seen
  br i1 %new, label %look, label %again
again:
  %more = add i32 %looks, 1
  %tired = icmp ugt i32 %more, <LOOKS>
  br i1 %tired, label %sleep, label %idle
sleep:
  %a = atomicrmw add ptr %sleepers.at, i32 1 seq_cst, align 4
  %woken = call i32 @llvm.wasm.memory.atomic.wait32(ptr %epoch.at, i32 %seen, i64 -1)
  %b = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst, align 4
  br label %look
}
"""
