// Boxes of tensors as NVIDIA documents what copies them ("Parallel Thread Execution ISA": mbarrier, cp.async.bulk.tensor; "CUDA Driver API":
// cuTensorMapEncodeTiled). Written from that text alone, not from what uses it. What a copy brings is there when somebody has waited for it, no sooner.
#pragma once
#include "grid.hpp"

// As `shims.py` packs it.
struct alignas(64) weft_tensor {
  const char *base;
  uint32_t dims, bytes;
  int64_t extents[5], strides[5];  // strides in bytes
  uint32_t sizes[5];
};
static_assert(sizeof(weft_tensor) == 128, "what a kernel is given has 128 bytes");

namespace shim {

// The eight bytes of an mbarrier; at its parity `phase` the present phase ends when no arrival and no byte is missing.
struct Arrivals {
  int32_t bytes;
  uint8_t threads, pending, phase, made;
};
constexpr uint8_t MADE = 0x5a;
struct BoxCopy {
  Arrivals *arrivals;
  char *to;
  unsigned size;
  char *bytes;
};
constexpr unsigned BOXES = 64, POLLS = 1 << 14;
inline BoxCopy boxes[BOXES];
inline unsigned boxes_begun;

inline Arrivals *arrivals_at(unsigned long long *at) {
  static_assert(sizeof(Arrivals) == 8, "an mbarrier has 8 bytes");
  Arrivals *found = (Arrivals *)at;
  if ((uintptr_t)at % 8 || found->made != MADE) fail("there is no mbarrier, thread %u", current->number);
  return found;
}

// What was begun arrives, once all threads have.
inline void arrive_boxes(Arrivals *a) {
  if (a->pending) return;
  unsigned left = 0;
  for (unsigned k = 0; k < boxes_begun; ++k) {
    if (boxes[k].arrivals != a) {
      boxes[left++] = boxes[k];
      continue;
    }
    memcpy(boxes[k].to, boxes[k].bytes, boxes[k].size);
    free(boxes[k].bytes);
    a->bytes -= (int32_t)boxes[k].size;
  }
  boxes_begun = left;
  if (a->bytes) fail("an mbarrier expects %d bytes more than copies bring", a->bytes);
  a->phase ^= 1, a->pending = a->threads;
}

}  // namespace shim

inline void weft_mbarrier_init(unsigned long long *at, unsigned threads) {
  if (shim::boxes_begun && shim::boxes[0].arrivals == (shim::Arrivals *)at) shim::fail("a group ended before its copies of boxes had arrived");
  shim::boxes_begun = 0;
  *(shim::Arrivals *)at = {0, (uint8_t)threads, (uint8_t)threads, 0, shim::MADE};
}
inline void weft_mbarrier_expect(unsigned long long *at, unsigned bytes) {
  shim::arrivals_at(at)->bytes += (int32_t)bytes;
  if (shim::arrivals_at(at)->bytes >= 1 << 20) shim::fail("an mbarrier expects 2^20 bytes or more");
}
inline void weft_mbarrier_arrive(unsigned long long *at) {
  if (!shim::arrivals_at(at)->pending--) shim::fail("more threads arrive than an mbarrier waits for, thread %u", shim::current->number);
}
inline void weft_mbarrier_wait(unsigned long long *at, unsigned parity) {
  for (unsigned polls = 0;; ++polls) {
    shim::Arrivals *a = shim::arrivals_at(at);
    if (a->phase == parity) shim::arrive_boxes(a);
    if (a->phase != parity) return;
    if (polls == shim::POLLS) shim::fail("thread %u waits for ever for a phase of an mbarrier", shim::current->number);
    shim::wait(shim::READY, 0);
  }
}
inline void weft_fence_boxes() {}

template <class... Places> inline void weft_bulk_copy(void *to, const weft_tensor *from, unsigned long long *arrivals, Places... places) {
  constexpr unsigned dims = sizeof...(places);
  const int start[] = {places...};
  if (from->dims != dims) shim::fail("a copy of a box says where in %u dims, its tensor has %u", dims, from->dims);
  if ((uintptr_t)to % 128) shim::fail("a copy of a box does not begin at a multiple of 128 bytes, thread %u", shim::current->number);
  if (shim::boxes_begun == shim::BOXES) shim::fail("more than %u copies of boxes are on their way", shim::BOXES);
  unsigned count = 1;
  for (unsigned d = 0; d < dims; ++d) count *= from->sizes[d];
  char *bytes = (char *)calloc(count, from->bytes);
  for (unsigned e = 0; e < count; ++e) {
    const char *at = from->base;
    bool inside = true;
    for (unsigned d = 0, rest = e; d < dims; rest /= from->sizes[d++]) {
      const int64_t place = (int64_t)start[d] + rest % from->sizes[d];
      inside = inside && 0 <= place && place < from->extents[d];
      at += place * from->strides[d];
    }
    if (inside) memcpy(bytes + e * from->bytes, at, from->bytes);
  }
  shim::boxes[shim::boxes_begun++] = {shim::arrivals_at(arrivals), (char *)to, count * from->bytes, bytes};
  memset(to, 0xff, count * from->bytes);
}
