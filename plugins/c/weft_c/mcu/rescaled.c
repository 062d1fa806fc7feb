/* x * multiplier / 2^(31 + right), for |x| < 2^30 and right > 0. The quotient by 2^31 is rounded halves up, that by
   2^right halves away from zero. */
static inline int32_t weft_rescaled(int32_t x, int32_t multiplier, int32_t right) {
  const int32_t twice = 2 * x;
  const int64_t product = ((int64_t)twice * multiplier) + 0x80000000LL;
  const uint64_t word = (uint64_t)product;
  const uint32_t high = (uint32_t)(word >> 32);
  const int32_t part = (int32_t)high;
  return weft_asr_i32(weft_asr_i32(part + weft_asr_i32(part, 31), right - 1) + 1, 1);
}
