/* y[k] = 0 for k < count. */
WEFT_CALLED
static void weft_clear(int16_t *y, int32_t count) {
  int32_t k = 0;
#if WEFT_DSP
  const int32_t none = 0;
  WEFT_OFTEN
  for (; k < (count - 1); k += 2) {
    (void)__builtin_memcpy(&y[k], &none, 4U);
  }
#endif
  WEFT_ONCE
  for (; k < count; ++k) {
    y[k] = 0;
  }
}
