/* libweft: programs from archives. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "core.c"

#include "sha256.c"

#include "files.c"

#include "archive.c"

/* The 32 bytes that 64 hexadecimal digits say; 0: they are none. */
static int read_digest(const char *digits, unsigned char digest[32]) {
  for (int i = 0; i < 64; ++i) {
    const int letter = digits[i] | 32, value = digits[i] <= '9' ? digits[i] - '0' : letter - 'a' + 10;
    if (value < 0 || value > 15 || (digits[i] > '9' && value < 10)) return 0;
    digest[i / 2] = (unsigned char)(digest[i / 2] << 4 | value);
  }
  return digits[64] == 0;
}

/* Opens what `data` or, if it is NULL, the file at `path` holds. */
static int32_t open_archive(const char *path, const void *data, size_t bytes, const weft_options *given, weft_program **program, weft_error *error) {
  weft_options options;
  parts found;
  scope s = {NULL, error};
  file *f;
  int32_t result = begin(&s, given, &options, program);
  if (result != WEFT_OK) return result;
  if (path == NULL && data == NULL) return fail(&s, ARGUMENT "path" NULL_POINTER HINT THIS_LIBRARY "has no model inside", NULL);
  weft_program *const p = (weft_program *)zeros(sizeof *p);
  if (p == NULL || (p->file = f = (file *)zeros(sizeof *f)) == NULL) {
    release(p);
    return no_memory(&s, sizeof *f);
  }
  s.program = p;
  p->leave = leave_file;
  const char *at = (const char *)data;
  if (data == NULL) {
    result = read_file(&s, f, path);
    at = (const char *)f->data;
    bytes = f->bytes;
  } else if ((uintptr_t)data % 64 != 0) {
    at = (const char *)(f->data = reserve(4096, bytes));
    if (at == NULL) result = no_memory(&s, (int64_t)bytes);
    else copy(f->data, data, bytes);
  }
  if (result == WEFT_OK && options.sha256 != NULL) {
    unsigned char wanted[32];
    if (!read_digest(options.sha256, wanted) || !hash_is(at, bytes, wanted))
      result = fail(&s, ARCHIVE "the archive is not the expected one" WHY "its SHA-256 is not %a", ARGS(WORD(options.sha256)));
  }
  if (result == WEFT_OK) result = read_archive(&s, p, f, at, bytes, options.sha256 != NULL, &found);
  return finish(&s, p, result, &found, &options, program);
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
