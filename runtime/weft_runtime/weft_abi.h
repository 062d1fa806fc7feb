/* The binary interface between code that Weft compiles and whoever runs it. Written by `python -m weft_runtime.header`; do not edit.

   The layout is that of C. It is the same on every processor whose 64-bit integers are aligned to 8 bytes; where pointers have 4 bytes, fields of
   pointers have 4. Memory of the arena and of constants begins at multiples of 64 bytes. */
#ifndef WEFT_ABI_H
#define WEFT_ABI_H

#include <stddef.h>
#include <stdint.h>

#define WEFT_ABI_VERSION 2
#define WEFT_ERROR_ARGS 8
#define WEFT_DEVICE_CPU 1
#define WEFT_DEVICE_CUDA_HOST 3

/* ctx->error_code; from WEFT_FIRST_CHECK on the manifest has the text. */
enum {
  WEFT_OK = 0,
  WEFT_INPUT_TYPE = 1,
  WEFT_INPUT_SIZE = 2,
  WEFT_OUTPUT_SIZE = 3,
  WEFT_ARENA = 4,
  WEFT_OUTPUT_ALLOCATION = 5,
  WEFT_KERNEL = 6,
  WEFT_DATA_SIZE = 7,
  WEFT_OVERFLOW = 8,
  WEFT_FIRST_CHECK = 100,
};

/* Places in ctx->imports. */
enum {
  WEFT_IMPORT_pthread_create = 0,
  WEFT_IMPORT_pthread_attr_init = 1,
  WEFT_IMPORT_pthread_attr_setdetachstate = 2,
  WEFT_IMPORT_pthread_attr_setstacksize = 3,
  WEFT_IMPORT_pthread_attr_destroy = 4,
  WEFT_IMPORT_pthread_sigmask = 5,
  WEFT_IMPORT_sched_getcpu = 6,
  WEFT_IMPORT_sched_getaffinity = 7,
  WEFT_IMPORT_sched_setaffinity = 8,
  WEFT_IMPORT_syscall = 9,
  WEFT_IMPORT_getpid = 10,
  WEFT_IMPORT___ulock_wait = 11,
  WEFT_IMPORT___ulock_wake = 12,
  WEFT_IMPORT_posix_memalign = 13,
  WEFT_IMPORT_free = 14,
  WEFT_IMPORT_memcpy = 15,
  WEFT_IMPORT_madvise = 16,
  WEFT_IMPORTS = 17
};

typedef struct weft_tensor weft_tensor;
typedef struct weft_context weft_context;
typedef struct weft_room weft_room;
typedef struct weft_host weft_host;
typedef struct weft_move weft_move;
typedef struct weft_swap weft_swap;
typedef struct weft_trips weft_trips;
/* A kernel: inputs, outputs, scratch. */
typedef int32_t weft_kernel(weft_context *ctx, void *const *buffers, const int64_t *dims);
/* A segment. */
typedef int32_t weft_run(weft_context *ctx, const weft_tensor *const *in, weft_tensor *const *out);
/* A task of a parallel loop. */
typedef void weft_task(weft_context *ctx, void *closure, int64_t index, int64_t thread);
/* Runs tasks 0 to tasks - 1. */
typedef int32_t weft_parallel_for(weft_context *ctx, weft_task *task, void *closure, int64_t tasks);
/* Makes the arena at least so large; NULL if it cannot. */
typedef void *weft_allocate_arena(weft_context *ctx, int64_t bytes);
/* Writes data and shape of an output without storage. */
typedef int32_t weft_allocate_output(weft_context *ctx, int64_t index, int64_t rank, const int64_t *shape);
/* Calls a segment again and again. */
typedef int32_t weft_repeat(weft_context *ctx, weft_run *run, const weft_tensor *const *in, weft_tensor *const *out, weft_trips *trips);

/* DLPack's DLTensor (the unmanaged part, ABI of DLPack 0.8 and 1.x). */
struct weft_tensor {
  void *data; /* the memory that the elements lie in; NULL: an output without storage */
  int32_t device_type; /* DLDevice.device_type */
  int32_t device_id; /* DLDevice.device_id */
  int32_t ndim; /* dimensions */
  uint8_t code; /* DLDataType.code */
  uint8_t bits; /* DLDataType.bits */
  uint16_t lanes; /* DLDataType.lanes, 1 */
  int64_t *shape; /* size of each dimension */
  int64_t *strides; /* elements from one index to the next; NULL: row-major */
  uint64_t byte_offset; /* where in the memory the first element lies */
};

