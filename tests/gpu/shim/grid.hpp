// Groups of threads on one CPU thread: each is a fiber of its own once it has to wait for others, and what it may not do is said, with the line of the text.
//
// Threads run one after another, up to a barrier; then those that wait there go on together. `seed` chooses their order: 0 forwards, 1 backwards, else by chance.
// A barrier that only some threads reach, or a warp's function that only some of its lanes call, is an error, and so is what the sanitizer finds
// (indices of arrays, alignment, overflow, conversions) and an access to memory that is not there.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

typedef unsigned char uchar;

struct uint3 {
  unsigned x, y, z;
};

namespace shim {

enum State { FRESH, READY, AT_BARRIER, AT_WARP, DONE };

struct Thread {
  uint3 index;
  unsigned number;
  State state;
  int line;            // of the barrier or the warp's function that it waits at
  unsigned exchanges;  // how many of the warp's functions it has called
  unsigned copies;     // that it has begun and not awaited
  jmp_buf at;
};

typedef void (*Body)(void *const *buffers, const int64_t *dims);

constexpr unsigned MOST = 1024, SLOT = 64;
constexpr size_t STACK = 128 << 10;

inline Thread threads[MOST];
inline Thread *current;
inline uint3 group, groups, extent;
inline unsigned count, warp, order[MOST];
alignas(16) inline unsigned char slots[2][MOST][SLOT];  // what a thread shows to its warp, in turn
inline char said[512];
inline jmp_buf scheduler, caller;
inline char *stacks;
inline unsigned used, started;
inline unsigned idle[MOST], idles;
inline jmp_buf fibers[MOST];
inline Body body;
inline void *const *buffers;
inline const int64_t *dims;

[[noreturn]] inline void fail(const char *text, ...) {
  va_list list;
  va_start(list, text);
  vsnprintf(said, sizeof said, text, list);
  va_end(list);
  _longjmp(caller, 1);
}

inline Thread *next_fresh() { return started < count ? &threads[order[started++]] : nullptr; }

// A fiber runs threads until one of them waits: the rest are then another fiber's.
inline void fiber(unsigned k) {
  for (;;) {
    while (Thread *t = next_fresh()) {
      current = t;
      body(buffers, dims);
      current->state = DONE;
    }
    idle[idles++] = k;
    if (!_setjmp(fibers[k])) _longjmp(scheduler, 1);
  }
}

inline void wait(State state, int line) {
  Thread *t = current;
  t->state = state;
  t->line = line;
  if (!_setjmp(t->at)) _longjmp(scheduler, 1);
  current = t;
}

inline void barrier(int line) { wait(AT_BARRIER, line); }
inline void warp_barrier(int line) { wait(AT_WARP, line); }

__attribute__((noinline)) inline void resume_fresh() {
  static ucontext_t context;
  if (_setjmp(scheduler)) return;
  if (idles) _longjmp(fibers[idle[--idles]], 1);
  unsigned k = used++;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks + k * STACK;
  context.uc_stack.ss_size = STACK;
  context.uc_link = nullptr;
  makecontext(&context, (void (*)())fiber, 1, k);
  setcontext(&context);
}

__attribute__((noinline)) inline void resume(Thread *t) {
  if (_setjmp(scheduler)) return;
  _longjmp(t->at, 1);
}

// Warps of which every lane waits go on; whether there was one.
inline bool release_warps() {
  bool any = false;
  for (unsigned first = 0; first < count; first += warp) {
    unsigned waiting = 0, lanes = first + warp < count ? warp : count - first;
    int line = 0;
    for (unsigned k = first; k < first + lanes; ++k)
      if (threads[k].state == AT_WARP) ++waiting, line = threads[k].line;
    if (!waiting) continue;
    for (unsigned k = first; k < first + lanes; ++k)
      if (threads[k].state != AT_WARP || threads[k].line != line)
        fail("line %d: a function of the warp is called by %u of its %u lanes: lane %u is %s", line, waiting, lanes, k - first,
             threads[k].state == DONE ? "done" : threads[k].state == AT_BARRIER ? "at a barrier" : "at another");
    for (unsigned k = first; k < first + lanes; ++k) threads[k].state = READY;
    any = true;
  }
  return any;
}

inline void run_group() {
  started = 0;  // every fiber of the group before is idle
  while (started < count) resume_fresh();
  for (;;) {
    bool any = false;
    for (unsigned k = 0; k < count; ++k) {
      Thread *t = &threads[order[k]];
      if (t->state == READY) resume(t), any = true;
    }
    if (any || release_warps()) continue;
    unsigned waiting = 0, done = 0;
    int line = 0;
    for (unsigned k = 0; k < count; ++k) {
      if (threads[k].state == DONE) ++done;
      else if (!waiting++) line = threads[k].line;
      else if (threads[k].line != line) fail("threads of one group wait at different barriers, lines %d and %d", line, threads[k].line);
    }
    if (!waiting) return;
    if (done) fail("line %d: the barrier is reached by %u of %u threads", line, waiting, count);
    for (unsigned k = 0; k < count; ++k) threads[k].state = READY;
  }
}

inline void on_signal(int number, siginfo_t *info, void *) {
  char *at = (char *)info->si_addr;
  if (stacks && at >= stacks && at < stacks + count * STACK) fail("a thread needs more than %zu bytes of stack", STACK);
  fail("memory at %p is not there (signal %d), thread %u of group (%u, %u, %u)", (void *)at, number, current ? current->number : 0, group.x, group.y, group.z);
}

// Grid of groups, group of threads, extents in the order x, y, z. Gives what went wrong, or "".
inline const char *launch(Body of, void *const *with, const int64_t *sizes, const unsigned *grid, const unsigned *threads_of, unsigned lanes, unsigned seed,
                          char *shared, char *shared_end) {
  said[0] = 0;
  body = of, buffers = with, dims = sizes, warp = lanes;
  groups = {grid[0], grid[1], grid[2]}, extent = {threads_of[0], threads_of[1], threads_of[2]};
  count = extent.x * extent.y * extent.z;
  if (!count || count > MOST) return "a group has 1 to 1024 threads";
  for (unsigned k = 0; k < count; ++k) order[k] = seed == 1 ? count - 1 - k : k;
  uint64_t state = seed;
  for (unsigned k = count; seed > 1 && k > 1; --k) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    unsigned other = (state >> 33) % k, kept = order[k - 1];
    order[k - 1] = order[other], order[other] = kept;
  }
  struct sigaction ours = {}, before[2];
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &ours, &before[0]);
  sigaction(SIGBUS, &ours, &before[1]);
  stacks = (char *)mmap(nullptr, count * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (unsigned k = 0; k < count; ++k) mprotect(stacks + k * STACK, 4096, PROT_NONE);
  current = nullptr;
  idles = used = 0;
  if (!_setjmp(caller))
    for (group.z = 0; group.z < grid[2]; ++group.z)
      for (group.y = 0; group.y < grid[1]; ++group.y)
        for (group.x = 0; group.x < grid[0]; ++group.x) {
          memset(shared, 0xff, shared_end - shared);
          for (unsigned k = 0; k < count; ++k)
            threads[k].index = {k % extent.x, k / extent.x % extent.y, k / extent.x / extent.y}, threads[k].number = k, threads[k].state = FRESH,
            threads[k].exchanges = threads[k].copies = 0;
          run_group();
        }
  munmap(stacks, count * STACK);
  stacks = nullptr;
  sigaction(SIGSEGV, &before[0], nullptr);
  sigaction(SIGBUS, &before[1], nullptr);
  return said;
}

