/* A model inside of a library or an object, which `weft export` writes. */
#include "core.c"

/* Where the parts of the model lie: distances in bytes from this structure. */
typedef struct weft_inside {
  int64_t manifest, manifest_bytes, weights, weights_bytes, sections;
  struct {
    int64_t name, base, bytes;
  } section[];
} weft_inside;

extern const weft_inside weft_model WEFT_HIDDEN;

int32_t weft_open(const char *path, const weft_options *given, weft_program **program, weft_error *error) {
  weft_options options;
  code_part code[32];
  const char *const here = (const char *)&weft_model;
  if (program != NULL) *program = NULL;
  if (check_error(error) != WEFT_OK) return WEFT_ERROR_ARGUMENT;
  if (program == NULL) return null_pointer(error, "program");
  if (path != NULL) return fail(error, WEFT_ERROR_ARGUMENT, "this library has its model inside and opens no file\nhint: give no path", NULL, NULL);
  const int32_t result = read_options(given, &options, error);
  if (result != WEFT_OK) return result;
  if (options.sha256 != NULL) return fail(error, WEFT_ERROR_ARGUMENT, "this library has its model inside, there is no file whose hash could be compared", NULL, NULL);
  parts found = {here + weft_model.manifest, here + weft_model.weights, (size_t)weft_model.manifest_bytes, (size_t)weft_model.weights_bytes, code, (int32_t)weft_model.sections};
  for (int32_t k = 0; k < found.codes; ++k) {
    code[k].name = here + weft_model.section[k].name;
    code[k].base = here + weft_model.section[k].base;
    code[k].bytes = (size_t)weft_model.section[k].bytes;
  }
  return make_program(&found, &options, program, error);
}

int32_t weft_open_memory(const void *data, size_t bytes, const weft_options *options, weft_program **program, weft_error *error) {
  (void)data, (void)bytes, (void)options;
  if (program != NULL) *program = NULL;
  if (check_error(error) != WEFT_OK) return WEFT_ERROR_ARGUMENT;
  return fail(error, WEFT_ERROR_UNSUPPORTED, "this library has its model inside and opens no archives\nhint: libweft does", NULL, NULL);
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