/* What a segment and its kernels get as `ctx`: one per concurrent call. */
struct weft_context {
  int64_t version; /* ABI_VERSION of the runtime */
  void *arena; /* memory of this call, aligned to 64 bytes */
  int64_t arena_bytes; /* bytes of the arena */
  void *const *constants; /* where each constant of the segment lies */
  weft_parallel_for *parallel_for; /* runs a parallel loop; NULL: loops run in the thread of the caller */
  weft_allocate_arena *allocate_arena; /* makes the arena larger */
  weft_allocate_output *allocate_output; /* finds memory for an output */
  void *const *imports; /* functions of the C library, in the order of the imports; NULL for those that the system lacks */
  void *pool; /* the state of the worker pool, which parallel_for reads */
  int64_t threads; /* threads that parallel_for may use, the caller's included; 0: there is no pool */
  int64_t error_code; /* 0, or why the run ended */
  int64_t error_args[8]; /* what the error code says about */
  void *host; /* weft_host, for functions of the runtime that a segment calls, not for segments */
};

/* Memory that native code has reserved with `posix_memalign`. */
struct weft_room {
  void *data; /* the memory */
  int64_t bytes; /* its size */
};

/* What `ctx.host` points to: for functions of the runtime's own native code, not for segments. */
struct weft_host {
  weft_tensor *const *outputs; /* the `out` of the call */
  weft_room *rooms; /* for each output, where it lies if only the segment knows its size */
  int64_t count; /* outputs */
};

/* A tensor of a loop whose data move on after each iteration. */
struct weft_move {
  weft_tensor *tensor; /* the tensor */
  int64_t bytes; /* by how many bytes */
};

/* Two tensors of a loop that exchange their data after each iteration. */
struct weft_swap {
  weft_tensor *taken; /* an input of the segment */
  weft_tensor *given; /* an output of the segment */
};

/* What the entry `repeat` of the section `loops` gets of a loop. */
struct weft_trips {
  int64_t trips; /* iterations at most */
  int64_t done; /* afterwards: iterations that ended well */
  int64_t going; /* afterwards: 0 if a test ended the loop */
  int64_t *number; /* the number of the iteration, counted on */
  const uint8_t *test; /* where an iteration says whether there is another, a byte; NULL: it does not say */
  int64_t moving; /* length of `moves` */
  const weft_move *moves; /* tensors whose data move on */
  int64_t carried; /* length of `swaps` */
  const weft_swap *swaps; /* tensors that exchange their data */
};

/* What weft_formula returns. */
enum { WEFT_FORMULA_OK = 0, WEFT_FORMULA_OVERFLOW = 1, WEFT_FORMULA_DIVISION = 2, WEFT_FORMULA_MALFORMED = 3 };

/* One operation of two numbers; `name` is that of the operator. */
static inline int weft_formula_apply(const char *name, int64_t a, int64_t b, int64_t *result) {
  const int equal = name[1] == '=';
  switch (name[0]) {
    case '+':
      if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) return WEFT_FORMULA_OVERFLOW;
      return *result = a + b, WEFT_FORMULA_OK;
    case '-':
      if (b < 0 ? a > INT64_MAX + b : a < INT64_MIN + b) return WEFT_FORMULA_OVERFLOW;
      return *result = a - b, WEFT_FORMULA_OK;
    case '*':
      if (a > 0 ? (b > 0 ? a > INT64_MAX / b : b < INT64_MIN / a) : (b > 0 ? a < INT64_MIN / b : a != 0 && b < INT64_MAX / a)) return WEFT_FORMULA_OVERFLOW;
      return *result = a * b, WEFT_FORMULA_OK;
    case '<':
      return *result = equal ? a <= b : a < b, WEFT_FORMULA_OK;
    case '=':
      return *result = a == b, WEFT_FORMULA_OK;
    case '!':
      return *result = a != b, WEFT_FORMULA_OK;
    case 'm':
      return *result = (name[1] == 'i') == (a < b) ? a : b, WEFT_FORMULA_OK;
    default: { /* "/" and "%" round down, "truncdiv" and "truncmod" towards zero */
      const int remainder = name[0] == '%' || (name[0] == 't' && name[5] == 'm');
      if (b == 0) return WEFT_FORMULA_DIVISION;
      if (b == -1) {
        if (a == INT64_MIN && !remainder) return WEFT_FORMULA_OVERFLOW;
        return *result = remainder ? 0 : -a, WEFT_FORMULA_OK;
      }
      *result = remainder ? a % b : a / b;
      if (name[0] != 't' && a % b != 0 && (a < 0) != (b < 0)) *result += remainder ? b : -1;
      return WEFT_FORMULA_OK;
    }
  }
}

