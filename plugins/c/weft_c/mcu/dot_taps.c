/* c[k] = sum over the taps [i][j] of a[i][j][k] * b[i][j][k]; rows and columns of a are `down` and `across` elements
   apart. */
WEFT_CALLED
static void weft_dot_taps(const int16_t *a, int32_t down, int32_t across, const int8_t *b, int32_t *c, int32_t channels,
                          int32_t rows, int32_t columns) {
  int32_t channel = 0;
#if WEFT_DSP
  for (; ((channels % 4) == 0) && (channel < channels); channel += 4) {
    const int8_t *u = &b[channel];
    int32_t c0 = 0;
    int32_t c1 = 0;
    int32_t c2 = 0;
    int32_t c3 = 0;
    for (int32_t row = 0; row < rows; ++row) {
      const int16_t *x = &a[(row * down) + channel];
      for (int32_t column = 0; column < columns; ++column) {
        const int32_t x0 = *(const weft_word *)(const void *)x;
        const int32_t x1 = *(const weft_word *)(const void *)&x[2];
        const int32_t word = *(const weft_word *)(const void *)u;
        const int32_t u0 = weft_even(word);
        const int32_t u1 = weft_odd(word);
        c0 = __smlabb(x0, u0, c0);
        c1 = __smlatb(x0, u1, c1);
        c2 = __smlabt(x1, u0, c2);
        c3 = __smlatt(x1, u1, c3);
        x = &x[across];
        u = &u[channels];
      }
    }
    c[channel] = c0;
    c[channel + 1] = c1;
    c[channel + 2] = c2;
    c[channel + 3] = c3;
  }
#endif
  for (; channel < channels; ++channel) {
    int32_t total = 0;
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t column = 0; column < columns; ++column) {
        total += (int32_t)a[(row * down) + (column * across) + channel] *
                 b[(((row * columns) + column) * channels) + channel];
      }
    }
    c[channel] = total;
  }
}
