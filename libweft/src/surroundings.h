/* What the runtime takes from where it is: defined by `surroundings.c` in libweft, and by the writer of an export. */
#ifndef WEFT_SURROUNDINGS_H
#define WEFT_SURROUNDINGS_H

#include <stdint.h>

#if defined(__GNUC__) && !defined(_WIN32)
#define WEFT_HIDDEN __attribute__((visibility("hidden")))
#else
#define WEFT_HIDDEN
#endif

/* Functions of the C library; NULL where the system lacks one. */
typedef struct weft_system {
  void *imports[WEFT_IMPORTS];   /* those that compiled code uses, in the order of the ABI */
  char *(*getenv)(const char *);
  unsigned long (*getauxval)(unsigned long);
#ifdef WEFT_EVERY_MACHINE
  void *(*aligned_malloc)(size_t bytes, size_t alignment); /* of Windows, which has no posix_memalign */
  void (*aligned_free)(void *);
#endif
} weft_system;

/* What the runtime writes; zeros at the start. */
typedef struct weft_state {
  void *pool;   /* of the worker threads of this library */
  int32_t lock;
} weft_state;

extern const weft_system weft_sys WEFT_HIDDEN;
extern weft_state weft_own WEFT_HIDDEN;
extern const char weft_machine[] WEFT_HIDDEN; /* "x86_64", "aarch64", ... as manifests say */

/* Of exports: what runs parallel loops, or NULL: there is no worker pool here. libweft has it from archives. */
weft_parallel_for *weft_pool(void) WEFT_HIDDEN;
/* The instruction cpuid: eax, ebx, ecx, edx; zeros on other processors. */
void weft_cpuid(uint32_t leaf, uint32_t part, uint32_t *out) WEFT_HIDDEN;
/* The register of extended states that the system saves. */
uint64_t weft_xgetbv(void) WEFT_HIDDEN;

#endif
