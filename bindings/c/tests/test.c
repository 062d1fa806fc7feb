/* Tests of weft_library.h and weft.h: test FOLDER, on the files that tests/bindings/materials.py writes. Built with
   -DLINKED and linked with mlp.so, it calls the functions of that library by name, beside libraries that it loads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft_library.h"

#define CHECK(condition)                                                 \
  do {                                                                   \
    ++checks;                                                            \
    if (!(condition)) {                                                  \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
      fprintf(stderr, "last error: %d %s\n", error.code, error.message); \
      exit(1);                                                           \
    }                                                                    \
  } while (0)

static int checks;
static const char *folder;
static weft_error error = {.size = sizeof error};

static const char *at(const char *name) {
  static char path[4][1024];
  static int k;
  char *const made = path[k++ % 4];
  snprintf(made, sizeof path[0], "%s/%s", folder, name);
  return made;
}

/* The bytes of a file, at a multiple of 64. */
static void *bytes_of(const char *name, size_t *bytes) {
  FILE *const file = fopen(at(name), "rb");
  CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
  *bytes = (size_t)ftell(file);
  rewind(file);
  void *const made = aligned_alloc(64, (*bytes + 64) & ~(size_t)63);
  CHECK(made != NULL && fread(made, 1, *bytes, file) == *bytes);
  fclose(file);
  return made;
}

static weft_tensor tensor(void *data, uint8_t code, uint8_t bits, int32_t ndim, int64_t *shape) {
  return (weft_tensor){.data = data, .device_type = 1, .ndim = ndim, .code = code, .bits = bits, .lanes = 1, .shape = shape};
}

static int same(const weft_tensor *t, const char *name) {
  size_t bytes, size = t->bits / 8;
  void *const expected = bytes_of(name, &bytes);
  for (int32_t d = 0; d < t->ndim; ++d) size *= (size_t)t->shape[d];
  const int found = size == bytes && memcmp(t->data, expected, bytes) == 0;
  free(expected);
  return found;
}

static void run_mlp(const weft_library *weft, weft_program *program) {
  size_t bytes;
  float *const numbers = bytes_of("mlp-x.bin", &bytes), room[96];
  int64_t x_shape[] = {3, 64}, y_shape[2] = {0, 0}, narrow[] = {3, 63}, own_shape[] = {3, 32};
  weft_tensor x = tensor(numbers, WEFT_FLOAT, 32, 2, x_shape), y = {.shape = y_shape}, own = tensor(room, WEFT_FLOAT, 32, 2, own_shape);
  const weft_tensor *const in[] = {&x};
  CHECK(weft->run(program, in, (weft_tensor *[]){&y}, &error) == WEFT_OK);
  CHECK(y.ndim == 2 && y_shape[0] == 3 && y_shape[1] == 32 && y.code == WEFT_FLOAT && y.bits == 32 && same(&y, "mlp-y.bin"));
  weft->release(&y);
  CHECK(y.data == NULL);
  memset(room, 0, sizeof room);
  CHECK(weft->run(program, in, (weft_tensor *[]){&own}, NULL) == WEFT_OK && same(&own, "mlp-y.bin"));
  own_shape[0] = 2;
  CHECK(weft->run(program, in, (weft_tensor *[]){&own}, &error) == WEFT_ERROR_OUTPUT && error.code == WEFT_ERROR_OUTPUT);
  x.shape = narrow;
  CHECK(weft->run(program, in, (weft_tensor *[]){&y}, &error) == WEFT_ERROR_INPUT && y.data == NULL);
  CHECK(strstr(error.message, "input 'x' of 'mlp' has size 63 on axis 1, expected 64") != NULL);
  x = tensor(numbers, WEFT_INT, 32, 2, x_shape);
  CHECK(weft->run(program, in, (weft_tensor *[]){&y}, &error) == WEFT_ERROR_INPUT);
  CHECK(strstr(error.message, "float32") != NULL);
  free(numbers);
}

