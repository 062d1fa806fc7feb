/* A model inside of a library or an object, which `weft export` writes. */
#include "core.c"

/* Where the parts of the model lie: distances in bytes from this structure. */
typedef struct weft_inside {
  int64_t plan, weights, weights_bytes, sections;
  struct {
    int64_t base, bytes;
  } section[];
} weft_inside;

extern const weft_inside weft_model WEFT_HIDDEN;

int32_t weft_open(const char *path, const weft_options *given, weft_program **program, weft_error *error) {
  weft_options options;
  code_part code[32];
  scope s = {NULL, error};
  const char *const here = (const char *)&weft_model;
  int32_t result = begin(&s, given, &options, program);
  if (result != WEFT_OK) return result;
  if (path != NULL) return fail(&s, ARGUMENT THIS_LIBRARY "has its model inside and opens no file" HINT "give no path", NULL);
  if (options.sha256 != NULL) return fail(&s, ARGUMENT THIS_LIBRARY "has its model inside, there is no file whose hash could be compared", NULL);
  weft_program *const p = (weft_program *)zeros(sizeof *p);
  if (p == NULL) return no_memory(&s, sizeof *p);
  s.program = p;
  const parts found = {here + weft_model.weights, (uint64_t)weft_model.weights_bytes, code};
  for (int64_t k = 0; k < weft_model.sections; ++k) {
    code[k].base = here + weft_model.section[k].base;
    code[k].bytes = (size_t)weft_model.section[k].bytes;
  }
  p->parallel_for = weft_pool();
  result = read_plan(&s, p, here + weft_model.plan, UINT32_MAX);
  return finish(&s, p, result, &found, &options, program);
}

int32_t weft_open_memory(const void *data, size_t bytes, const weft_options *options, weft_program **program, weft_error *error) {
  weft_options read;
  const scope s = {NULL, error};
  (void)data, (void)bytes;
  const int32_t result = begin(&s, options, &read, program);
  return result != WEFT_OK ? result : fail(&s, UNSUPPORTED THIS_LIBRARY "has its model inside and opens no archives" HINT "libweft does", NULL);
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
