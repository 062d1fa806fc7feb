/* y[k] = 0 for k < count. */
WEFT_CALLED
static void weft_clear(int16_t *y, int32_t count) {
  for (int32_t k = 0; k < count; ++k) {
    y[k] = 0;
  }
}
