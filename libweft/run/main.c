/* weft-run: runs an archive from the command line, without Python.

   weft-run MODEL [--input NAME=FILE.npy] ... [--output FOLDER] [--runs N] [--threads N]
   weft-run --serve ...                                          the agent of remote runs (serve.c)

   Inputs and outputs are files of numpy (NEP 1, version 1.0). An input that is not given is zeros, open sizes 1. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "weft.h"

int weft_serve(int argc, char **argv) __attribute__((weak));

enum { MOST_VALUES = 256, MOST_RANK = 64 };

static void say(int to, const char *text) {
  size_t left = strlen(text);
  while (left > 0) {
    const ssize_t n = write(to, text, left);
    if (n <= 0) return;
    text += n;
    left -= (size_t)n;
  }
}

static char *number(char *end, int64_t value) {
  const int negative = value < 0;
  uint64_t left = negative ? 0 - (uint64_t)value : (uint64_t)value;
  *--end = 0;
  do *--end = (char)('0' + left % 10);
  while ((left /= 10) != 0);
  if (negative) *--end = '-';
  return end;
}

static void say_number(int to, int64_t value) {
  char text[24];
  say(to, number(text + sizeof text, value));
}

static int fails(const char *what, const char *about) {
  say(2, what);
  say(2, about);
  say(2, "\n");
  return 1;
}

typedef struct value {
  weft_value_info info;
  weft_tensor tensor;
  int64_t shape[MOST_RANK];
} value;

/* numpy's name of an element type, such as "<f4"; of those that numpy lacks, bytes. */
static const char *type_name(const weft_value_info *i, char text[8]) {
  const char kind = i->code == WEFT_INT ? 'i' : i->code == WEFT_UINT ? 'u' : i->code == WEFT_BOOL ? 'b' : i->code == WEFT_COMPLEX ? 'c' : i->code == WEFT_FLOAT ? 'f' : 'V';
  const int bytes = i->bits < 8 ? 1 : i->bits / 8;
  const uint16_t one = 1;
  text[0] = bytes == 1 ? '|' : *(const char *)&one ? '<' : '>';
  text[1] = kind;
  strcpy(text + 2, bytes == 16 ? "16" : bytes == 8 ? "8" : bytes == 4 ? "4" : bytes == 2 ? "2" : "1");
  return text;
}

/* The value of 'KEY': in the header of a file. */
static const char *header_field(const char *header, const char *key) {
  const char *at = strstr(header, key);
  if (at == NULL) return "";
  at = strchr(at, ':');
  while (at != NULL && (*++at == ' ' || *at == '\'')) continue;
  return at == NULL ? "" : at;
}

/* Reads a file of numpy into a tensor; what is wrong, or NULL. */
static const char *read_array(value *v, const char *path) {
  struct stat about;
  char type[8];
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &about) != 0 || about.st_size < 10) return "it cannot be read";
  char *const file = aligned_alloc(64, ((size_t)about.st_size + 128) & ~(size_t)63);
  size_t had = 0;
  while (file != NULL && had < (size_t)about.st_size) {
    const ssize_t n = read(fd, file + had, (size_t)about.st_size - had);
    if (n <= 0) break;
    had += (size_t)n;
  }
  close(fd);
  if (file == NULL || had != (size_t)about.st_size) return "it cannot be read";
  if (memcmp(file, "\x93NUMPY\x01", 7) != 0) return "it is no file of numpy of version 1.0";
  const size_t head = 10 + (unsigned char)file[8] + 256 * (size_t)(unsigned char)file[9];
  if (head > had) return "its header is cut off";
  char *const header = malloc(head + 1);
  if (header == NULL) return "there is no memory";
  memcpy(header, file + 10, head - 10);
  header[head - 10] = 0;
  const char *const said = header_field(header, "'descr'"), *at = header_field(header, "'shape'");
  type_name(&v->info, type);
  if (strncmp(said, type, strlen(type)) != 0) return "its elements are of another type than the input's";
  if (strncmp(header_field(header, "'fortran_order'"), "False", 5) != 0) return "it is not row-major";
  int64_t bytes = v->info.bits < 8 ? 1 : v->info.bits / 8;
  int rank = 0;
  if (*at != '(') return "its header is malformed";
  for (++at; *at != 0 && *at != ')'; ++at) {
    if (*at < '0' || *at > '9') continue;
    int64_t d = 0;
    for (; *at >= '0' && *at <= '9' && d < (int64_t)1 << 40; ++at) d = 10 * d + (*at - '0');
    if (rank == MOST_RANK || (d > 0 && bytes > ((int64_t)1 << 46) / d)) return "its sizes are too large";
    v->shape[rank++] = d;
    bytes *= d;
    --at;
  }
  if (bytes < 0 || (uint64_t)bytes != had - head) return "its length is not that of its sizes";
  memmove(file, file + head, had - head); /* to a multiple of 64 */
  v->tensor.data = file;
  v->tensor.ndim = rank;
  free(header);
  return NULL;
}

