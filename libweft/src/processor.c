/* Which extensions of its instruction set the processor has. The plan says how to ask for each that its code needs:
   weft_runtime.feature_bits has the manuals' numbers. */

enum { FEATURE_UNKNOWN, FEATURE_ALWAYS, FEATURE_CPUID, FEATURE_AUXILIARY, FEATURE_RISCV };

/* 0 also where nobody can tell. */
static int processor_has(const feature *f) {
  uint64_t word = 0;
  if (f->kind == FEATURE_ALWAYS) return 1;
#if defined(WEFT_EVERY_MACHINE) || defined(__x86_64__) || defined(__i386__)
  if (f->kind == FEATURE_CPUID) {
    /* cpuid: the greatest function of its range, then the one that tells */
    uint32_t found[4];
    weft_cpuid(f->leaf & 0x80000000u, 0, found);
    if (found[0] < f->leaf) return 0;
    weft_cpuid(f->leaf, f->part, found);
    word = found[f->place & 3];
    if (f->saved != 0) { /* registers that the system does not save are not there */
      weft_cpuid(1, 0, found);
      if ((found[2] >> 27 & 1) == 0 || (f->saved & ~weft_xgetbv()) != 0) return 0;
    }
  }
#endif
#if defined(WEFT_EVERY_MACHINE) || !(defined(__x86_64__) || defined(__i386__))
  /* a word of the auxiliary vector, such as AT_HWCAP */
  if (f->kind == FEATURE_AUXILIARY && weft_sys.getauxval != NULL) word = weft_sys.getauxval(f->leaf);
#endif
#if defined(WEFT_EVERY_MACHINE) || defined(__riscv)
  if (f->kind == FEATURE_RISCV) { /* a key of the system call riscv_hwprobe */
    struct {
      int64_t key;
      uint64_t value;
    } asked = {(int64_t)f->leaf, 0};
    long (*const ask)(long, ...) = (long (*)(long, ...))weft_sys.imports[WEFT_IMPORT_syscall];
    if (ask != NULL && ask(258L, (void *)&asked, 1L, 0L, NULL, 0L) == 0 && asked.key == (int64_t)f->leaf) word = asked.value;
  }
#endif
  /* no shift of 64 bits, which is a call on 32-bit Arm */
  return (uint32_t)(f->number < 32 ? word : word >> 32) >> (f->number & 31) & 1;
}
