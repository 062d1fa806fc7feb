/* What the runtime takes from the system's C library. */
#ifdef __linux__
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#endif
#include <stdlib.h>
#include <string.h>

#define WEFT_OK WEFT_CODE_OK
#define weft_run weft_segment
#include "weft_abi.h"
#undef weft_run

#include "surroundings.h"

#define FUNCTION(name) [WEFT_IMPORT_##name] = (void *)(uintptr_t)name

const weft_system weft_sys = {
    .imports =
        {
            FUNCTION(pthread_create),
            FUNCTION(pthread_attr_init),
            FUNCTION(pthread_attr_setdetachstate),
            FUNCTION(pthread_attr_setstacksize),
            FUNCTION(pthread_attr_destroy),
            FUNCTION(pthread_sigmask),
#ifdef __linux__
            FUNCTION(sched_getcpu),
            FUNCTION(sched_getaffinity),
            FUNCTION(sched_setaffinity),
            FUNCTION(syscall),
            FUNCTION(madvise),
#endif
            FUNCTION(getpid),
            FUNCTION(posix_memalign),
            FUNCTION(free),
            FUNCTION(memcpy),
        },
    .getenv = getenv,
#if defined(__linux__) && !defined(__x86_64__) && !defined(__i386__)
    .getauxval = getauxval, /* x86 tells by an instruction */
#endif
};

weft_state weft_own;

const char weft_machine[] =
#if defined(__x86_64__)
    "x86_64";
#elif defined(__aarch64__)
    "aarch64";
#elif defined(__i386__)
    "i386";
#elif defined(__arm__)
    "arm";
#elif defined(__riscv) && __riscv_xlen == 64
    "riscv64";
#elif defined(__riscv)
    "riscv32";
#elif defined(__s390x__)
    "s390x";
#else
    "another processor";
#endif

void weft_cpuid(uint32_t leaf, uint32_t part, uint32_t *out) {
  out[0] = out[1] = out[2] = out[3] = 0;
#if defined(__x86_64__) || defined(__i386__)
  __asm__ volatile("cpuid" : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3]) : "a"(leaf), "c"(part));
#else
  (void)leaf, (void)part;
#endif
}

uint64_t weft_xgetbv(void) {
#if defined(__x86_64__) || defined(__i386__)
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
#else
  return 0;
#endif
}