static const char *zeros(value *v) {
  size_t bytes = v->info.bits < 8 ? 1 : v->info.bits / 8;
  for (int32_t d = 0; d < v->info.ndim; ++d) {
    v->shape[d] = v->info.shape[d] < 0 ? 1 : v->info.shape[d];
    if (v->shape[d] > 0 && bytes > ((size_t)-1 >> 2) / (size_t)v->shape[d]) return "it is too large";
    bytes *= (size_t)v->shape[d];
  }
  v->tensor.data = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
  v->tensor.ndim = v->info.ndim;
  if (v->tensor.data == NULL) return "there is no memory";
  memset(v->tensor.data, 0, bytes);
  return NULL;
}

static const char *write_array(const value *v, int number_of, const char *folder) {
  char path[4096], header[2048], digits[24], type[8];
  if (strlen(folder) > 4000) return "its path is too long";
  strcpy(path, folder);
  strcat(path, "/");
  strcat(path, number(digits + sizeof digits, number_of));
  strcat(path, ".npy");
  memcpy(header, "\x93NUMPY\x01\x00\x00\x00{'descr': '", 21);
  header[21] = 0;
  strcpy(header + 21, type_name(&v->info, type));
  char *at = header + 21 + strlen(header + 21);
  strcpy(at, "', 'fortran_order': False, 'shape': (");
  at += strlen(at);
  size_t bytes = v->info.bits < 8 ? 1 : v->info.bits / 8;
  for (int32_t d = 0; d < v->tensor.ndim; ++d) {
    strcpy(at, number(digits + sizeof digits, v->shape[d]));
    strcat(at, ",");
    at += strlen(at);
    bytes *= (size_t)v->shape[d];
  }
  strcpy(at, "), }");
  at += 4;
  while ((at - header + 1) % 64 != 0) *at++ = ' ';
  *at++ = '\n';
  header[8] = (char)((at - header - 10) & 255);
  header[9] = (char)((at - header - 10) >> 8);
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return "it cannot be written";
  const char *const parts[2] = {header, v->tensor.data};
  const size_t sizes[2] = {(size_t)(at - header), bytes};
  for (int k = 0; k < 2; ++k)
    for (size_t done = 0; done < sizes[k];) {
      const ssize_t n = write(fd, parts[k] + done, sizes[k] - done);
      if (n <= 0) {
        close(fd);
        unlink(path);
        return "it cannot be written";
      }
      done += (size_t)n;
    }
  return close(fd) == 0 ? NULL : "it cannot be written";
}

