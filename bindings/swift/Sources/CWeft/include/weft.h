/* Runs models that Weft compiled.

   Two ways lead to a program, and the code that uses it is the same for both:

   - libweft loads archives (`weft compile -o model.weft`): weft_open("model.weft", ...).
   - `weft export -f elf|pe|macho-obj|obj` writes a library or an object that has one model inside and these functions:
     weft_open(NULL, ...). An object that is linked beside others gives them a prefix (`--prefix resnet`): define
     WEFT_PREFIX before this header is included, and write as before.

   Every function may be called by several threads at once, also for one program; weft_close alone is called once, when
   no other call uses the program. Structures begin with their size, which the caller sets: fields are added at the end
   only. Functions that can fail return 0 (WEFT_OK) or a code, and write what went wrong where `error` points; it may be
   NULL. Nothing is kept in the thread. */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#define WEFT_API_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

#ifdef WEFT_PREFIX
#define WEFT_JOIN_(a, b) a##_##b
#define WEFT_JOIN(a, b) WEFT_JOIN_(a, b)
#define weft_api_version WEFT_JOIN(WEFT_PREFIX, weft_api_version)
#define weft_open WEFT_JOIN(WEFT_PREFIX, weft_open)
#define weft_open_memory WEFT_JOIN(WEFT_PREFIX, weft_open_memory)
#define weft_close WEFT_JOIN(WEFT_PREFIX, weft_close)
#define weft_describe WEFT_JOIN(WEFT_PREFIX, weft_describe)
#define weft_input WEFT_JOIN(WEFT_PREFIX, weft_input)
#define weft_output WEFT_JOIN(WEFT_PREFIX, weft_output)
#define weft_run WEFT_JOIN(WEFT_PREFIX, weft_run)
#define weft_release WEFT_JOIN(WEFT_PREFIX, weft_release)
#endif

#ifndef WEFT_API
#if defined(_WIN32)
#define WEFT_API
#elif defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif
#endif

/* What functions return, and weft_error.code. */
enum {
  WEFT_OK = 0,
  WEFT_ERROR_ARGUMENT = 1,    /* a null pointer, an index or the size of a structure that this version does not know */
  WEFT_ERROR_INPUT = 2,       /* an input of another dtype, rank, size or device */
  WEFT_ERROR_OUTPUT = 3,      /* storage for an output that does not fit */
  WEFT_ERROR_MEMORY = 4,      /* no memory */
  WEFT_ERROR_FILE = 5,        /* the file cannot be read */
  WEFT_ERROR_ARCHIVE = 6,     /* the file is no archive, is cut short, damaged, or not the expected one */
  WEFT_ERROR_VERSION = 7,     /* it was written by another version of Weft */
  WEFT_ERROR_MACHINE = 8,     /* it was compiled for another architecture, or a processor with more instructions */
  WEFT_ERROR_UNSUPPORTED = 9, /* a step of its plan runs where Python is: strings, pictures, other devices */
  WEFT_ERROR_RUN = 10,        /* the run itself failed: a kernel, a condition on data, sizes beyond 64 bits */
  WEFT_ERROR_SYSTEM = 11      /* the system refuses: executable memory is forbidden, for example */
};

/* What went wrong. The caller sets `size` before the first call. */
typedef struct weft_error {
  uint32_t size;     /* sizeof(weft_error) */
  int32_t code;      /* of the last call that got this structure */
  char message[504]; /* UTF-8, ended with 0: what, then lines "where: ", "why: ", "hint: " as far as they are known */
} weft_error;

/* A tensor: DLPack's DLTensor, field by field, so pointers may be cast. Tensors are row-major: `strides` is NULL, or says
   the same. */
#ifndef WEFT_TENSOR_DEFINED
#define WEFT_TENSOR_DEFINED
typedef struct weft_tensor weft_tensor;
struct weft_tensor {
  void *data;           /* an address that is a multiple of the element's size; NULL: an output without storage */
  int32_t device_type;  /* kDLCPU = 1 */
  int32_t device_id;    /* 0 */
  int32_t ndim;         /* dimensions */
  uint8_t code;         /* DLDataType.code */
  uint8_t bits;         /* DLDataType.bits */
  uint16_t lanes;       /* DLDataType.lanes, 1 */
  int64_t *shape;       /* `ndim` sizes */
  int64_t *strides;     /* elements from one index to the next, or NULL */
  uint64_t byte_offset; /* where the first element lies in `data` */
};
#endif