// -- what lanes of a warp tell each other

inline unsigned lane() { return current->number % warp; }
inline unsigned first_lane() { return current->number - lane(); }

// Every lane shows a value; after it `shown` gives any lane's. Two turns alternate: nobody shows the next but one before all have read this.
template <class T> struct Shown {
  unsigned turn, first;
  T operator[](unsigned lane_) const {
    T value;
    if (lane_ >= warp || first + lane_ >= count) memset(&value, 0xff, sizeof value);
    else memcpy(&value, slots[turn][first + lane_], sizeof value);
    return value;
  }
};
template <class T> inline Shown<T> show(const T &value, int line) {
  static_assert(sizeof(T) <= SLOT, "a slot is too small");
  unsigned turn = current->exchanges++ % 2;
  memcpy(slots[turn][current->number], &value, sizeof value);
  warp_barrier(line);
  return {turn, first_lane()};
}

// -- copies that a thread begins: where they go is rubbish until it awaits them

struct Copy {
  void *to;
  unsigned size;
  unsigned char bytes[16];
};
constexpr unsigned COPIES = 128;
inline Copy copies[MOST][COPIES];

inline void begin_copy(void *to, const void *from, unsigned size) {
  if ((uintptr_t)to % size || (uintptr_t)from % size) fail("a copy of %u bytes does not begin at a multiple of them, thread %u", size, current->number);
  if (current->copies == COPIES) fail("a thread begins more than %u copies", COPIES);
  Copy &copy = copies[current->number][current->copies++];
  copy.to = to, copy.size = size;
  memcpy(copy.bytes, from, size);
  memset(to, 0xff, size);
}
inline void await_copies() {
  for (unsigned k = 0; k < current->copies; ++k) memcpy(copies[current->number][k].to, copies[current->number][k].bytes, copies[current->number][k].size);
  current->copies = 0;
}

}  // namespace shim

// -- what clang's sanitizer reports

struct SourceLocation {
  const char *file;
  unsigned line, column;
};
#define SHIM_REPORT(name, text) \
  extern "C" [[noreturn]] inline void __ubsan_handle_##name##_abort(SourceLocation *at, ...) { \
    shim::fail("line %u, column %u: %s, thread %u of group (%u, %u, %u)", at->line, at->column, text, shim::current ? shim::current->number : 0, \
               shim::group.x, shim::group.y, shim::group.z); \
  }
SHIM_REPORT(out_of_bounds, "an index is beyond its array")
SHIM_REPORT(shift_out_of_bounds, "a shift is not defined")
SHIM_REPORT(add_overflow, "a sum overflows")
SHIM_REPORT(sub_overflow, "a difference overflows")
SHIM_REPORT(mul_overflow, "a product overflows")
SHIM_REPORT(negate_overflow, "a negation overflows")
SHIM_REPORT(divrem_overflow, "a division is not defined")
SHIM_REPORT(float_cast_overflow, "a float has no such integer")
SHIM_REPORT(type_mismatch_v1, "an address is misaligned or null")
SHIM_REPORT(load_invalid_value, "a bool is neither false nor true")
SHIM_REPORT(pointer_overflow, "an address overflows")

extern "C" __attribute__((used)) inline __bf16 __truncsfbf2(float x) {  // nearest, ties to even
  unsigned bits = __builtin_bit_cast(unsigned, x);
  bits = x != x ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
  return __builtin_bit_cast(__bf16, (unsigned short)(bits >> 16));
}
extern "C" __attribute__((used)) inline __bf16 __truncdfbf2(double x) { return __truncsfbf2((float)x); }