static void run_mixed(const weft_library *weft, weft_program *program) {
  static const char *const in_names[] = {"x", "k", "s", "m"}, *const out_names[] = {"y", "places", "t", "w", "l"};
  static const char *const in_files[] = {"mixed-x.bin", "mixed-k.bin", "mixed-s.bin", "mixed-m.bin"};
  static const char *const out_files[] = {"mixed-y.bin", "mixed-places.bin", "mixed-t.bin", "mixed-w.bin", "mixed-l.bin"};
  int64_t in_shape[4][2] = {{4, 3}, {5, 0}, {0, 0}, {2, 0}}, out_shape[5][2];
  weft_program_info info = {.size = sizeof info};
  weft_tensor in[4], out[5];
  const weft_tensor *ins[4];
  weft_tensor *outs[5];
  CHECK(weft->describe(program, &info, &error) == WEFT_OK && info.inputs == 4 && info.outputs == 5);
  for (int32_t i = 0; i < 4; ++i) {
    size_t bytes;
    weft_value_info value = {.size = sizeof value};
    CHECK(weft->input(program, i, &value, &error) == WEFT_OK && strcmp(value.name, in_names[i]) == 0);
    in[i] = tensor(bytes_of(in_files[i], &bytes), value.code, value.bits, value.ndim, in_shape[i]);
    ins[i] = &in[i];
  }
  for (int32_t i = 0; i < 5; ++i) {
    weft_value_info value = {.size = sizeof value};
    CHECK(weft->output(program, i, &value, &error) == WEFT_OK && strcmp(value.name, out_names[i]) == 0);
    out[i] = (weft_tensor){.shape = out_shape[i]};
    outs[i] = &out[i];
  }
  CHECK(weft->run(program, ins, outs, &error) == WEFT_OK);
  CHECK(out[1].ndim == 2 && out_shape[1][0] == 2 && out_shape[1][1] == 7);
  for (int32_t i = 0; i < 5; ++i) {
    CHECK(same(&out[i], out_files[i]));
    weft->release(&out[i]);
  }
  for (int32_t i = 0; i < 4; ++i) free(in[i].data);
}

static void open_and_run(const char *library, const char *prefix, const char *archive, void (*run)(const weft_library *, weft_program *)) {
  weft_library weft;
  weft_program *program = NULL;
  CHECK(weft_library_load(&weft, at(library), prefix, &error) == WEFT_OK);
  CHECK(weft.open(archive == NULL ? NULL : at(archive), NULL, &program, &error) == WEFT_OK);
  run(&weft, program);
  weft.close(program);
}

static void errors(void) {
  weft_library weft, other;
  weft_program *program = NULL;
  size_t bytes;
  CHECK(weft_library_load(&weft, at("nothing.so"), NULL, &error) == WEFT_ERROR_FILE && strstr(error.message, "cannot be loaded") != NULL);
  CHECK(weft_library_load(&weft, at("mixed.so"), NULL, &error) == WEFT_ERROR_FILE && strstr(error.message, "no function 'weft_api_version'") != NULL);
  CHECK(weft.open == NULL);
  CHECK(weft_library_load(NULL, at("mixed.so"), NULL, &error) == WEFT_ERROR_ARGUMENT);
  CHECK(weft_library_load(&weft, at("libweft.so"), "", NULL) == WEFT_OK);
  CHECK(weft.open(at("nothing.weft"), NULL, &program, &error) == WEFT_ERROR_FILE && program == NULL);
  CHECK(strstr(error.message, "nothing.weft") != NULL);
  CHECK(weft.open(at("damaged.weft"), NULL, &program, &error) == WEFT_ERROR_ARCHIVE);
  CHECK(weft.open(at("foreign.weft"), NULL, &program, &error) == WEFT_ERROR_MACHINE && strstr(error.message, "was compiled for") != NULL);
  CHECK(weft.open(NULL, NULL, &program, &error) == WEFT_ERROR_ARGUMENT);
  char *const digest = bytes_of("mlp.sha256", &bytes);
  digest[64] = 0;
  weft_options options = {.size = sizeof options, .threads = 1, .sha256 = digest};
  CHECK(weft.open(at("mlp.weft"), &options, &program, &error) == WEFT_OK);
  weft_program_info info = {.size = sizeof info};
  CHECK(weft.describe(program, &info, &error) == WEFT_OK && info.threads == 1 && strcmp(info.name, "mlp") == 0);
  weft.close(program);
  CHECK(weft.open(at("mixed.weft"), &options, &program, &error) == WEFT_ERROR_ARCHIVE);
  free(digest);
  CHECK(weft_library_load(&other, at("mlp.so"), NULL, &error) == WEFT_OK);
  CHECK(other.open(at("mlp.weft"), NULL, &program, &error) == WEFT_ERROR_ARGUMENT);
  void *const archive = bytes_of("mlp.weft", &bytes);
  CHECK(weft.open_memory(archive, bytes, NULL, &program, &error) == WEFT_OK);
  run_mlp(&weft, program);
  weft.close(program);
  CHECK(weft.open_memory(archive, bytes / 2, NULL, &program, &error) == WEFT_ERROR_ARCHIVE);
  free(archive);
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  folder = argv[1];
  open_and_run("libweft.so", NULL, "mlp.weft", run_mlp);
  open_and_run("libweft.so", NULL, "mixed.weft", run_mixed);
  open_and_run("mlp.so", NULL, NULL, run_mlp);
  open_and_run("mixed.so", "mixed", NULL, run_mixed);
  errors();
#ifdef LINKED
  weft_program *program = NULL;
  const weft_library linked = {weft_api_version, weft_open, weft_open_memory, weft_close, weft_describe,
                               weft_input, weft_output, weft_run, weft_release};
  CHECK(weft_open(NULL, NULL, &program, &error) == WEFT_OK);
  run_mlp(&linked, program);
  weft_close(program);
#endif
  printf("%d passed, 0 failed\n", checks);
  return 0;
}
