// Matrices that the 32 threads of a warp hold together, in the layouts of mma. Plain C++ over the instructions of `weft_cuda.h`: it runs wherever those do.
//
// With g = lane / 4 and t = lane % 4 a thread has, of 16 x 16 results in two halves of 8 columns each, the elements (g, 2t), (g, 2t + 1), (g + 8, 2t) and
// (g + 8, 2t + 1); of the left factor, whose rows have 32 bytes, words t and t + 4 of rows g and g + 8; of each half of the right one, whose columns have 32
// bytes, words t and t + 4 of column g. Source: NVIDIA, "Parallel Thread Execution ISA", "Matrix fragments for mma".
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// SIZE elements of a warp: registers of 32 bits, of which a matrix has as many in each thread. The address of its first element is that of its registers.
template <class T> struct weft_register { typedef unsigned int type; };
template <> struct weft_register<float> { typedef float type; };
template <> struct weft_register<int> { typedef int type; };
template <class T, int SIZE> struct weft_fragment {
  typename weft_register<T>::type r[SIZE * (int)sizeof(T) / 128];
  __device__ __forceinline__ typename weft_register<T>::type &operator[](long long e) { return r[e * (int)sizeof(T) / 128]; }
};

static __device__ __forceinline__ int weft_lane() { return (int)(threadIdx.x % 32); }

// The left factor, 16 rows of 32 bytes.
template <class T> static __device__ __forceinline__ void weft_load_a(const T *from, long long stride, unsigned int *to) {
  unsigned int r[4];
  weft_ldmatrix(r, reinterpret_cast<const char *>(from + weft_lane() % 16 * stride) + weft_lane() / 16 * 16);
  for (int k = 0; k < 4; ++k) to[k] = r[k];
}
static __device__ __forceinline__ void weft_load_a(const float *from, long long stride, float *to) {
  unsigned int r[4];
  weft_load_a(from, stride, r);
  for (int k = 0; k < 4; ++k) to[k] = __uint_as_float(weft_tf32(__uint_as_float(r[k])));
}

// The right factor, 16 columns, row by row.
static __device__ __forceinline__ void weft_load_b(const unsigned short *from, long long stride, unsigned int *to) {
  unsigned int r[4];
  weft_ldmatrix_trans(r, from + weft_lane() % 16 * stride + weft_lane() / 16 * 8);
  for (int k = 0; k < 4; ++k) to[k] = r[k];
}
template <class T> static __device__ __forceinline__ void weft_load_bytes(const T *from, long long stride, unsigned int *to) {
  const int g = weft_lane() / 4, t = weft_lane() % 4;
  for (int k = 0; k < 4; ++k) {
    unsigned int word = 0;
    for (int byte = 0; byte < 4; ++byte) word |= (unsigned int)(unsigned char)from[(k % 2 * 16 + t * 4 + byte) * stride + k / 2 * 8 + g] << 8 * byte;
    to[k] = word;
  }
}
static __device__ __forceinline__ void weft_load_b(const signed char *from, long long stride, unsigned int *to) { weft_load_bytes(from, stride, to); }
static __device__ __forceinline__ void weft_load_b(const unsigned char *from, long long stride, unsigned int *to) { weft_load_bytes(from, stride, to); }
static __device__ __forceinline__ void weft_load_b(const float *from, long long stride, float *to) {
  const int g = weft_lane() / 4, t = weft_lane() % 4;
  for (int k = 0; k < 4; ++k) to[k] = __uint_as_float(weft_tf32(from[(k % 2 * 4 + t) * stride + k / 2 * 8 + g]));
}

// 16 x 16 results.
template <class T> static __device__ __forceinline__ void weft_fill(T *c) {
  for (int k = 0; k < 8; ++k) c[k] = 0;
}
template <class T> static __device__ __forceinline__ void weft_store(const T *c, T *to, long long stride) {
  const int row = weft_lane() / 4, column = weft_lane() % 4 * 2;
  for (int k = 0; k < 8; ++k) to[(row + k % 4 / 2 * 8) * stride + k / 4 * 8 + column + k % 2] = c[k];
}

#define WEFT_MMA(NAME, WORD, RESULT)                                                                              \
  static __device__ __forceinline__ void weft_mma_##NAME(const WORD *a, const WORD *b, RESULT *c) {               \
    unsigned int x[4], y[4];                                                                                      \
    for (int k = 0; k < 4; ++k) x[k] = weft_bits(a[k]), y[k] = weft_bits(b[k]);                                   \
    weft_ptx_mma_##NAME(c, x, y);                                                                                 \
    weft_ptx_mma_##NAME(c + 4, x, y + 2);                                                                         \
  }
