"""The worker pool as LLVM IR, in the same ABI as kernels: no C, no Python in its threads.

A job's chunks are shared out beforehand: each thread that may take part has a range of neighbours of its own, about as
many as every other, which it takes from the front; when that is empty it takes from the back of others' ranges. So a
thread mostly runs the same part of one parallel loop after another, and finds in its own cache what it wrote there:
lines that another core wrote cost a third of the time of small kernels.

The job's word says epoch (32 bits), threads that may take part (8), chunks (12); a range's word epoch (32), end (16),
begin (16). The caller publishes a job by storing ranges and then the word; a chunk is claimed by comparing and
exchanging its range's word, which fails if it is not the one that was looked at or is of another epoch: a worker that
slept through jobs, or is late, claims rightly or not at all, so nobody ever waits for a sleeping worker. The job's
description may be read after a claim succeeded, because the job cannot end before the claimed chunk has.

A task gets the number of the thread that runs it: 0 is the caller, and all are below the threads that the job's context
allows, so scratch is wanted once for every thread, and stays in its cache from one task to the next.

An idle worker spins for about 50 µs, then sleeps on the epoch. The caller waits in the same way for chunks that others
still run. A second caller while a job runs, or a parallel loop inside a task, runs alone. Workers start when first
needed, with all signals masked, and stay for ever. A state of zeros is a pool without workers: that is all that a child
of fork() needs.

To wake a worker costs the caller several microseconds, as long as a small model takes. So while workers sleep the
caller begins alone, and wakes them once what they would save exceeds what the waking costs: it has the time of the
chunks so far, and what jobs just before could have saved. A job of few tasks wakes them at once, as the first tells
nothing before much of the job is done.

Linux likes to wake a thread on the CPU of the one that wakes it, where it would only wait for the caller to finish. So
the caller publishes its CPU, and a worker leaves that CPU out of its affinity (within the process's own) before it
sleeps, and again if it wakes up there.

Entries of the image: `parallel_for(ctx, task, closure, tasks)`, `start(ctx, threads)` → workers, `ticks()` → the
counter that spinning is measured in.
"""

from __future__ import annotations

from weft.errors import CodegenError
from weft_runtime.abi import IMPORTS, OFFSETS, POINTER, POOL_SPIN

POOL_VERSION = "4"

_WORD, _EPOCH = 0, 4
_TASK, _CLOSURE, _CTX, _TASKS = 64, 72, 80, 88
_REMAINING, _WAITING = 128, 132
_SLEEPERS = 192  # a bit for each worker that sleeps, 256 of them
_BUSY, _WORKERS, _FULL = 256, 264, 272
_CALLER_CPU, _IMPORTS = 328, 336
_DEBT, _ALONE = (
    384,
    392,
)  # what sleeping workers could have saved lately, and when a job last did without them, in ticks
_ARGS = 1024  # 16 bytes for each worker: state, index
_RANGES = 8192  # a line for each thread
_MOST_WORKERS = 254
_CHUNKS_PER_THREAD = 64
_SAMPLES = 4  # chunks per thread from which on the first tells something
# What a wake costs, caller and worker together (20 µs measured on a virtual machine), of the time that an idle
# thread spins.
_WAKE_PERCENT = 40
_MOST_CHUNKS = 2047

_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
# The aarch64 cycle counter is closed to programs; its steady counter is open.
COUNTERS = {"x86_64": "llvm.readcyclecounter", "aarch64": "llvm.readsteadycounter"}
# Until the runtime has measured it: 50 µs at 3 GHz, or at the 24 MHz … 1 GHz of an ARM timer.
_TICKS = {"x86_64": 150_000, "aarch64": 5_000}


def _import(name: str) -> int:
    return POINTER * IMPORTS.index(name)


