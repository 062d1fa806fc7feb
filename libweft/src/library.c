/* libweft: programs from archives. */
#include "core.c"

#include "sha256.c"

static int32_t corrupt(weft_error *error, const char *why);

#include "files.c"

#include "archive.c"

/* Opens what `data` or, if it is NULL, the file at `path` holds. */
static int32_t open_archive(const char *path, const void *data, size_t bytes, const weft_options *given, weft_program **program, weft_error *error) {
  weft_options options;
  parts found = {NULL, NULL, 0, 0, NULL, 0};
  if (program != NULL) *program = NULL;
  if (check_error(error) != WEFT_OK) return WEFT_ERROR_ARGUMENT;
  if (program == NULL) return null_pointer(error, "program");
  if (path == NULL && data == NULL) return fail(error, WEFT_ERROR_ARGUMENT, "path is a null pointer\nhint: this library has no model inside, give the path of an archive", NULL, NULL);
  int32_t result = read_options(given, &options, error);
  if (result != WEFT_OK) return result;
  file *const f = (file *)reserve(16, sizeof *f);
  if (f == NULL) return no_memory(error, sizeof *f);
  zero(f, sizeof *f);
  const char *at = (const char *)data;
  if (data == NULL) {
    result = read_file(f, path, error);
    at = (const char *)f->data;
    bytes = f->bytes;
  } else if ((uintptr_t)data % 64 != 0) {
    f->data = reserve(4096, bytes);
    f->bytes = bytes;
    if (f->data == NULL) result = no_memory(error, (int64_t)bytes);
    else copy(f->data, data, bytes);
    at = (const char *)f->data;
  }
  if (result == WEFT_OK && options.sha256 != NULL) {
    unsigned char digest[32];
    sha256 s;
    sha_begin(&s);
    sha_add(&s, at, bytes);
    sha_end(&s, digest);
    if (!is_digest(digest, options.sha256)) result = fail(error, WEFT_ERROR_ARCHIVE, "the archive is not the expected one\nwhy: its SHA-256 is not %s", WORDS(options.sha256), NULL);
  }
  if (result == WEFT_OK) result = read_archive(f, at, bytes, options.sha256 != NULL, &found, error);
  if (result == WEFT_OK) result = make_program(&found, &options, program, error);
  if (result != WEFT_OK) {
    leave_file(f);
    return result;
  }
  (*program)->leave = leave_file;
  (*program)->file = f;
  return WEFT_OK;
}

int32_t weft_open(const char *path, const weft_options *options, weft_program **program, weft_error *error) {
  return open_archive(path, NULL, 0, options, program, error);
}

int32_t weft_open_memory(const void *data, size_t bytes, const weft_options *options, weft_program **program, weft_error *error) {
  return open_archive(NULL, data, bytes, options, program, error);
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