/* The operator that `code` begins with, and how many of its characters are the operator's; -1 for none. */
static inline int weft_formula_operator(const char *code, const char **name, int *operands) {
  static const char names[][9] = {
      "+", "-", "*", "//", "%", "truncdiv", "truncmod", "min", "max", "<", "<=", "==", "!=", "and", "or", "not", "neg", "select"};
  for (int k = 0; k < (int)(sizeof names / sizeof names[0]); ++k) {
    int n = 0;
    while (names[k][n] != 0 && names[k][n] == code[n]) ++n;
    if (names[k][n] == 0 && (code[n] == ' ' || code[n] == 0)) {
      *name = names[k];
      *operands = k < 15 ? 2 : k < 17 ? 1 : 3;
      return n;
    }
  }
  return -1;
}

/* The value of a size formula of a manifest, which is postfix code; symbol number k has the value symbols[k]. */
static inline int weft_formula(const char *code, const int64_t *symbols, int64_t count, int64_t *result) {
  int64_t value[64];
  int error[64], depth = 0; /* an operand that is an error only counts where it is asked for */
  for (const char *at = code;; ++at) {
    const char *name = "";
    int operands = 0, length = weft_formula_operator(at, &name, &operands);
    if (length > 0) {
      at += length;
      depth -= operands;
      if (depth < 0) return WEFT_FORMULA_MALFORMED;
      int64_t *const v = value + depth;
      int *const e = error + depth;
      if (operands == 3) { /* select */
        const int chosen = e[0] != 0 ? 0 : v[0] != 0 ? 1 : 2;
        v[0] = v[chosen];
        e[0] = e[chosen];
      } else if (operands == 1 && e[0] == 0) {
        if (name[1] == 'o') v[0] = v[0] == 0; /* not */
        else e[0] = weft_formula_apply("-", 0, v[0], v);
      } else if (operands == 2 && (name[0] == 'a' || name[0] == 'o')) { /* and, or */
        const int chosen = e[0] != 0 || (v[0] != 0) == (name[0] == 'o') ? 0 : 1;
        v[0] = v[chosen] != 0;
        e[0] = e[chosen];
      } else if (operands == 2 && e[0] == 0) {
        e[0] = e[1] != 0 ? e[1] : weft_formula_apply(name, v[0], v[1], v);
      }
      ++depth;
    } else {
      const int symbol = *at == '$', negative = *at == '-';
      int64_t n = 0; /* negative numbers reach one further */
      if (depth == 64) return WEFT_FORMULA_MALFORMED;
      at += symbol || negative;
      if (*at < '0' || *at > '9' || (*at == '0' && ((at[1] >= '0' && at[1] <= '9') || negative))) return WEFT_FORMULA_MALFORMED;
      for (; *at >= '0' && *at <= '9'; ++at) {
        const int digit = *at - '0';
        if (n < (INT64_MIN + digit) / 10) return WEFT_FORMULA_MALFORMED;
        n = n * 10 - digit;
      }
      if (!negative && n == INT64_MIN) return WEFT_FORMULA_MALFORMED;
      if (!negative) n = -n;
      if (symbol && n >= count) return WEFT_FORMULA_MALFORMED;
      value[depth] = symbol ? symbols[n] : n;
      error[depth++] = WEFT_FORMULA_OK;
    }
    if (*at == 0) break;
    if (*at != ' ') return WEFT_FORMULA_MALFORMED;
  }
  if (depth != 1) return WEFT_FORMULA_MALFORMED;
  if (error[0] == 0) *result = value[0];
  return error[0];
}