/* DLDataType.code */
enum {
  WEFT_INT = 0, WEFT_UINT = 1, WEFT_FLOAT = 2, WEFT_BFLOAT = 4, WEFT_COMPLEX = 5, WEFT_BOOL = 6,
  WEFT_FLOAT8_E4M3FN = 10, WEFT_FLOAT8_E4M3FNUZ = 11, WEFT_FLOAT8_E5M2 = 12, WEFT_FLOAT8_E5M2FNUZ = 13,
  WEFT_FLOAT8_E8M0FNU = 14, WEFT_FLOAT4_E2M1FN = 17
};

typedef struct weft_program weft_program; /* a loaded model */

/* How a program is opened. Zeros, but for `size`, are the defaults. */
typedef struct weft_options {
  uint32_t size;      /* sizeof(weft_options) */
  int32_t threads;    /* of a run, the caller's included; 0: WEFT_THREADS, the model's own, or as many as the process may use */
  const char *sha256; /* the expected hash of the file, 64 hexadecimal digits: another file is refused; NULL: any */
} weft_options;

/* What a program is. Pointers are valid until it is closed. */
typedef struct weft_program_info {
  uint32_t size;       /* sizeof(weft_program_info) */
  int32_t inputs;      /* how many it takes */
  int32_t outputs;     /* and gives */
  int32_t threads;     /* of a run */
  const char *name;    /* the model's */
  const char *target;  /* that it was compiled for */
  const char *version; /* of Weft, by which it was compiled */
} weft_program_info;

/* What an input or output is. Pointers are valid until the program is closed. */
typedef struct weft_value_info {
  uint32_t size;        /* sizeof(weft_value_info) */
  int32_t ndim;         /* dimensions */
  uint8_t code;         /* DLDataType.code */
  uint8_t bits;         /* DLDataType.bits */
  uint16_t lanes;       /* 1 */
  const char *name;     /* its name */
  const char *dtype;    /* its element type by name: "float32" */
  const int64_t *shape; /* `ndim` sizes, -1 for one that is open */
} weft_value_info;

/* WEFT_API_VERSION of the library. A program that was built with a smaller one runs with it. */
WEFT_API int32_t weft_api_version(void);

/* Opens an archive; of an export, whose model is inside, `path` is NULL. `options` may be NULL. */
WEFT_API int32_t weft_open(const char *path, const weft_options *options, weft_program **program, weft_error *error);

/* Opens an archive that lies in memory, which is used where it lies until the program is closed, if it begins at a
   multiple of 64 bytes, and is copied otherwise. An export refuses. */
WEFT_API int32_t weft_open_memory(const void *data, size_t bytes, const weft_options *options, weft_program **program,
                                  weft_error *error);

/* Gives back all that a program has. NULL is allowed. Outputs that weft_run made stay valid. */
WEFT_API void weft_close(weft_program *program);

WEFT_API int32_t weft_describe(const weft_program *program, weft_program_info *info, weft_error *error);
WEFT_API int32_t weft_input(const weft_program *program, int32_t index, weft_value_info *info, weft_error *error);
WEFT_API int32_t weft_output(const weft_program *program, int32_t index, weft_value_info *info, weft_error *error);

/* Runs the model: `inputs` and `outputs` are as many tensors as weft_describe says, in its order.

   An output whose `data` is NULL gets memory, its sizes are written where `shape` points, which has room for the rank of
   the output, and the other fields are set; weft_release gives the memory back. An output with `data` is storage of the
   caller: its dtype, rank and sizes must be those of the result, and it must not overlap an input or another storage.
   After an error no output has memory of Weft's. */
WEFT_API int32_t weft_run(weft_program *program, const weft_tensor *const *inputs, weft_tensor *const *outputs,
                          weft_error *error);

/* Gives back the memory that weft_run gave an output, and sets `data` to NULL. Nothing else frees it. */
WEFT_API void weft_release(weft_tensor *output);

#ifdef __cplusplus
}
#endif

#endif
