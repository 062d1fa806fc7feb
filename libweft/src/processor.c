/* Which extensions of its instruction set the processor has, by LLVM's names. Code of exports is compiled once for all
   machines, with WEFT_EVERY_MACHINE, and asks at run time which one it is on. */
#if defined(WEFT_EVERY_MACHINE) || defined(__x86_64__) || defined(__i386__)
#define ON_X86 (same(weft_machine, "x86_64", 6) || equal(weft_machine, "i386")) /* "x86_64-windows", too */
#endif
#if defined(WEFT_EVERY_MACHINE) || defined(__aarch64__)
#define ON_ARM64 equal(weft_machine, "aarch64")
#endif
#if defined(WEFT_EVERY_MACHINE) || defined(__arm__)
#define ON_ARM equal(weft_machine, "arm")
#endif
#if defined(WEFT_EVERY_MACHINE) || defined(__riscv)
#define ON_RISCV same(weft_machine, "riscv", 5)
#endif

/* Tables hold no pointers: code of an export is mapped at any place, and nothing corrects it. */
typedef struct bit {
  char name[20];
  uint8_t leaf, part, place, number; /* cpuid: function, sub-function, register, bit; Arm and RISC-V: word, bit */
} bit;

enum { A, B, C, D };

#ifdef ON_X86
/* Of x86: Intel's Software Developer's Manual, volume 2A, CPUID; AMD's Architecture Programmer's Manual, volume 3,
   appendix E. Leaf 128 is 0x80000001. */
static const bit x86_bits[] = {
    {"sse3", 1, 0, C, 0}, {"ssse3", 1, 0, C, 9}, {"fma", 1, 0, C, 12}, {"cx16", 1, 0, C, 13}, {"sse4.1", 1, 0, C, 19},
    {"sse4.2", 1, 0, C, 20}, {"movbe", 1, 0, C, 22}, {"popcnt", 1, 0, C, 23}, {"avx", 1, 0, C, 28}, {"f16c", 1, 0, C, 29},
    {"sse", 1, 0, D, 25}, {"sse2", 1, 0, D, 26}, {"bmi", 7, 0, B, 3}, {"avx2", 7, 0, B, 5}, {"bmi2", 7, 0, B, 8},
    {"avx512f", 7, 0, B, 16}, {"avx512dq", 7, 0, B, 17}, {"avx512ifma", 7, 0, B, 21}, {"avx512cd", 7, 0, B, 28},
    {"avx512bw", 7, 0, B, 30}, {"avx512vl", 7, 0, B, 31}, {"avx512vbmi", 7, 0, C, 1}, {"avx512vbmi2", 7, 0, C, 6},
    {"gfni", 7, 0, C, 8}, {"avx512vnni", 7, 0, C, 11}, {"avx512bitalg", 7, 0, C, 12}, {"avx512vpopcntdq", 7, 0, C, 14},
    {"avx512vp2intersect", 7, 0, D, 8}, {"avx512fp16", 7, 0, D, 23}, {"avxvnni", 7, 1, A, 4}, {"avx512bf16", 7, 1, A, 5},
    {"cmpccxadd", 7, 1, A, 7}, {"avxifma", 7, 1, A, 23}, {"avxvnniint8", 7, 1, D, 4}, {"avxneconvert", 7, 1, D, 5},
    {"avxvnniint16", 7, 1, D, 10}, {"sahf", 128, 0, C, 0}, {"lzcnt", 128, 0, C, 5}, {"sse4a", 128, 0, C, 6},
    {"xop", 128, 0, C, 11}, {"fma4", 128, 0, C, 16}, {"tbm", 128, 0, C, 21}};
#endif

#ifdef ON_ARM64
/* Of 64-bit Arm: AT_HWCAP (16) and AT_HWCAP2 (26) of Linux, arch/arm64/include/uapi/asm/hwcap.h. */
static const bit arm64_bits[] = {
    {"lse", 16, 0, 0, 8}, {"fullfp16", 16, 0, 0, 10}, {"rdm", 16, 0, 0, 12}, {"complxnum", 16, 0, 0, 14}, {"rcpc", 16, 0, 0, 15},
    {"sha3", 16, 0, 0, 17}, {"dotprod", 16, 0, 0, 20}, {"sve", 16, 0, 0, 22}, {"fp16fml", 16, 0, 0, 23}, {"lse2", 16, 0, 0, 25},
    {"rcpc-immo", 16, 0, 0, 26}, {"flagm", 16, 0, 0, 27}, {"cmpbr", 16, 0, 0, 33}, {"fprcvt", 16, 0, 0, 34}, {"sve2", 26, 0, 0, 1},
    {"sve-bitperm", 26, 0, 0, 4}, {"altnzcv", 26, 0, 0, 7}, {"fptoint", 26, 0, 0, 8}, {"f32mm", 26, 0, 0, 10}, {"f64mm", 26, 0, 0, 11},
    {"i8mm", 26, 0, 0, 13}, {"bf16", 26, 0, 0, 14}, {"cssc", 26, 0, 0, 34}, {"sve2p1", 26, 0, 0, 36}, {"mops", 26, 0, 0, 43},
    {"hbc", 26, 0, 0, 44}, {"sve-b16b16", 26, 0, 0, 45}, {"rcpc3", 26, 0, 0, 46}, {"lse128", 26, 0, 0, 47}, {"faminmax", 26, 0, 0, 50}};
