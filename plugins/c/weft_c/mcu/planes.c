/* y[p][r][k] = x[at + p * beside + r * apart + k * across] - zero for p < planes, r < rows and k < count, where
   0 <= down + r * step < height and 0 <= left + k < width, and 0 elsewhere. */
WEFT_CALLED
static void weft_planes(const int8_t *x, int32_t at, int32_t apart, int32_t across, int32_t beside, int32_t zero,
                        int16_t *y, int32_t planes, int32_t rows, int32_t count, int32_t down, int32_t step,
                        int32_t height, int32_t left, int32_t width) {
  const int32_t first = (left < 0) ? -left : 0;
  const int32_t rest = width - left;
  const int32_t last = (rest < count) ? rest : count;
  const int32_t size = rows * count;
  if ((first > 0) || (last < count) || (down < 0) || ((down + ((rows - 1) * step)) >= height)) {
    weft_clear(y, planes * size);
  }
  WEFT_ONCE
  for (int32_t row = 0; row < rows; ++row) {
    const int32_t place = down + (row * step);
    if ((place >= 0) && (place < height) && (first < last)) {
      const int8_t *from = &x[at + (row * apart) + (first * across)];
      int16_t *to = &y[(row * count) + first];
      int32_t k = first;
#if WEFT_DSP
      if ((planes == 4) && (beside == 1)) {
        const uint32_t low = (uint32_t)(-zero) & 0xFFFFU;
        const uint32_t both = (low << 16) | low;
        const int32_t less = (int32_t)both;
        WEFT_ONCE
        for (; k < (last - 1); k += 2) {
          int32_t p;
          int32_t q;
          (void)__builtin_memcpy(&p, from, 4U);
          (void)__builtin_memcpy(&q, &from[across], 4U);
          const uint32_t even_p = (uint32_t)__sxtab16(less, p);
          const uint32_t even_q = (uint32_t)__sxtab16(less, q);
          const uint32_t odd_p = (uint32_t)__sxtab16(less, weft_turned(p));
          const uint32_t odd_q = (uint32_t)__sxtab16(less, weft_turned(q));
          const uint32_t first_plane = (even_p & 0xFFFFU) | (even_q << 16);
          const uint32_t second_plane = (odd_p & 0xFFFFU) | (odd_q << 16);
          const uint32_t third_plane = (even_p >> 16) | (even_q & 0xFFFF0000U);
          const uint32_t fourth_plane = (odd_p >> 16) | (odd_q & 0xFFFF0000U);
          (void)__builtin_memcpy(to, &first_plane, 4U);
          (void)__builtin_memcpy(&to[size], &second_plane, 4U);
          (void)__builtin_memcpy(&to[2 * size], &third_plane, 4U);
          (void)__builtin_memcpy(&to[3 * size], &fourth_plane, 4U);
          from = &from[2 * across];
          to = &to[2];
        }
      }
#endif
      WEFT_ONCE
      for (; k < last; ++k) {
        WEFT_ONCE
        for (int32_t plane = 0; plane < planes; ++plane) {
          to[plane * size] = (int16_t)(from[plane * beside] - zero);
        }
        from = &from[across];
        to = &to[1];
      }
    }
  }
}
