// Boxes of tensors that the first thread of a group begins to copy to shared memory, and all threads await. Plain C++ over the instructions of
// `weft_cuda.h`: it runs wherever those do. Sources: NVIDIA, "Parallel Thread Execution ISA", "mbarrier", "cp.async.bulk.tensor", "Async proxy".
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

static __device__ __forceinline__ bool weft_first() { return (threadIdx.x | threadIdx.y | threadIdx.z) == 0; }

// Each phase of the mbarrier lasts from one wait to the next: the first thread alone arrives, after what it has begun to copy was expected.
static __device__ __forceinline__ void weft_begin_boxes(unsigned long long *arrivals) {
  if (weft_first()) {
    weft_mbarrier_init(arrivals, 1);
    weft_fence_boxes();
  }
  __syncthreads();
}

// The fence orders what other threads did there before the barrier behind which this stands: it is on the way from them to the copy.
template <class... Places>
static __device__ __forceinline__ void weft_copy_box(void *to, const weft_tensor &from, unsigned long long *arrivals, unsigned int bytes, Places... start) {
  weft_fence_boxes();
  weft_mbarrier_expect(arrivals, bytes);
  weft_bulk_copy(to, &from, arrivals, start...);
}

// `turn`: the parity of the phase. A barrier of the group follows, so that nobody still waits for this phase when the next one ends.
static __device__ __forceinline__ void weft_await_boxes(unsigned long long *arrivals, unsigned int &turn) {
  weft_await_copies();
  if (weft_first()) weft_mbarrier_arrive(arrivals);
  weft_mbarrier_wait(arrivals, turn);
  turn ^= 1;
}
#endif