#endif

#ifdef ON_ARM
/* Of 32-bit Arm: arch/arm/include/uapi/asm/hwcap.h; NEON has all 32 registers, which kernels of 64 bits do not say. */
static const bit arm_bits[] = {
    {"neon", 16, 0, 0, 12}, {"vfp3d16", 16, 0, 0, 13}, {"vfp4d16", 16, 0, 0, 16}, {"fp16", 16, 0, 0, 16}, {"hwdiv-arm", 16, 0, 0, 17},
    {"hwdiv", 16, 0, 0, 18}, {"d32", 16, 0, 0, 12}, {"fullfp16", 16, 0, 0, 23}, {"dotprod", 16, 0, 0, 24}, {"bf16", 16, 0, 0, 26},
    {"i8mm", 16, 0, 0, 27}, {"crc", 26, 0, 0, 4}, {"fp-armv8", 26, 0, 0, 4}};
#endif

#ifdef ON_RISCV
/* Of RISC-V: a bit of AT_HWCAP for each letter of the base extensions; the others are bits of the key 4 of the system
   call riscv_hwprobe (258; Linux 6.4, Documentation/arch/riscv/hwprobe.rst), leaf 4 here. */
static const bit riscv_bits[] = {
    {"a", 16, 0, 0, 0}, {"c", 16, 0, 0, 2}, {"d", 16, 0, 0, 3}, {"f", 16, 0, 0, 5}, {"m", 16, 0, 0, 12}, {"v", 16, 0, 0, 21},
    {"zba", 4, 0, 0, 3}, {"zbb", 4, 0, 0, 4}, {"zbs", 4, 0, 0, 5}, {"zfh", 4, 0, 0, 27}, {"zfhmin", 4, 0, 0, 28},
    {"zvfh", 4, 0, 0, 30}, {"zvfhmin", 4, 0, 0, 31}, {"zicond", 4, 0, 0, 35}};

static int riscv_has(int number) {
  struct {
    int64_t key;
    uint32_t value[2]; /* the lower half first; no shift of 64 bits, which is a call on 32-bit Arm */
  } asked = {4, {0, 0}};
  long (*const call)(long, ...) = (long (*)(long, ...))weft_sys.imports[WEFT_IMPORT_syscall];
  if (call == NULL || call(258L, (void *)&asked, 1L, 0L, NULL, 0L) != 0 || asked.key != 4) return 0;
  return asked.value[number >> 5] >> (number & 31) & 1;
}
#endif

static const bit *find_bit(const bit *table, size_t count, const char *name) {
  for (size_t k = 0; k < count; ++k)
    if (equal(table[k].name, name)) return &table[k];
  return NULL;
}
#define FIND(table, name) find_bit(table, sizeof table / sizeof table[0], name)

/* 0 also where nobody can tell. */
static int processor_has(const char *name) {
  const bit *b = NULL;
#ifdef ON_X86
  if (ON_X86) {
    uint32_t most[4] = {0}, found[4] = {0};
    b = FIND(x86_bits, name);
    if (b == NULL) return 0;
    const uint32_t base = b->leaf == 128 ? 0x80000000u : 0, leaf = b->leaf == 128 ? 0x80000001u : b->leaf;
    weft_cpuid(base, 0, most);
    if (most[A] < leaf) return 0;
    weft_cpuid(leaf, b->part, found);
    if ((found[b->place] >> b->number & 1) == 0) return 0;
    /* Registers that the system does not save are not there: those of 256 bits (1, 2) and of 512 (5, 6, 7). */
    const int wide = same(name, "avx512", 6), half = same(name, "avx", 3) || equal(name, "fma") || equal(name, "f16c") || equal(name, "fma4") || equal(name, "xop");
    if (!wide && !half) return 1;
    weft_cpuid(1, 0, found);
    const uint64_t saved = found[C] >> 27 & 1 ? weft_xgetbv() : 0, wanted = wide ? 0xE6 : 6;
    return (saved & wanted) == wanted;
  }
#endif
#ifdef ON_ARM64
  if (ON_ARM64) {
    if (equal(name, "neon") || equal(name, "fp-armv8")) return 1; /* every one of them */
    b = FIND(arm64_bits, name);
  }
#endif
#ifdef ON_ARM
  if (ON_ARM) b = FIND(arm_bits, name);
#endif
#ifdef ON_RISCV
  if (ON_RISCV) {
    b = FIND(riscv_bits, name);
    if (b != NULL && b->leaf == 4) return riscv_has(b->number);
  }
#endif
  return b != NULL && weft_sys.getauxval != NULL && (weft_sys.getauxval(b->leaf) >> (b->number & (8 * sizeof(long) - 1)) & 1) != 0;
}