def emit_pool(architecture: str) -> str:
    """LLVM IR text of the pool, without target triple.

    Args:
        architecture: "x86_64" or "aarch64".
    """
    if architecture not in _FUTEX:
        raise CodegenError(
            f"there is no worker pool for '{architecture}'", hint="x86_64 and aarch64 have one; run with -threads=1"
        )
    declare_pause, pause = _PAUSE[architecture]
    text = _SOURCE
    for key, value in {
        "DECLARE_PAUSE": declare_pause, "PAUSE": pause, "COUNTER": COUNTERS[architecture],
        "DEFAULT_TICKS": _TICKS[architecture], "FUTEX": _FUTEX[architecture],
        "WORD": _WORD, "EPOCH": _EPOCH, "TASKS": _TASKS, "TASK": _TASK, "CLOSURE": _CLOSURE, "JOBCTX": _CTX,
        "REMAINING": _REMAINING, "WAITING": _WAITING,
        "SLEEPERS": _SLEEPERS, "BUSY": _BUSY, "WORKERS": _WORKERS, "FULL": _FULL, "SPIN": POOL_SPIN,
        "CALLERCPU": _CALLER_CPU, "STATEIMPORTS": _IMPORTS, "ARGS": _ARGS, "RANGES": _RANGES,
        "DEBT": _DEBT, "ALONE": _ALONE, "SAMPLES": _SAMPLES, "WAKE_PERCENT": _WAKE_PERCENT,
        "MOST_WORKERS": _MOST_WORKERS, "PER_THREAD": _CHUNKS_PER_THREAD, "MOST_CHUNKS": _MOST_CHUNKS,
        "CTX_POOL": OFFSETS["pool"], "CTX_THREADS": OFFSETS["threads"], "CTX_IMPORTS": OFFSETS["imports"],
        "ZEROS": _stores("%mask", 0), "ONES": _stores("%full", -1), "ANY_BIT": _any_bit(),
        **{"I_" + name: _import(name) for name in IMPORTS},
    }.items():  # fmt: skip
        text = text.replace(f"<{key}>", str(value))
    return text


def _stores(base: str, value: int) -> str:
    name = base[1:]
    return "\n".join(
        f"  %{name}.{i} = getelementptr i64, ptr {base}, i64 {i}\n  store i64 {value}, ptr %{name}.{i}, align 8"
        for i in range(16)
    )


def _any_bit() -> str:
    lines = ["  %any.0 = load i64, ptr %mask, align 8"]
    for i in range(1, 16):
        lines += [f"  %part.{i} = load i64, ptr %mask.{i}, align 8", f"  %any.{i} = or i64 %any.{i - 1}, %part.{i}"]
    return "\n".join(lines)


