/* What runs the trips of a loop: a segment again and again. Between two calls the data of items and results move on by their steps, and what is carried
   exchanges its data with what the trip gave in its place. The structures are those of weft_runtime.abi, which stand in front of this text. */
__attribute__((visibility("default"))) int32_t repeat(weft_context *ctx, weft_run *run, const weft_tensor *const *in, weft_tensor *const *out, weft_trips *d) {
  d->going = 1;
  for (d->done = 0; d->going && d->done < d->trips; ++d->done) {
    const int32_t code = run(ctx, in, out);
    if (code != 0) return code;
    for (int64_t k = 0; k < d->moving; ++k) d->moves[k].tensor->data = (char *)d->moves[k].tensor->data + d->moves[k].bytes;
    for (int64_t k = 0; k < d->carried; ++k) {
      void *const taken = d->swaps[k].taken->data;
      d->swaps[k].taken->data = d->swaps[k].given->data;
      d->swaps[k].given->data = taken;
    }
    ++*d->number;
    if (d->test != 0 && *d->test == 0) d->going = 0;
  }
  return 0;
}