static __device__ __forceinline__ unsigned int weft_bits(unsigned int x) { return x; }
static __device__ __forceinline__ unsigned int weft_bits(float x) { return __float_as_uint(x); }
WEFT_MMA(f16, unsigned int, float)
WEFT_MMA(bf16, unsigned int, float)
WEFT_MMA(tf32, float, float)
WEFT_MMA(s8, unsigned int, int)
WEFT_MMA(u8, unsigned int, int)
#undef WEFT_MMA
#endif

// -- warp groups: 64 rows by 64 or 128 columns in the layouts of wgmma ----------------------------------------------------
//
// Warp w of the group has rows 16w to 16w + 15 of a result; in each 8 columns its threads have what they have of mma's. Factors stay in shared memory, in
// core matrices. Source: NVIDIA, "Parallel Thread Execution ISA", "Asynchronous warpgroup level matrix instructions".
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// SIZE elements of 32 bits that a warp group holds.
template <class T, int SIZE> struct weft_wide_fragment {
  T r[SIZE / 128];
  __device__ __forceinline__ T &operator[](long long e) { return r[e / 128]; }
};

static __device__ __forceinline__ int weft_group_lane() { return (int)(threadIdx.x % 128); }

// HELD elements of a thread, by the address of the first.
template <int HELD, class T> static __device__ __forceinline__ T (&weft_held(T *c))[HELD] { return *reinterpret_cast<T(*)[HELD]>(c); }

template <int COLUMNS, class T> static __device__ __forceinline__ void weft_wide_fill(T *c) {
  for (int k = 0; k < COLUMNS / 2; ++k) c[k] = 0;
}
// Rows in eights: `eight` elements from one to the next, `row` from one row to the next.
template <int COLUMNS, class T> static __device__ __forceinline__ void weft_wide_store(const T *c, T *to, long long eight, long long row) {
  const int warp = weft_group_lane() / 32, g = weft_group_lane() % 32 / 4, t = weft_group_lane() % 4;
  for (int k = 0; k < COLUMNS / 2; ++k) to[(2 * warp + k % 4 / 2) * eight + g * row + k / 4 * 8 + 2 * t + k % 2] = c[k];
}

// A chain of four products, 128 bytes of terms. A factor lies in core matrices of 8 rows of 16 bytes, 128 bytes in a row. ACROSS 0: a line goes along the sum,
// eight of them along rows (or columns), which follow each other; `stride` elements lead to the next core matrices of terms. 1: a line goes along rows (or
// columns), eight of them along the sum, which follow each other; `stride` leads to the next core matrices of rows.
template <int ACROSS, class T> static __device__ __forceinline__ weft_core_matrices weft_core_matrices_of(const T *at, long long stride, int turn) {
  const unsigned int next = (unsigned int)(stride * (int)sizeof(T));
  const unsigned int terms = ACROSS ? 128 : next;
  return {reinterpret_cast<const char *>(at) + 2 * turn * terms, terms, ACROSS ? next : 128};
}
#define WEFT_WGMMA(NAME, WORD, RESULT)                                                                                     \
  template <int COLUMNS, int ACROSS_A, int ACROSS_B>                                                                       \
  static __device__ __forceinline__ void weft_wgmma_##NAME(const WORD *a, long long next_a, const WORD *b, long long next_b, RESULT *c) { \
    RESULT(&d)[COLUMNS / 2] = weft_held<COLUMNS / 2>(c);                                                                   \
    weft_ptx_wgmma_begin(d);                                                                                               \
    for (int k = 0; k < 4; ++k)                                                                                            \
      weft_ptx_wgmma_##NAME<ACROSS_A, ACROSS_B>(d, weft_core_matrices_of<ACROSS_A>(a, next_a, k), weft_core_matrices_of<ACROSS_B>(b, next_b, k)); \
    weft_ptx_wgmma_end(d);                                                                                                 \
  }
WEFT_WGMMA(f16, unsigned short, float)
WEFT_WGMMA(bf16, unsigned short, float)
WEFT_WGMMA(tf32, float, float)
WEFT_WGMMA(s8, signed char, int)
WEFT_WGMMA(u8, unsigned char, int)
#undef WEFT_WGMMA
#endif
