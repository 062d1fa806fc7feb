// What kernels of weft-cuda use beyond CUDA C++ itself: instructions of PTX as functions, so that no toolkit's headers are needed.
// Sources: NVIDIA, "Parallel Thread Execution ISA"; "CUDA C++ Programming Guide".
#pragma once

// -- floats of 16 bits, carried as words ------------------------------------------------------------------------------

static __device__ __forceinline__ float weft_f16_widen(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

static __device__ __forceinline__ unsigned short weft_f16_narrow(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

static __device__ __forceinline__ unsigned short weft_bf16_narrow(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
#else
  const unsigned int bits = __float_as_uint(x);
  return x != x ? 0x7fff : (unsigned short)((bits + (bits >> 16 & 1U) + 0x7fffU) >> 16);
#endif
}

// -- atomic minimum and maximum of floats: NaN if either is -----------------------------------------------------------

template <bool GREATER> static __device__ __forceinline__ void weft_atomic_extreme(float *at, float value) {
  unsigned int *const word = reinterpret_cast<unsigned int *>(at);
  unsigned int seen = *word;
  for (;;) {
    const float held = __uint_as_float(seen);
    if (held != held || (GREATER ? value <= held : value >= held)) return;
    const unsigned int before = atomicCAS(word, seen, __float_as_uint(value));
    if (before == seen) return;
    seen = before;
  }
}

static __device__ __forceinline__ void weft_atomic_min(float *at, float value) { weft_atomic_extreme<false>(at, value); }
static __device__ __forceinline__ void weft_atomic_max(float *at, float value) { weft_atomic_extreme<true>(at, value); }

// -- copies from global to shared memory that a thread begins and awaits, from compute capability 8.0 on ---------------

#if __CUDA_ARCH__ >= 800
// 4, 8 or 16 bytes, at a multiple of so many in both memories; 16 pass the first cache by.
template <int SIZE> static __device__ __forceinline__ void weft_copy_async(void *to, const void *from) {
  if (SIZE == 16)
    asm volatile("{ .reg .u64 at, of; cvta.to.shared.u64 at, %0; cvta.to.global.u64 of, %1; cp.async.cg.shared.global [at], [of], 16; }"
                 : : "l"(to), "l"(from) : "memory");
  else
    asm volatile("{ .reg .u64 at, of; cvta.to.shared.u64 at, %0; cvta.to.global.u64 of, %1; cp.async.ca.shared.global [at], [of], %2; }"
                 : : "l"(to), "l"(from), "n"(SIZE) : "memory");
}
static __device__ __forceinline__ void weft_await_copies() {
  asm volatile("cp.async.wait_all;" : : : "memory");
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");  // behind the barrier tensor cores may read it
#endif
}
#endif

// -- boxes of tensors, copied by the Tensor Memory Accelerator, from compute capability 9.0 on ------------------------

#if __CUDA_ARCH__ >= 900
// What cuTensorMapEncodeTiled makes.
struct __align__(128) weft_tensor {
  unsigned long long words[16];
};

// An mbarrier: 8 bytes of shared memory that count arrivals of threads and bytes of copies. A phase ends when nobody and nothing is missing.
static __device__ __forceinline__ void weft_mbarrier_init(unsigned long long *at, unsigned int threads) {
  asm volatile("{ .reg .u64 at; cvta.to.shared.u64 at, %0; mbarrier.init.shared::cta.b64 [at], %1; }" : : "l"(at), "r"(threads) : "memory");
}
static __device__ __forceinline__ void weft_mbarrier_expect(unsigned long long *at, unsigned int bytes) {
  asm volatile("{ .reg .u64 at; cvta.to.shared.u64 at, %0; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [at], %1; }" : : "l"(at), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void weft_mbarrier_arrive(unsigned long long *at) {
  asm volatile("{ .reg .u64 at, state; cvta.to.shared.u64 at, %0; mbarrier.arrive.release.cta.shared::cta.b64 state, [at]; }" : : "l"(at) : "memory");
}
// Until the phase of this parity, the present one or the one before, has ended. What has arrived by then is seen, copies included.
static __device__ __forceinline__ void weft_mbarrier_wait(unsigned long long *at, unsigned int parity) {
  unsigned int done;
  do {
    asm volatile("{ .reg .u64 at; .reg .pred p; cvta.to.shared.u64 at, %1;\n"
                 "  mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [at], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "l"(at), "r"(parity) : "memory");
  } while (!done);
}
// What threads have read and written in shared memory before comes before what copies of boxes write there, and the mbarrier is there for them.
static __device__ __forceinline__ void weft_fence_boxes() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

// One thread begins to copy a box that starts at these places of a tensor to a multiple of 128 bytes.
#define WEFT_BOX(DIMS, PLACES, PTX, ...)                                                                                                            \
  static __device__ __forceinline__ void weft_bulk_copy(void *to, const weft_tensor *from, unsigned long long *arrivals, PLACES) {                   \
    asm volatile("{ .reg .u64 at, bar; cvta.to.shared.u64 at, %0; cvta.to.shared.u64 bar, %2;\n"                                                    \
                 "  cp.async.bulk.tensor." DIMS ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [at], [%1, {" PTX "}], [bar]; }"           \
                 : : "l"(to), "l"(from), "l"(arrivals), __VA_ARGS__ : "memory");                                                                    \
  }
#define WEFT_PLACES(...) __VA_ARGS__
WEFT_BOX("1d", WEFT_PLACES(int a), "%3", "r"(a))
WEFT_BOX("2d", WEFT_PLACES(int a, int b), "%3, %4", "r"(a), "r"(b))
WEFT_BOX("3d", WEFT_PLACES(int a, int b, int c), "%3, %4, %5", "r"(a), "r"(b), "r"(c))
WEFT_BOX("4d", WEFT_PLACES(int a, int b, int c, int d), "%3, %4, %5, %6", "r"(a), "r"(b), "r"(c), "r"(d))
WEFT_BOX("5d", WEFT_PLACES(int a, int b, int c, int d, int e), "%3, %4, %5, %6, %7", "r"(a), "r"(b), "r"(c), "r"(d), "r"(e))
#undef WEFT_PLACES
#undef WEFT_BOX
#endif

// -- tensor cores, from compute capability 8.0 on ---------------------------------------------------------------------

#if __CUDA_ARCH__ >= 800
// Four matrices of 8 x 8 elements of 16 bits in shared memory: thread 8m + r has the address of row r of matrix m, at a multiple of 16 bytes. Thread
// 4g + t gets of each matrix the elements 2t and 2t + 1 of row g, or transposed: of column g.
static __device__ __forceinline__ void weft_ldmatrix(unsigned int (&r)[4], const void *row) {
  asm volatile("{ .reg .u64 at; cvta.to.shared.u64 at, %4; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [at]; }"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(row) : "memory");
}
static __device__ __forceinline__ void weft_ldmatrix_trans(unsigned int (&r)[4], const void *row) {
  asm volatile("{ .reg .u64 at; cvta.to.shared.u64 at, %4; ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [at]; }"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(row) : "memory");
}

// C += A . B; c: four elements, a: four words, b: two words, each as the instruction has them.
#define WEFT_MMA(NAME, RESULT, CONSTRAINT, PTX)                                                                              \
  static __device__ __forceinline__ void NAME(RESULT *c, const unsigned int *a, const unsigned int *b) {                    \
    asm volatile("mma.sync.aligned." PTX " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                  \
                 : "+" CONSTRAINT(c[0]), "+" CONSTRAINT(c[1]), "+" CONSTRAINT(c[2]), "+" CONSTRAINT(c[3])                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                        \
  }
WEFT_MMA(weft_ptx_mma_f16, float, "f", "m16n8k16.row.col.f32.f16.f16.f32")
WEFT_MMA(weft_ptx_mma_bf16, float, "f", "m16n8k16.row.col.f32.bf16.bf16.f32")
WEFT_MMA(weft_ptx_mma_tf32, float, "f", "m16n8k8.row.col.f32.tf32.tf32.f32")
WEFT_MMA(weft_ptx_mma_s8, int, "r", "m16n8k32.row.col.s32.s8.s8.s32")
WEFT_MMA(weft_ptx_mma_u8, int, "r", "m16n8k32.row.col.s32.u8.u8.s32")
#undef WEFT_MMA

static __device__ __forceinline__ unsigned int weft_tf32(float x) {
  unsigned int y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
#endif

// -- tensor cores of a warp group, four warps whose first is a multiple of four, on compute capability 9.0 alone ----------

// A matrix in shared memory in core matrices of 8 rows of 16 bytes, 128 bytes in a row: `terms` bytes from one core matrix to the next along the sum, `side` bytes along
// rows or columns. ACROSS 0: a line's 16 bytes go along the sum; 1: along rows or columns.
struct weft_core_matrices {
  const void *at;
  unsigned int terms, side;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static __device__ __forceinline__ unsigned long long weft_described(const weft_core_matrices &m) {
  unsigned long long at;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(m.at));
  return (at & 0x3ffff) >> 4 | (unsigned long long)(m.terms >> 4 & 0x3fff) << 16 | (unsigned long long)(m.side >> 4 & 0x3fff) << 32;
}

#define WEFT_NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WEFT_NAMES_64 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
  "%62, %63"
#define WEFT_FOUR(C, d) "+" C((d)[0]), "+" C((d)[1]), "+" C((d)[2]), "+" C((d)[3])
#define WEFT_SIXTEEN(C, d) WEFT_FOUR(C, d), WEFT_FOUR(C, (d) + 4), WEFT_FOUR(C, (d) + 8), WEFT_FOUR(C, (d) + 12)
#define WEFT_HELD_32(C, d) WEFT_SIXTEEN(C, d), WEFT_SIXTEEN(C, (d) + 16)
#define WEFT_HELD_64(C, d) WEFT_HELD_32(C, d), WEFT_HELD_32(C, (d) + 32)

// Results of a thread go through what begins and what ends a chain of products, so that nothing is read before or after its time.
#define WEFT_CHAIN(RESULT, C, HELD)                                                                                              \
  static __device__ __forceinline__ void weft_ptx_wgmma_begin(RESULT (&d)[HELD]) {                                               \
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* what threads stored is seen by the tensor cores */           \
    asm volatile("wgmma.fence.sync.aligned;" : WEFT_HELD_##HELD(C, d) : : "memory");                                             \
  }                                                                                                                              \
  static __device__ __forceinline__ void weft_ptx_wgmma_end(RESULT (&d)[HELD]) {                                                 \
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");                                                               \
    asm volatile("wgmma.wait_group.sync.aligned 0;" : WEFT_HELD_##HELD(C, d) : : "memory");                                      \
  }
WEFT_CHAIN(float, "f", 32)
WEFT_CHAIN(float, "f", 64)
WEFT_CHAIN(int, "r", 32)
WEFT_CHAIN(int, "r", 64)
#undef WEFT_CHAIN

// D += A . B of 64 rows, N columns and 32 bytes of terms; a thread holds HELD = N / 2 results.
#define WEFT_WGMMA(NAME, RESULT, C, SHAPE, HELD, A, B, MORE, ...)                                                                    \
  template <int ACROSS_A, int ACROSS_B>                                                                                           \
  static __device__ __forceinline__ void NAME(RESULT (&d)[HELD], const weft_core_matrices &a, const weft_core_matrices &b) {                    \
    asm volatile("{ .reg .pred more; setp.eq.u32 more, 0, 0; wgmma.mma_async.sync.aligned." SHAPE                                 \
                 " {" WEFT_NAMES_##HELD "}, " A ", " B ", more" MORE "; }"                                                        \
                 : WEFT_HELD_##HELD(C, d) : "l"(weft_described(a)), "l"(weft_described(b)) __VA_ARGS__ : "memory");               \
  }
#define WEFT_TURNS , "n"(ACROSS_A), "n"(ACROSS_B)
WEFT_WGMMA(weft_ptx_wgmma_f16, float, "f", "m64n64k16.f32.f16.f16", 32, "%32", "%33", ", 1, 1, %34, %35", WEFT_TURNS)
WEFT_WGMMA(weft_ptx_wgmma_f16, float, "f", "m64n128k16.f32.f16.f16", 64, "%64", "%65", ", 1, 1, %66, %67", WEFT_TURNS)
WEFT_WGMMA(weft_ptx_wgmma_bf16, float, "f", "m64n64k16.f32.bf16.bf16", 32, "%32", "%33", ", 1, 1, %34, %35", WEFT_TURNS)
WEFT_WGMMA(weft_ptx_wgmma_bf16, float, "f", "m64n128k16.f32.bf16.bf16", 64, "%64", "%65", ", 1, 1, %66, %67", WEFT_TURNS)
WEFT_WGMMA(weft_ptx_wgmma_tf32, float, "f", "m64n64k8.f32.tf32.tf32", 32, "%32", "%33", ", 1, 1", )
WEFT_WGMMA(weft_ptx_wgmma_tf32, float, "f", "m64n128k8.f32.tf32.tf32", 64, "%64", "%65", ", 1, 1", )
WEFT_WGMMA(weft_ptx_wgmma_s8, int, "r", "m64n64k32.s32.s8.s8", 32, "%32", "%33", "", )
WEFT_WGMMA(weft_ptx_wgmma_s8, int, "r", "m64n128k32.s32.s8.s8", 64, "%64", "%65", "", )
WEFT_WGMMA(weft_ptx_wgmma_u8, int, "r", "m64n64k32.s32.u8.u8", 32, "%32", "%33", "", )
WEFT_WGMMA(weft_ptx_wgmma_u8, int, "r", "m64n128k32.s32.u8.u8", 64, "%64", "%65", "", )
#undef WEFT_WGMMA
#undef WEFT_TURNS
#undef WEFT_NAMES_32
#undef WEFT_NAMES_64
#undef WEFT_FOUR
#undef WEFT_SIXTEEN
#undef WEFT_HELD_32
#undef WEFT_HELD_64
#endif
