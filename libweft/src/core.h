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
#define WEFT_FORMAT 6
#define LARGEST ((int64_t)1 << 47) /* bytes, sizes: processors address no more memory */
#define MOST_DIMENSIONS 64
#define DEEPEST_PLAN 64 /* branches and loops inside of each other */

/* -- errors */

/* Writes `text` with every %s replaced by the next of `words` and every %d by the next of `numbers`; returns `code`. */
static int32_t fail(weft_error *error, int32_t code, const char *text, const char *const *words, const int64_t *numbers);
#define WORDS(...) ((const char *const[]){__VA_ARGS__})
#define NUMBERS(...) ((const int64_t[]){__VA_ARGS__})

/* -- text and memory */

/* Memory that is given back as a whole. */
typedef struct pool {
  void *blocks;
  char *place; /* where the last block goes on */
  size_t room; /* and how much of it is left */
} pool;

static int equal(const char *a, const char *b);
static void copy(void *to, const void *from, size_t bytes);

/* -- values of JSON, in memory of the caller */

typedef struct node {
  char kind;                /* { [ " 0 . t f n: an integer is 0, another number is . */
  const char *key;          /* in an object */
  const char *text;         /* of a string, ended with 0 */
  int64_t number;           /* of an integer, or how many an array or object has */
  size_t begin, end;        /* where it stands in the text that was read */
  struct node *first, *next;
} node;

/* -- what a program is */

typedef struct info {
  const char *name, *dtype;
  uint8_t code, bits;
  int32_t element; /* bytes of one */
  int32_t ndim;
  int32_t any;                /* the run says its rank and sizes: `ndim` is a guess */
  const int64_t *shape;       /* -1: open */
  const char *const *formula; /* of each dimension: postfix code, or NULL where it is fixed or only the run says it */
} info;

typedef struct held held; /* a tensor of a run */

typedef struct constant {
  const char *name;
  held *value;
} constant;

typedef struct check {
  int64_t code;
  const char *what, *hint;
} check;

typedef struct call call; /* what a call of a segment needs for itself */

enum { STEP_NATIVE, STEP_SIZES, STEP_SAME, STEP_IF, STEP_LOOP };
enum { ABSENT = -1, CONSTANT = -2 }; /* slot CONSTANT - k is constant k */

typedef struct step {
  int32_t kind, ins, outs;
  const int32_t *in, *out; /* slots */
  /* native */
  weft_segment *run;
  void *const *table; /* of constants */
  const char *const *items;
  int32_t item_count, check_count;
  const check *checks;
  call *free; /* calls that nobody uses */
  int32_t lock;
  /* if: the plans; loop: the body is `then` */
  int32_t then, other;
  int32_t carried, tests, items_in, rows;
  const int8_t *item_axis, *item_back, *row_axis, *row_back;
} step;

typedef struct symbol {
  int32_t number, slot;
  int64_t index;
} symbol;

typedef struct plan {
  int32_t ins, outs, slots, steps, symbols, depth;
  const info *infos;   /* of every slot: inputs, values, outputs */
  const int32_t *gives; /* slots of the outputs */
  step *step;
  const symbol *symbol;
} plan;

struct weft_program {
  const char *name, *target, *version;
  int32_t threads, plans, constants, symbols;
  plan *plan; /* the last is the program's own */
  const constant *constant;
  void *workers; /* the state of the pool of threads */
  weft_parallel_for *parallel_for;
  pool memory; /* what lives as long as it */
  void (*leave)(void *file); /* gives back what it was opened from */
  void *file;
};

/* What a program is made of. */
typedef struct code_part {
  const char *name;
  const char *base; /* where the image is mapped */
  size_t bytes;
} code_part;

typedef struct parts {
  const char *manifest, *weights;
  size_t manifest_bytes, weights_bytes;
  const code_part *code;
  int32_t codes;
} parts;

#endif
