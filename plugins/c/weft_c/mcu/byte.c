/* zero + sum * multiplier / 2^(31 + right), as a byte, for |sum| < 2^30 and right > 0, rounded as by weft_rescaled: as halves
   go up where the quotient by 2^31 is 0, the sign of the sum is as good as that of the quotient. */
static inline int8_t weft_byte(int32_t sum, int32_t multiplier, int32_t right, int32_t zero) {
  const int32_t twice = 2 * sum;
  const int64_t product = ((int64_t)twice * multiplier) + 0x80000000LL;
  const uint64_t word = (uint64_t)product;
  const uint32_t high = (uint32_t)(word >> 32);
  const int32_t part = (int32_t)high + weft_asr_i32(sum, 31);
  int32_t value = weft_asr_i32(weft_asr_i32(part, right - 1) + ((2 * zero) + 1), 1);
#if WEFT_DSP
  value = __ssat(value, 8);
#else
  value = (value < -128) ? -128 : value;
  value = (value > 127) ? 127 : value;
#endif
  return (int8_t)value;
}