#if defined(__cplusplus)
#define WEFT_HOLDS(condition) static_assert(condition, #condition)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define WEFT_HOLDS(condition) _Static_assert(condition, #condition)
#endif
#ifdef WEFT_HOLDS
#define WEFT_AT(wide, narrow) (sizeof(void *) == 8 ? (wide) : (narrow))
WEFT_HOLDS(sizeof(void *) == 8 || sizeof(void *) == 4);
WEFT_HOLDS(sizeof(struct weft_tensor) == WEFT_AT(48, 40));
WEFT_HOLDS(offsetof(struct weft_tensor, data) == WEFT_AT(0, 0));
WEFT_HOLDS(offsetof(struct weft_tensor, device_type) == WEFT_AT(8, 4));
WEFT_HOLDS(offsetof(struct weft_tensor, device_id) == WEFT_AT(12, 8));
WEFT_HOLDS(offsetof(struct weft_tensor, ndim) == WEFT_AT(16, 12));
WEFT_HOLDS(offsetof(struct weft_tensor, code) == WEFT_AT(20, 16));
WEFT_HOLDS(offsetof(struct weft_tensor, bits) == WEFT_AT(21, 17));
WEFT_HOLDS(offsetof(struct weft_tensor, lanes) == WEFT_AT(22, 18));
WEFT_HOLDS(offsetof(struct weft_tensor, shape) == WEFT_AT(24, 20));
WEFT_HOLDS(offsetof(struct weft_tensor, strides) == WEFT_AT(32, 24));
WEFT_HOLDS(offsetof(struct weft_tensor, byte_offset) == WEFT_AT(40, 32));
WEFT_HOLDS(sizeof(struct weft_context) == WEFT_AT(160, 136));
WEFT_HOLDS(offsetof(struct weft_context, version) == WEFT_AT(0, 0));
WEFT_HOLDS(offsetof(struct weft_context, arena) == WEFT_AT(8, 8));
WEFT_HOLDS(offsetof(struct weft_context, arena_bytes) == WEFT_AT(16, 16));
WEFT_HOLDS(offsetof(struct weft_context, constants) == WEFT_AT(24, 24));
WEFT_HOLDS(offsetof(struct weft_context, parallel_for) == WEFT_AT(32, 28));
WEFT_HOLDS(offsetof(struct weft_context, allocate_arena) == WEFT_AT(40, 32));
WEFT_HOLDS(offsetof(struct weft_context, allocate_output) == WEFT_AT(48, 36));
WEFT_HOLDS(offsetof(struct weft_context, imports) == WEFT_AT(56, 40));
WEFT_HOLDS(offsetof(struct weft_context, pool) == WEFT_AT(64, 44));
WEFT_HOLDS(offsetof(struct weft_context, threads) == WEFT_AT(72, 48));
WEFT_HOLDS(offsetof(struct weft_context, error_code) == WEFT_AT(80, 56));
WEFT_HOLDS(offsetof(struct weft_context, error_args) == WEFT_AT(88, 64));
WEFT_HOLDS(offsetof(struct weft_context, host) == WEFT_AT(152, 128));
WEFT_HOLDS(sizeof(struct weft_room) == WEFT_AT(16, 16));
WEFT_HOLDS(offsetof(struct weft_room, data) == WEFT_AT(0, 0));
WEFT_HOLDS(offsetof(struct weft_room, bytes) == WEFT_AT(8, 8));
WEFT_HOLDS(sizeof(struct weft_host) == WEFT_AT(24, 16));
WEFT_HOLDS(offsetof(struct weft_host, outputs) == WEFT_AT(0, 0));
WEFT_HOLDS(offsetof(struct weft_host, rooms) == WEFT_AT(8, 4));
WEFT_HOLDS(offsetof(struct weft_host, count) == WEFT_AT(16, 8));
WEFT_HOLDS(sizeof(struct weft_move) == WEFT_AT(16, 16));
WEFT_HOLDS(offsetof(struct weft_move, tensor) == WEFT_AT(0, 0));
WEFT_HOLDS(offsetof(struct weft_move, bytes) == WEFT_AT(8, 8));
WEFT_HOLDS(sizeof(struct weft_swap) == WEFT_AT(16, 8));
WEFT_HOLDS(offsetof(struct weft_swap, taken) == WEFT_AT(0, 0));
WEFT_HOLDS(offsetof(struct weft_swap, given) == WEFT_AT(8, 4));
WEFT_HOLDS(sizeof(struct weft_trips) == WEFT_AT(72, 64));
WEFT_HOLDS(offsetof(struct weft_trips, trips) == WEFT_AT(0, 0));
WEFT_HOLDS(offsetof(struct weft_trips, done) == WEFT_AT(8, 8));
WEFT_HOLDS(offsetof(struct weft_trips, going) == WEFT_AT(16, 16));
WEFT_HOLDS(offsetof(struct weft_trips, number) == WEFT_AT(24, 24));
WEFT_HOLDS(offsetof(struct weft_trips, test) == WEFT_AT(32, 28));
WEFT_HOLDS(offsetof(struct weft_trips, moving) == WEFT_AT(40, 32));
WEFT_HOLDS(offsetof(struct weft_trips, moves) == WEFT_AT(48, 40));
WEFT_HOLDS(offsetof(struct weft_trips, carried) == WEFT_AT(56, 48));
WEFT_HOLDS(offsetof(struct weft_trips, swaps) == WEFT_AT(64, 56));
#undef WEFT_AT
#undef WEFT_HOLDS
#endif

#endif