_SOURCE = """; worker pool
<DECLARE_PAUSE>
declare i64 @<COUNTER>()

define i64 @ticks() nounwind {
  %t = call i64 @<COUNTER>()
  ret i64 %t
}

; sleeps while *at == expected; wakes that are meant for another bit of the mask pass by
define internal void @sleep_on(ptr %imports, ptr %at, i32 %expected, i64 %bits) noinline nounwind {
  %ulock.at = getelementptr i8, ptr %imports, i64 <I___ulock_wait>
  %ulock = load ptr, ptr %ulock.at, align 8
  %mac = icmp ne ptr %ulock, null
  %value = zext i32 %expected to i64
  br i1 %mac, label %darwin, label %linux
darwin:
  %r0 = call i32 %ulock(i32 1, ptr %at, i64 %value, i32 0)
  ret void
linux:
  %syscall.at = getelementptr i8, ptr %imports, i64 <I_syscall>
  %syscall = load ptr, ptr %syscall.at, align 8
  %r1 = call i64 (i64, ...) %syscall(i64 <FUTEX>, ptr %at, i64 137, i64 %value, ptr null, ptr null, i64 %bits)
  ret void
}

define internal void @wake(ptr %imports, ptr %at, i64 %count, i64 %bits) noinline nounwind {
  %ulock.at = getelementptr i8, ptr %imports, i64 <I___ulock_wake>
  %ulock = load ptr, ptr %ulock.at, align 8
  %mac = icmp ne ptr %ulock, null
  br i1 %mac, label %darwin, label %linux
darwin:
  %r0 = call i32 %ulock(i32 257, ptr %at, i64 0)
  ret void
linux:
  %syscall.at = getelementptr i8, ptr %imports, i64 <I_syscall>
  %syscall = load ptr, ptr %syscall.at, align 8
  %r1 = call i64 (i64, ...) %syscall(i64 <FUTEX>, ptr %at, i64 138, i64 %count, ptr null, ptr null, i64 %bits)
  ret void
}

define internal i64 @spin_limit(ptr %state) nounwind {
  %at = getelementptr i8, ptr %state, i64 <SPIN>
  %set = load i64, ptr %at, align 8
  %unset = icmp eq i64 %set, 0
  %limit = select i1 %unset, i64 <DEFAULT_TICKS>, i64 %set
  ret i64 %limit
}

; 1 + the CPU this thread is on, 0 where the system does not tell
define internal i32 @this_cpu(ptr %imports) nounwind {
  %at = getelementptr i8, ptr %imports, i64 <I_sched_getcpu>
  %f = load ptr, ptr %at, align 8
  %none = icmp eq ptr %f, null
  br i1 %none, label %unknown, label %ask
ask:
  %cpu = call i32 %f()
  %one = add i32 %cpu, 1
  ret i32 %one
unknown:
  ret i32 0
}

; takes CPU number cpu - 1 out of this thread's affinity, unless nothing is left
define internal void @avoid(ptr %imports, i32 %cpu) noinline nounwind {
  %mask = alloca [16 x i64], align 16
  %bit = sub i32 %cpu, 1
  %fits = icmp ult i32 %bit, 1024
  br i1 %fits, label %read, label %leave
read:
<ZEROS>
  %getpid.at = getelementptr i8, ptr %imports, i64 <I_getpid>
  %getpid = load ptr, ptr %getpid.at, align 8
  %pid = call i32 %getpid()
  %get.at = getelementptr i8, ptr %imports, i64 <I_sched_getaffinity>
  %get = load ptr, ptr %get.at, align 8
  %got = call i32 %get(i32 %pid, i64 128, ptr %mask)
  %good = icmp sge i32 %got, 0
  br i1 %good, label %clear, label %leave
clear:
  %index = lshr i32 %bit, 6
  %index64 = zext i32 %index to i64
  %within = and i32 %bit, 63
  %within64 = zext i32 %within to i64
  %single = shl i64 1, %within64
  %keep = xor i64 %single, -1
  %place = getelementptr i64, ptr %mask, i64 %index64
  %before = load i64, ptr %place, align 8
  %after = and i64 %before, %keep
  store i64 %after, ptr %place, align 8
<ANY_BIT>
  %some = icmp ne i64 %any.15, 0
  br i1 %some, label %set, label %leave
set:
  %set.at = getelementptr i8, ptr %imports, i64 <I_sched_setaffinity>
  %setf = load ptr, ptr %set.at, align 8
  %done = call i32 %setf(i32 0, i64 128, ptr %mask)
  ret void
leave:
  ret void
}

; where the word of thread number `who` stands
define internal ptr @range_of(ptr %state, i64 %who) nounwind {
  %line = shl i64 %who, 6
  %offset = add i64 %line, <RANGES>
  %at = getelementptr i8, ptr %state, i64 %offset
  ret ptr %at
}

; as thread number `who` claims and runs chunks of the job, if it is invited, until none is left or it has run `most` (-1: no limit). How many it ran.
define internal i32 @work(ptr %state, i64 %who, i32 %most) nounwind {
entry:
  %word.at = getelementptr i8, ptr %state, i64 <WORD>
  %w = load atomic i64, ptr %word.at acquire, align 8
  %epoch = lshr i64 %w, 32
  %p = lshr i64 %w, 24
  %people = and i64 %p, 255
  %c = lshr i64 %w, 12
  %count = and i64 %c, 4095
  %invited = icmp ult i64 %who, %people
  br i1 %invited, label %visit, label %leave.now
leave.now:
  ret i32 0
visit:
  %owner = phi i64 [ %who, %entry ], [ %neighbour, %pass ]
  %ran.before = phi i32 [ 0, %entry ], [ %ran, %pass ]
  %range.at = call ptr @range_of(ptr %state, i64 %owner)
  %own = icmp eq i64 %owner, %who
  br label %look
look:
  %ran = phi i32 [ %ran.before, %visit ], [ %ran, %claim ], [ %ran.more, %chunk.done ]
  %r = load atomic i64, ptr %range.at monotonic, align 8
  %r.epoch = lshr i64 %r, 32
  %present = icmp eq i64 %r.epoch, %epoch
  %begin = and i64 %r, 65535
  %r.high = lshr i64 %r, 16
  %end = and i64 %r.high, 65535
  %some = icmp ult i64 %begin, %end
  %can = and i1 %some, %present
  br i1 %can, label %claim, label %pass
pass:
  %after = add i64 %owner, 1
  %wraps = icmp eq i64 %after, %people
  %neighbour = select i1 %wraps, i64 0, i64 %after
  %all = icmp eq i64 %neighbour, %who
  br i1 %all, label %none, label %visit
claim:
  %r.front = add i64 %r, 1
  %r.back = sub i64 %r, 65536
  %r.next = select i1 %own, i64 %r.front, i64 %r.back
  %x = cmpxchg ptr %range.at, i64 %r, i64 %r.next seq_cst monotonic
  %mine = extractvalue { i64, i1 } %x, 1
  br i1 %mine, label %run, label %look
run:
  %last.one = sub i64 %end, 1
  %next = select i1 %own, i64 %begin, i64 %last.one
  %task.at = getelementptr i8, ptr %state, i64 <TASK>
  %task = load ptr, ptr %task.at, align 8
  %closure.at = getelementptr i8, ptr %state, i64 <CLOSURE>
  %closure = load ptr, ptr %closure.at, align 8
  %ctx.at = getelementptr i8, ptr %state, i64 <JOBCTX>
  %ctx = load ptr, ptr %ctx.at, align 8
  %tasks.at = getelementptr i8, ptr %state, i64 <TASKS>
  %tasks = load i64, ptr %tasks.at, align 8
  %per = udiv i64 %tasks, %count
  %rest = urem i64 %tasks, %count
  ; the first `rest` chunks hold one task more
  %low0 = mul i64 %per, %next
  %extra.less = icmp ult i64 %next, %rest
  %extra = select i1 %extra.less, i64 %next, i64 %rest
  %low = add i64 %low0, %extra
  %size1 = zext i1 %extra.less to i64
  %size = add i64 %per, %size1
  %high = add i64 %low, %size
  br label %task.loop
task.loop:
  %i = phi i64 [ %low, %run ], [ %i.next, %task.loop ]
  call void %task(ptr %ctx, ptr %closure, i64 %i, i64 %who)
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %high
  br i1 %more, label %task.loop, label %chunk.done
chunk.done:
  %ran.more = add i32 %ran, 1
  %enough = icmp eq i32 %ran.more, %most
  br i1 %enough, label %none, label %look
none:
  %total = phi i32 [ %ran, %pass ], [ %ran.more, %chunk.done ]
  %did = icmp ne i32 %total, 0
  br i1 %did, label %report, label %leave
report:
  %remaining.at = getelementptr i8, ptr %state, i64 <REMAINING>
  %old = atomicrmw sub ptr %remaining.at, i32 %total seq_cst
  %last = icmp eq i32 %old, %total
  br i1 %last, label %tell, label %leave
tell:
  %waiting.at = getelementptr i8, ptr %state, i64 <WAITING>
  %waiting = load atomic i32, ptr %waiting.at seq_cst, align 4
  %asleep = icmp ne i32 %waiting, 0
  br i1 %asleep, label %rouse, label %leave
rouse:
  %imports.at = getelementptr i8, ptr %state, i64 <STATEIMPORTS>
  %imports = load ptr, ptr %imports.at, align 8
  call void @wake(ptr %imports, ptr %remaining.at, i64 1, i64 4294967295)
  br label %leave
leave:
  ret i32 %total
}

; chunks that nobody has taken yet
define internal i64 @unclaimed(ptr %state, i64 %people) nounwind {
entry:
  br label %next
next:
  %who = phi i64 [ 0, %entry ], [ %more, %next ]
  %sum = phi i64 [ 0, %entry ], [ %sum.more, %next ]
  %at = call ptr @range_of(ptr %state, i64 %who)
  %r = load atomic i64, ptr %at monotonic, align 8
  %begin = and i64 %r, 65535
  %high = lshr i64 %r, 16
  %end = and i64 %high, 65535
  %here = sub i64 %end, %begin
  %sum.more = add i64 %sum, %here
  %more = add i64 %who, 1
  %again = icmp ult i64 %more, %people
  br i1 %again, label %next, label %done
done:
  ret i64 %sum.more
}

; stores everybody's range: neighbours, the first ranges one chunk longer where they do not come out even
define internal void @share_out(ptr %state, i64 %epoch, i64 %people, i64 %chunks) nounwind {
entry:
  %high = shl i64 %epoch, 32
  %each = udiv i64 %chunks, %people
  %rest = urem i64 %chunks, %people
  br label %next
next:
  %who = phi i64 [ 0, %entry ], [ %more, %next ]
  %begin = phi i64 [ 0, %entry ], [ %end, %next ]
  %longer = icmp ult i64 %who, %rest
  %one = zext i1 %longer to i64
  %size = add i64 %each, %one
  %end = add i64 %begin, %size
  %end.high = shl i64 %end, 16
  %r0 = or i64 %high, %end.high
  %r = or i64 %r0, %begin
  %at = call ptr @range_of(ptr %state, i64 %who)
  store atomic i64 %r, ptr %at monotonic, align 8
  %more = add i64 %who, 1
  %again = icmp ult i64 %more, %people
  br i1 %again, label %next, label %done
done:
  ret void
}

; runs chunks of the job until none is left, or to wake the workers pays; then it does
define internal void @begin_alone(ptr %imports, ptr %state, i64 %people, i64 %heads, i64 %bits) noinline nounwind {
entry:
  %limit = call i64 @spin_limit(ptr %state)
  %cost0 = mul i64 %limit, <WAKE_PERCENT>
  %cost = udiv i64 %cost0, 100
  %debt.at = getelementptr i8, ptr %state, i64 <DEBT>
  %alone.at = getelementptr i8, ptr %state, i64 <ALONE>
  %epoch.at = getelementptr i8, ptr %state, i64 <EPOCH>
  %helpers = sub i64 %people, 1
  %began = call i64 @<COUNTER>()
  %before = load i64, ptr %alone.at, align 8
  %pause = sub i64 %began, %before
  %old = icmp ugt i64 %pause, %limit
  %debt.before = load i64, ptr %debt.at, align 8
  %debt = select i1 %old, i64 0, i64 %debt.before
  br label %next
next:
  %ran = phi i64 [ 0, %entry ], [ %ran.more, %weigh ]
  %one = call i32 @work(ptr %state, i64 0, i32 1)
  %now = call i64 @<COUNTER>()
  %spent = sub i64 %now, %began
  %nothing = icmp eq i32 %one, 0
  br i1 %nothing, label %finish, label %weigh
weigh:
  %ran.more = add i64 %ran, 1
  %left = call i64 @unclaimed(ptr %state, i64 %people)
  ; with helpers this thread would run one of `people` chunks of the rest, rounded up
  %up = add i64 %left, %helpers
  %own = udiv i64 %up, %people
  %spared = sub i64 %left, %own
  %saved0 = mul i64 %spared, %spent
  %saved1 = udiv i64 %saved0, %ran.more
  %saved = add i64 %saved1, %debt
  %pays = icmp ugt i64 %saved, %cost
  br i1 %pays, label %rouse, label %next
rouse:
  call void @wake(ptr %imports, ptr %epoch.at, i64 %heads, i64 %bits)
  store i64 0, ptr %debt.at, align 8
  ret void
finish:
  %lost0 = mul i64 %spent, %helpers
  %lost = udiv i64 %lost0, %people
  %debt.now = add i64 %debt, %lost
  store i64 %debt.now, ptr %debt.at, align 8
  store i64 %now, ptr %alone.at, align 8
  ret void
}

define internal ptr @worker(ptr %arg) nounwind {
entry:
  %state = load ptr, ptr %arg, align 8
  %index.at = getelementptr i8, ptr %arg, i64 8
  %index = load i64, ptr %index.at, align 8
  %capped.if = icmp ult i64 %index, 31
  %capped = select i1 %capped.if, i64 %index, i64 31
  %bits = shl i64 1, %capped
  %imports.at = getelementptr i8, ptr %state, i64 <STATEIMPORTS>
  %imports = load ptr, ptr %imports.at, align 8
  %word.at = getelementptr i8, ptr %state, i64 <WORD>
  %epoch.at = getelementptr i8, ptr %state, i64 <EPOCH>
  %sleep.word = lshr i64 %index, 6
  %sleep.off0 = mul i64 %sleep.word, 8
  %sleep.off = add i64 %sleep.off0, <SLEEPERS>
  %sleepers.at = getelementptr i8, ptr %state, i64 %sleep.off
  %sleep.low = and i64 %index, 63
  %sleep.bit = shl i64 1, %sleep.low
  %sleep.clear = xor i64 %sleep.bit, -1
  %cpu.at = getelementptr i8, ptr %state, i64 <CALLERCPU>
  %began.first = call i64 @<COUNTER>()
  br label %look
look:
  %began.before = phi i64 [ %began.first, %entry ], [ %began, %idle ], [ %began, %woken ], [ %began, %moved ]
  %avoided = phi i32 [ 0, %entry ], [ %avoided, %idle ], [ %avoided.now, %woken ], [ %other, %moved ]
  %w = load atomic i64, ptr %word.at acquire, align 8
  %epoch = lshr i64 %w, 32
  %allowed0 = lshr i64 %w, 24
  %allowed = and i64 %allowed0, 255
  %invited = icmp ult i64 %index, %allowed
  br i1 %invited, label %join, label %rest
join:
  %joined = call i32 @work(ptr %state, i64 %index, i32 -1)
  %began.now = call i64 @<COUNTER>()
  br label %rest
rest:
  ; jobs that do not invite this worker do not keep it awake
  %began = phi i64 [ %began.now, %join ], [ %began.before, %look ]
  %limit = call i64 @spin_limit(ptr %state)
  br label %idle
idle:
  %w.now = load atomic i64, ptr %word.at monotonic, align 8
  %epoch.now = lshr i64 %w.now, 32
  %news = icmp ne i64 %epoch.now, %epoch
  br i1 %news, label %look, label %wait
wait:
  <PAUSE>
  %now = call i64 @<COUNTER>()
  %spent = sub i64 %now, %began
  %tired = icmp ugt i64 %spent, %limit
  br i1 %tired, label %bed, label %idle
bed:
  %caller = load atomic i32, ptr %cpu.at monotonic, align 4
  %known = icmp ne i32 %caller, 0
  %changed = icmp ne i32 %caller, %avoided
  %steer = and i1 %known, %changed
  br i1 %steer, label %leave.cpu, label %sleep
leave.cpu:
  call void @avoid(ptr %imports, i32 %caller)
  br label %sleep
sleep:
  %avoided.now = phi i32 [ %avoided, %bed ], [ %caller, %leave.cpu ]
  %s0 = atomicrmw or ptr %sleepers.at, i64 %sleep.bit seq_cst
  %expected = trunc i64 %epoch to i32
  call void @sleep_on(ptr %imports, ptr %epoch.at, i32 %expected, i64 %bits)
  %s1 = atomicrmw and ptr %sleepers.at, i64 %sleep.clear seq_cst
  br label %woken
woken:
  %here = call i32 @this_cpu(ptr %imports)
  %other = load atomic i32, ptr %cpu.at monotonic, align 4
  %same = icmp eq i32 %here, %other
  %told = icmp ne i32 %here, 0
  %clash = and i1 %same, %told
  br i1 %clash, label %moved, label %look
moved:
  call void @avoid(ptr %imports, i32 %other)
  br label %look
}

; makes workers up to `want`; the caller holds `busy`. How many there are.
define internal i64 @grow(ptr %imports, ptr %state, i64 %want) noinline nounwind {
entry:
  %attr = alloca [16 x i64], align 16
  %full = alloca [16 x i64], align 16
  %old = alloca [16 x i64], align 16
  %thread = alloca i64, align 8
  %workers.at = getelementptr i8, ptr %state, i64 <WORKERS>
  %have = load i64, ptr %workers.at, align 8
  %full.at = getelementptr i8, ptr %state, i64 <FULL>
  %refused = load i64, ptr %full.at, align 8
  %stop = icmp ne i64 %refused, 0
  %enough = icmp uge i64 %have, %want
  %nothing = or i1 %stop, %enough
  br i1 %nothing, label %leave, label %prepare
prepare:
  %keep.at = getelementptr i8, ptr %state, i64 <STATEIMPORTS>
  store ptr %imports, ptr %keep.at, align 8
  %ulock.at = getelementptr i8, ptr %imports, i64 <I___ulock_wait>
  %ulock = load ptr, ptr %ulock.at, align 8
  %mac = icmp ne ptr %ulock, null
  %detached = select i1 %mac, i32 2, i32 1
  %setmask = select i1 %mac, i32 3, i32 2
  %init.at = getelementptr i8, ptr %imports, i64 <I_pthread_attr_init>
  %init = load ptr, ptr %init.at, align 8
  %r0 = call i32 %init(ptr %attr)
  %detach.at = getelementptr i8, ptr %imports, i64 <I_pthread_attr_setdetachstate>
  %detach = load ptr, ptr %detach.at, align 8
  %r1 = call i32 %detach(ptr %attr, i32 %detached)
  %stack.at = getelementptr i8, ptr %imports, i64 <I_pthread_attr_setstacksize>
  %stack = load ptr, ptr %stack.at, align 8
  %r2 = call i32 %stack(ptr %attr, i64 8388608)
<ONES>
  %sigmask.at = getelementptr i8, ptr %imports, i64 <I_pthread_sigmask>
  %sigmask = load ptr, ptr %sigmask.at, align 8
  %r3 = call i32 %sigmask(i32 %setmask, ptr %full, ptr %old)
  %create.at = getelementptr i8, ptr %imports, i64 <I_pthread_create>
  %create = load ptr, ptr %create.at, align 8
  br label %next
next:
  %made = phi i64 [ %have, %prepare ], [ %index, %count ]
  %index = add i64 %made, 1
  %more = icmp ule i64 %index, %want
  br i1 %more, label %make, label %finish
make:
  %slot = mul i64 %index, 16
  %slot.off = add i64 %slot, <ARGS>
  %arg = getelementptr i8, ptr %state, i64 %slot.off
  store ptr %state, ptr %arg, align 8
  %arg.index = getelementptr i8, ptr %arg, i64 8
  store i64 %index, ptr %arg.index, align 8
  %r4 = call i32 %create(ptr %thread, ptr %attr, ptr @worker, ptr %arg)
  %ok = icmp eq i32 %r4, 0
  br i1 %ok, label %count, label %refuse
count:
  store i64 %index, ptr %workers.at, align 8
  br label %next
refuse:
  ; the system allows no more threads: do with those there are, and do not ask again
  store i64 1, ptr %full.at, align 8
  br label %finish
finish:
  %r5 = call i32 %sigmask(i32 %setmask, ptr %old, ptr null)
  %destroy.at = getelementptr i8, ptr %imports, i64 <I_pthread_attr_destroy>
  %destroy = load ptr, ptr %destroy.at, align 8
  %r6 = call i32 %destroy(ptr %attr)
  br label %leave
leave:
  %now = load i64, ptr %workers.at, align 8
  ret i64 %now
}

define i32 @start(ptr %ctx, i64 %threads) nounwind {
entry:
  %pool.at = getelementptr i8, ptr %ctx, i64 <CTX_POOL>
  %state = load ptr, ptr %pool.at, align 8
  %imports.at = getelementptr i8, ptr %ctx, i64 <CTX_IMPORTS>
  %imports = load ptr, ptr %imports.at, align 8
  %busy.at = getelementptr i8, ptr %state, i64 <BUSY>
  %x = cmpxchg ptr %busy.at, i32 0, i32 1 seq_cst seq_cst
  %free = extractvalue { i32, i1 } %x, 1
  br i1 %free, label %go, label %leave
go:
  %w0 = sub i64 %threads, 1
  %big = icmp ugt i64 %w0, <MOST_WORKERS>
  %want = select i1 %big, i64 <MOST_WORKERS>, i64 %w0
  %made = call i64 @grow(ptr %imports, ptr %state, i64 %want)
  store atomic i32 0, ptr %busy.at release, align 4
  br label %leave
leave:
  %workers.at = getelementptr i8, ptr %state, i64 <WORKERS>
  %now = load i64, ptr %workers.at, align 8
  %now32 = trunc i64 %now to i32
  ret i32 %now32
}

define i32 @parallel_for(ptr %ctx, ptr %task, ptr %closure, i64 %tasks) nounwind {
entry:
  %pool.at = getelementptr i8, ptr %ctx, i64 <CTX_POOL>
  %state = load ptr, ptr %pool.at, align 8
  %threads.at = getelementptr i8, ptr %ctx, i64 <CTX_THREADS>
  %threads = load i64, ptr %threads.at, align 8
  %no.pool = icmp eq ptr %state, null
  %single = icmp slt i64 %threads, 2
  %few = icmp slt i64 %tasks, 2
  %a0 = or i1 %no.pool, %single
  %alone = or i1 %a0, %few
  br i1 %alone, label %serial, label %try
try:
  %busy.at = getelementptr i8, ptr %state, i64 <BUSY>
  %x = cmpxchg ptr %busy.at, i32 0, i32 1 seq_cst seq_cst
  %free = extractvalue { i32, i1 } %x, 1
  br i1 %free, label %own, label %serial
own:
  %imports.at = getelementptr i8, ptr %ctx, i64 <CTX_IMPORTS>
  %imports = load ptr, ptr %imports.at, align 8
  %want0 = sub i64 %threads, 1
  %big = icmp ugt i64 %want0, <MOST_WORKERS>
  %want = select i1 %big, i64 <MOST_WORKERS>, i64 %want0
  %workers.at = getelementptr i8, ptr %state, i64 <WORKERS>
  %have = load i64, ptr %workers.at, align 8
  %enough = icmp uge i64 %have, %want
  br i1 %enough, label %ready, label %make
make:
  %made = call i64 @grow(ptr %imports, ptr %state, i64 %want)
  br label %ready
ready:
  %workers = phi i64 [ %have, %own ], [ %made, %make ]
  %less = icmp ult i64 %workers, %want
  %helpers = select i1 %less, i64 %workers, i64 %want
  %lonely = icmp eq i64 %helpers, 0
  br i1 %lonely, label %give.up, label %publish
give.up:
  store atomic i32 0, ptr %busy.at release, align 4
  br label %serial
publish:
  %people = add i64 %helpers, 1
  %c0 = mul i64 %people, <PER_THREAD>
  %c0.big = icmp ugt i64 %c0, <MOST_CHUNKS>
  %c1 = select i1 %c0.big, i64 <MOST_CHUNKS>, i64 %c0
  %c1.big = icmp ugt i64 %c1, %tasks
  %chunks = select i1 %c1.big, i64 %tasks, i64 %c1
  %task.at = getelementptr i8, ptr %state, i64 <TASK>
  store ptr %task, ptr %task.at, align 8
  %closure.at = getelementptr i8, ptr %state, i64 <CLOSURE>
  store ptr %closure, ptr %closure.at, align 8
  %ctx.at = getelementptr i8, ptr %state, i64 <JOBCTX>
  store ptr %ctx, ptr %ctx.at, align 8
  %tasks.at = getelementptr i8, ptr %state, i64 <TASKS>
  store i64 %tasks, ptr %tasks.at, align 8
  %waiting.at = getelementptr i8, ptr %state, i64 <WAITING>
  store atomic i32 0, ptr %waiting.at monotonic, align 4
  %remaining.at = getelementptr i8, ptr %state, i64 <REMAINING>
  %chunks32 = trunc i64 %chunks to i32
  store atomic i32 %chunks32, ptr %remaining.at monotonic, align 4
  %cpu = call i32 @this_cpu(ptr %imports)
  %cpu.at = getelementptr i8, ptr %state, i64 <CALLERCPU>
  store atomic i32 %cpu, ptr %cpu.at monotonic, align 4
  %word.at = getelementptr i8, ptr %state, i64 <WORD>
  %w.old = load atomic i64, ptr %word.at monotonic, align 8
  %e.old = lshr i64 %w.old, 32
  %e.new = add i64 %e.old, 1
  %w.e = shl i64 %e.new, 32
  %e.low = lshr i64 %w.e, 32
  call void @share_out(ptr %state, i64 %e.low, i64 %people, i64 %chunks)
  %w.p = shl i64 %people, 24
  %w.c = shl i64 %chunks, 12
  %w.ep = or i64 %w.e, %w.p
  %w.new = or i64 %w.ep, %w.c
  store atomic i64 %w.new, ptr %word.at seq_cst, align 8
  %sleepers.at = getelementptr i8, ptr %state, i64 <SLEEPERS>
  %s.0 = load atomic i64, ptr %sleepers.at seq_cst, align 8
  %s.1.at = getelementptr i64, ptr %sleepers.at, i64 1
  %s.1 = load atomic i64, ptr %s.1.at seq_cst, align 8
  %s.2.at = getelementptr i64, ptr %sleepers.at, i64 2
  %s.2 = load atomic i64, ptr %s.2.at seq_cst, align 8
  %s.3.at = getelementptr i64, ptr %sleepers.at, i64 3
  %s.3 = load atomic i64, ptr %s.3.at seq_cst, align 8
  ; only those that this job invites; exact where they fit one word
  %crowd = icmp ugt i64 %people, 63
  %crowd.shift = select i1 %crowd, i64 0, i64 %people
  %invited.top = shl i64 1, %crowd.shift
  %invited = sub i64 %invited.top, 1
  %s.few = and i64 %s.0, %invited
  %s.01 = or i64 %s.0, %s.1
  %s.23 = or i64 %s.2, %s.3
  %s.all = or i64 %s.01, %s.23
  %sleepers = select i1 %crowd, i64 %s.all, i64 %s.few
  %sleeping = icmp ne i64 %sleepers, 0
  br i1 %sleeping, label %rouse, label %take.part
rouse:
  %useful0 = sub i64 %chunks, 1
  %useful.less = icmp ult i64 %useful0, %helpers
  %useful = select i1 %useful.less, i64 %useful0, i64 %helpers
  ; bits 1 … helpers; the last bit stands for every worker from 31 on, of which some may not be invited: then wake all
  %many = icmp ugt i64 %helpers, 30
  %shift = select i1 %many, i64 31, i64 %people
  %top = shl i64 1, %shift
  %below = sub i64 %top, 1
  %bits = select i1 %many, i64 4294967295, i64 %below
  %heads = select i1 %many, i64 2147483647, i64 %useful
  %telling = mul i64 %people, <SAMPLES>
  %coarse = icmp ult i64 %chunks, %telling
  br i1 %coarse, label %wake.now, label %alone.first
alone.first:
  call void @begin_alone(ptr %imports, ptr %state, i64 %people, i64 %heads, i64 %bits)
  br label %take.part
wake.now:
  %epoch.at = getelementptr i8, ptr %state, i64 <EPOCH>
  call void @wake(ptr %imports, ptr %epoch.at, i64 %heads, i64 %bits)
  br label %take.part
take.part:
  %mine = call i32 @work(ptr %state, i64 0, i32 -1)
  %left0 = load atomic i32, ptr %remaining.at acquire, align 4
  %done0 = icmp eq i32 %left0, 0
  br i1 %done0, label %over, label %wait.for.others
wait.for.others:
  %limit = call i64 @spin_limit(ptr %state)
  %began = call i64 @<COUNTER>()
  br label %spin
spin:
  <PAUSE>
  %left = load atomic i32, ptr %remaining.at acquire, align 4
  %done = icmp eq i32 %left, 0
  br i1 %done, label %over, label %patience
patience:
  %now = call i64 @<COUNTER>()
  %spent = sub i64 %now, %began
  %tired = icmp ugt i64 %spent, %limit
  br i1 %tired, label %bed, label %spin
bed:
  store atomic i32 1, ptr %waiting.at seq_cst, align 4
  %left.then = load atomic i32, ptr %remaining.at seq_cst, align 4
  %done.then = icmp eq i32 %left.then, 0
  br i1 %done.then, label %over, label %sleep
sleep:
  call void @sleep_on(ptr %imports, ptr %remaining.at, i32 %left.then, i64 4294967295)
  br label %bed
over:
  store atomic i32 0, ptr %busy.at release, align 4
  ret i32 0
serial:
  %any = icmp sgt i64 %tasks, 0
  br i1 %any, label %one, label %leave
one:
  %i = phi i64 [ 0, %serial ], [ %i.next, %one ]
  call void %task(ptr %ctx, ptr %closure, i64 %i, i64 0)
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %tasks
  br i1 %more, label %one, label %leave
leave:
  ret i32 0
}
"""  # noqa: E501
