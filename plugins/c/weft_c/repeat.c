/* What runs the trips of a loop: a segment again and again. Between two calls the data of items and results move on by their steps, and what is carried
   exchanges its data with what the trip gave in its place. weft.runtime.abi.Trips says what the fields are. */
#include <stdint.h>

typedef struct {
  char *data;
} tensor; /* the rest is the segment's */

typedef struct {
  int64_t trips, done, going, *number;
  const uint8_t *test;
  int64_t moving;
  const struct {
    tensor *tensor;
    int64_t bytes;
  } *moves;
  int64_t carried;
  const struct {
    tensor *taken, *given;
  } *swaps;
} loop;

__attribute__((visibility("default"))) int32_t repeat(void *ctx, int32_t (*run)(void *, void *, void *), void *in, void *out, loop *d) {
  d->going = 1;
  for (d->done = 0; d->going && d->done < d->trips; ++d->done) {
    const int32_t code = run(ctx, in, out);
    if (code != 0) return code;
    for (int64_t k = 0; k < d->moving; ++k) d->moves[k].tensor->data += d->moves[k].bytes;
    for (int64_t k = 0; k < d->carried; ++k) {
      char *const taken = d->swaps[k].taken->data;
      d->swaps[k].taken->data = d->swaps[k].given->data;
      d->swaps[k].given->data = taken;
    }
    ++*d->number;
    if (d->test != 0 && *d->test == 0) d->going = 0;
  }
  return 0;
}