int main(int argc, char **argv) {
  static value in[MOST_VALUES], out[MOST_VALUES];
  static const weft_tensor *ins[MOST_VALUES];
  static weft_tensor *outs[MOST_VALUES];
  const char *model = NULL, *folder = NULL;
  int64_t runs = 1;
  weft_options options = {sizeof options, 0, NULL};
  weft_error error = {sizeof error, 0, ""};
  weft_program_info info = {sizeof info, 0, 0, 0, NULL, NULL, NULL};
  weft_program *program = NULL;
  if (argc > 1 && strcmp(argv[1], "--serve") == 0) {
    if (weft_serve != NULL) return weft_serve(argc - 1, argv + 1);
    return fails("this weft-run was built without --serve", "");
  }
  for (int k = 1; k < argc; ++k) {
    const char *const next = k + 1 < argc ? argv[k + 1] : "";
    if (strcmp(argv[k], "--input") == 0) ++k; /* later, when inputs are known */
    else if (strcmp(argv[k], "--output") == 0) folder = next, ++k;
    else if (strcmp(argv[k], "--runs") == 0) runs = atoi(next), ++k;
    else if (strcmp(argv[k], "--threads") == 0) options.threads = atoi(next), ++k;
    else if (argv[k][0] == '-' || model != NULL) return fails("usage: weft-run MODEL [--input NAME=FILE.npy] ... [--output FOLDER] [--runs N] [--threads N]", "");
    else model = argv[k];
  }
  if (model == NULL) return fails("usage: weft-run MODEL [--input NAME=FILE.npy] ... [--output FOLDER] [--runs N] [--threads N]", "");
  if (weft_open(model, &options, &program, &error) != 0 || weft_describe(program, &info, &error) != 0) return fails(error.message, "");
  if (info.inputs > MOST_VALUES || info.outputs > MOST_VALUES) return fails("the model has more than 256 inputs or outputs", "");
  for (int32_t k = 0; k < info.inputs + info.outputs; ++k) {
    value *const v = k < info.inputs ? &in[k] : &out[k - info.inputs];
    v->info.size = sizeof v->info;
    if ((k < info.inputs ? weft_input(program, k, &v->info, &error) : weft_output(program, k - info.inputs, &v->info, &error)) != 0) return fails(error.message, "");
    v->tensor.device_type = 1;
    v->tensor.code = v->info.code;
    v->tensor.bits = v->info.bits;
    v->tensor.lanes = 1;
    v->tensor.ndim = v->info.ndim;
    v->tensor.shape = v->shape;
    if (k < info.inputs) ins[k] = &v->tensor;
    else outs[k - info.inputs] = &v->tensor;
  }
  for (int k = 1; k + 1 < argc; ++k) {
    if (strcmp(argv[k], "--input") != 0) continue;
    const char *const word = argv[++k], *const equals = strchr(word, '=');
    int32_t i = 0;
    while (i < info.inputs && (equals == NULL || strncmp(in[i].info.name, word, (size_t)(equals - word)) != 0 || in[i].info.name[equals - word] != 0)) ++i;
    if (i == info.inputs) return fails("no input is meant by ", word);
    const char *const wrong = read_array(&in[i], equals + 1);
    if (wrong != NULL) {
      say(2, equals + 1);
      return fails(": ", wrong);
    }
  }
  for (int32_t i = 0; i < info.inputs; ++i)
    if (in[i].tensor.data == NULL) {
      const char *const wrong = zeros(&in[i]);
      if (wrong != NULL) return fails("no zeros for an input: ", wrong);
    }
  for (int64_t k = 0; k < runs; ++k) {
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    if (weft_run(program, ins, outs, &error) != 0) return fails(error.message, "");
    clock_gettime(CLOCK_MONOTONIC, &ended);
    say_number(1, (int64_t)(ended.tv_sec - began.tv_sec) * 1000000000 + (ended.tv_nsec - began.tv_nsec));
    say(1, " ns\n");
  }
  for (int32_t i = 0; i < info.outputs && folder != NULL; ++i) {
    const char *const wrong = write_array(&out[i], i, folder);
    if (wrong != NULL) return fails("an output: ", wrong);
  }
  for (int32_t i = 0; i < info.outputs; ++i) weft_release(&out[i].tensor);
  weft_close(program);
  return 0;
}
