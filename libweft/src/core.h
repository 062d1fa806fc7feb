/* What the parts of the runtime share. The whole runtime is one translation unit (core.c): nothing here is visible
   outside. It calls nothing but what `surroundings.h` names, so that it runs in a library of the system's compiler and
   in an export, which has no linker but Weft's. */
#ifndef WEFT_CORE_H
#define WEFT_CORE_H

#include <stddef.h>
#include <stdint.h>

/* The header of the ABI has names that weft.h uses in another sense. */
#define WEFT_OK WEFT_CODE_OK
#define weft_run weft_segment
#include "weft_abi.h"
#undef WEFT_OK
#undef weft_run
#define WEFT_TENSOR_DEFINED
#include "weft.h"

#include "surroundings.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((minsize)), apply_to = function)
#endif
#define WEFT_FORMAT 7
#define LARGEST ((int64_t)1 << 47) /* bytes, sizes: processors address no more memory */
#define MOST_DIMENSIONS 64
#define DEEPEST_PLAN 64 /* branches and loops inside of each other */

/* -- errors */

/* What the functions of one call share. */
typedef struct scope {
  const weft_program *program; /* NULL: there is none yet */
  weft_error *error;           /* NULL: the caller asks for none */
} scope;

/* Texts of errors begin with their code. */
#define ARGUMENT "\x01"
#define INPUT "\x02"
#define OUTPUT "\x03"
#define MEMORY "\x04"
#define UNREADABLE "\x05"
#define ARCHIVE "\x06"
#define VERSION "\x07"
#define MACHINE "\x08"
#define UNSUPPORTED "\x09"
#define RUN "\x0a"
#define SYSTEM "\x0b"

/* What texts have in common, by a byte each. */
#define OF_NAME "\x80"
#define HAS_SIZE "\x81"
#define ON_AXIS "\x82"
#define EXPECTED "\x83"
#define HINT "\x84"
#define WHY "\x85"
#define WHERE "\x86"
#define STORAGE_FOR "\x87"
#define RESULT_HAS "\x88"
#define HINT_SMALLER "\x89"
#define NULL_POINTER "\x8a"
#define COLLECTS "\x8b"
#define HINT_PACKAGE "\x8c"
#define HINT_COMPILE "\x8d"
#define HINT_COPY "\x8e"
#define ARCHIVE_HAS "\x8f"
#define THIS_LIBRARY "\x90"
#define COMPILED_FOR "\x91"
#define KIND_AND_NAME "\x92"
#define NO_MEMORY "\x93"
#define THE_INPUT "\x94"
#define A_LOOP "\x95"
static const char PHRASES[] =
    " of '%n'\0 has size \0 on axis \0, expected \0\nhint: \0\nwhy: \0\nwhere: %a\0storage for output \0, the result has \0"
    HINT "run smaller inputs\0 is a null pointer\0" A_LOOP " collects results of \0" HINT "run it with the package weft-runtime\0"
    HINT "compile the model again\0" HINT "save or copy it again\0the archive has \0this library \0'%n' was compiled for \0%a '%b'\0no memory for \0input '%i'" OF_NAME "\0a loop" OF_NAME;

/* Writes `text`, in which %n is the program's name, %0 to %7 the numbers and %a to %j the texts among `args`. Returns the
   code that it begins with. */
static int32_t fail(const scope *s, const char *text, const int64_t *args);
#define ARGS(...) ((const int64_t[]){__VA_ARGS__})
#define WORD(text) ((int64_t)(intptr_t)(text))

/* -- the plan, as weft_runtime.plan_words writes it: words of 32 bits, little-endian. A list says where its rows begin,
   in bytes from the beginning of the plan, and how many they are; a text says where it begins. */

typedef struct list {
  uint32_t at;
  int32_t count;
} list;

typedef struct head {
  char magic[4]; /* "weft" */
  int32_t format;
  uint32_t bytes; /* of the plan, without the hash that follows it */
  uint32_t name, target, version, machine;
  uint32_t missing, what; /* what only runs where Python is; `missing` is 0 if there is nothing */
  int32_t threads;        /* of parallel loops; -1: as many as there are processors, 0: there are no such loops */
  int32_t symbols;
  uint32_t pool_entry; /* of the pool, where its code of parallel loops begins */
  uint64_t weights, weights_bytes; /* where they lie in the archive; no bytes: there are none */
  unsigned char weights_hash[32], signature[32];
  list features, sections, constants, formulas, plans; /* of plans, the last is the program's own */
  list pool; /* words of the image of the worker pool; an export has it elsewhere */
} head;

typedef struct feature { /* an extension of the instruction set, and how to ask for it (processor.c) */
  uint32_t name;
  uint8_t kind, place, number, part;
  uint32_t leaf, saved;
} feature;

typedef struct section {
  uint32_t name, unused;
  uint64_t at, bytes; /* where it lies in the archive */
  unsigned char hash[32];
} section;

typedef struct constant {
  int32_t element, unused;
  uint64_t at; /* in the weights, of which it has as many bytes as its sizes say */
  list sizes;
} constant;

typedef struct info { /* of a value */
  uint32_t name, dtype;
  uint8_t code, bits; /* DLPack's type */
  uint8_t any, element; /* any: the run says its rank and sizes, `sizes` is a guess; bytes of an element */
  list sizes;    /* -1: open */
  list formulas; /* of each dimension the number of its formula, from 1 on; 0: it is fixed or only the run says it */
} info;

typedef struct check {
  int32_t code;
  uint32_t text;
} check;

typedef struct turn { /* how a loop goes over a value */
  int32_t axis, back;
} turn;

enum { STEP_NATIVE, STEP_SIZES, STEP_SAME, STEP_IF, STEP_LOOP };
enum { ABSENT = -1, CONSTANT = -2 }; /* slot CONSTANT - k is constant k */

typedef struct step {
  int32_t kind;
  union {
    struct { int32_t section; uint32_t entry; int32_t number; } native; /* number: among the native steps of all plans */
    struct { int32_t then, other, unused; } branch;
    struct { int32_t body, carried, tests; } loop;
  } of;
  list in, out;          /* slots */
  list items, constants; /* of native steps: names of kernels, numbers of constants */
  list checks;
  list taken, rows; /* of loops: turns */
} step;

typedef struct symbol { /* a size that data say */
  int32_t number, slot, index, unused;
} symbol;

typedef struct plan {
  list infos; /* of every slot: inputs, values, outputs */
  int32_t ins, outs;
  list steps, symbols;
  int32_t depth, unused; /* more than those of the plans that it runs */
} plan;

/* -- what a program is */

typedef struct held held; /* a tensor of a run */
typedef struct call call; /* what a call of a segment needs for itself */

typedef struct native {
  weft_segment *run;
  call *free; /* calls that nobody uses */
  int32_t lock;
} native;

struct weft_program {
  const char *base; /* the plan */
  const head *head;
  const plan *plan, *own;
  int32_t threads;
  int32_t natives_count;
  held *constants;
  native *natives;
  void *workers; /* the state of the pool of threads */
  weft_parallel_for *parallel_for;
  void (*leave)(void *file); /* gives back what it was opened from */
  void *file;
};

/* The rows of a list of the plan, and a text. */
#define ROWS(p, type, l) ((const type *)(const void *)((p)->base + (l).at))
#define TEXT(p, at) ((p)->base + (at))

/* What a program is made of. */
typedef struct code_part {
  const char *base; /* where the image is mapped */
  size_t bytes;
} code_part;

typedef struct parts {
  const char *weights;
  uint64_t weights_bytes;
  const code_part *code; /* of each section of the plan */
} parts;

#endif
