/* Loads libweft, or a library that `weft export` wrote, by its path, while a program runs.

   A program that is linked with the library needs this header not: it calls the functions of weft.h. Link with -ldl
   where the C library is older than glibc 2.34. */
#ifndef WEFT_LIBRARY_H
#define WEFT_LIBRARY_H

#include <string.h>

#include "weft.h"

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of weft.h in a library. It stays loaded until the process ends, as its worker threads run its code: the
   structure may be copied, and there is nothing to give back. */
typedef struct weft_library {
  int32_t (*api_version)(void);
  int32_t (*open)(const char *path, const weft_options *options, weft_program **program, weft_error *error);
  int32_t (*open_memory)(const void *data, size_t bytes, const weft_options *options, weft_program **program, weft_error *error);
  void (*close)(weft_program *program);
  int32_t (*describe)(const weft_program *program, weft_program_info *info, weft_error *error);
  int32_t (*input)(const weft_program *program, int32_t index, weft_value_info *info, weft_error *error);
  int32_t (*output)(const weft_program *program, int32_t index, weft_value_info *info, weft_error *error);
  int32_t (*run)(weft_program *program, const weft_tensor *const *inputs, weft_tensor *const *outputs, weft_error *error);
  void (*release)(weft_tensor *output);
} weft_library;

/* Writes an error; a piece of text that does not fit is left out. `pieces` ends with NULL. */
static inline int32_t weft_library_fail_(weft_error *error, int32_t code, const char *const *pieces) {
  size_t at = 0;
  if (error == NULL || error->size < sizeof *error) return code;
  error->code = code;
  for (; *pieces != NULL; ++pieces) {
    const size_t bytes = strlen(*pieces);
    if (at + bytes >= sizeof error->message) continue;
    memcpy(error->message + at, *pieces, bytes);
    at += bytes;
  }
  error->message[at] = 0;
  return code;
}

static inline void *weft_library_handle_(const char *path) {
#ifdef _WIN32
  wchar_t wide[1024];
  if (MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, 1024) == 0) return NULL;
  return (void *)LoadLibraryW(wide);
#else
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
#endif
}

/* The address of PREFIX_NAME, or of NAME if there is no prefix, goes to `to`. */
static inline int weft_library_find_(void *handle, const char *prefix, const char *name, void *to) {
  char whole[256];
  const size_t before = prefix == NULL || *prefix == 0 ? 0 : strlen(prefix) + 1, bytes = strlen(name) + 1;
  if (before + bytes > sizeof whole) return 0;
  if (before > 0) {
    memcpy(whole, prefix, before - 1);
    whole[before - 1] = '_';
  }
  memcpy(whole + before, name, bytes);
#ifdef _WIN32
  const FARPROC found = GetProcAddress((HMODULE)handle, whole);
#else
  void *const found = dlsym(handle, whole);
#endif
  memcpy(to, &found, sizeof found);
  return found != NULL;
}

/* Loads the library at `path` (UTF-8), and writes its functions to `library`.

   `prefix` is that of `weft export --prefix`; NULL: none. Returns WEFT_OK, WEFT_ERROR_FILE (the library cannot be loaded,
   or lacks a function) or WEFT_ERROR_VERSION (it is older than this header), and writes what went wrong to `error`, which
   may be NULL. */
static inline int32_t weft_library_load(weft_library *library, const char *path, const char *prefix, weft_error *error) {
  static const char *const names[9] = {"weft_api_version", "weft_open", "weft_open_memory", "weft_close", "weft_describe",
                                       "weft_input", "weft_output", "weft_run", "weft_release"};
  void *to[9];
  int k;
  if (error != NULL && error->size < sizeof *error) return WEFT_ERROR_ARGUMENT;
  if (library == NULL || path == NULL) {
    const char *const pieces[] = {library == NULL ? "library is a null pointer" : "the path of the library is a null pointer", NULL};
    return weft_library_fail_(error, WEFT_ERROR_ARGUMENT, pieces);
  }
  memset(library, 0, sizeof *library);
  void *const handle = weft_library_handle_(path);
  if (handle == NULL) {
#ifdef _WIN32
    const char *const pieces[] = {"the library '", path, "' cannot be loaded", NULL};
#else
    const char *const reason = dlerror();
    const char *const pieces[] = {"the library '", path, "' cannot be loaded", "\nwhy: ", reason == NULL ? "" : reason, NULL};
#endif
    return weft_library_fail_(error, WEFT_ERROR_FILE, pieces);
  }
  to[0] = &library->api_version, to[1] = &library->open, to[2] = &library->open_memory, to[3] = &library->close;
  to[4] = &library->describe, to[5] = &library->input, to[6] = &library->output, to[7] = &library->run;
  to[8] = &library->release;
  for (k = 0; k < 9; ++k)
    if (!weft_library_find_(handle, prefix, names[k], to[k])) {
      const int given = prefix != NULL && *prefix != 0;
      const char *const pieces[] = {"'", path, "' is no library of Weft", "\nwhy: it has no function '", given ? prefix : "", given ? "_" : "",
                                    names[k], "'", "\nhint: give the prefix that it was exported with, if it has one", NULL};
      memset(library, 0, sizeof *library);
      return weft_library_fail_(error, WEFT_ERROR_FILE, pieces);
    }
  if (library->api_version() < WEFT_API_VERSION) {
    const char *const pieces[] = {"the library '", path, "' is older than the program that loads it", NULL};
    memset(library, 0, sizeof *library);
    return weft_library_fail_(error, WEFT_ERROR_VERSION, pieces);
  }
  return WEFT_OK;
}

#ifdef __cplusplus
}
#endif

#endif
