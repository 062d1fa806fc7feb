/* weft.h without Weft: what the agent is tested with. An "archive" is a text that says what running it does:

   double N       one float32 input of rank 1, doubled; each run takes N milliseconds
   constant N     no input, one uint8 output of N bytes, byte i is i % 251
   fill N         as constant, after N bytes of memory were written
   alone PATH     as constant 1, if nobody else runs it on this PATH at the same time
   spin, crash, exit, fork, fail
*/
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "weft.h"

int weft_serve(int argc, char **argv);

struct weft_program {
  char what[16], path[200];
  long number;
};

static int32_t fail(weft_error *error, int32_t code, const char *message) {
  error->code = code;
  strncpy(error->message, message, sizeof error->message - 1);
  return code;
}

int32_t weft_api_version(void) { return WEFT_API_VERSION; }

int32_t weft_open_memory(const void *data, size_t bytes, const weft_options *options, weft_program **program,
                         weft_error *error) {
  char text[256] = "";
  (void)options;
  weft_program *p = calloc(1, sizeof *p);
  memcpy(text, data, bytes < 255 ? bytes : 255);
  if (sscanf(text, "%15s %ld", p->what, &p->number) < 1)
    return fail(error, WEFT_ERROR_ARCHIVE, "it is no archive\nwhy: it is empty\nhint: compile one");
  if (!strcmp(p->what, "alone")) sscanf(text, "%*s %199s", p->path), p->number = 1;
  *program = p;
  return WEFT_OK;
}

void weft_close(weft_program *p) { free(p); }

static int doubles(const weft_program *p) { return !strcmp(p->what, "double"); }

int32_t weft_describe(const weft_program *p, weft_program_info *info, weft_error *error) {
  (void)error;
  info->inputs = doubles(p);
  info->outputs = 1;
  info->threads = 1;
  return WEFT_OK;
}

int32_t weft_input(const weft_program *p, int32_t i, weft_value_info *info, weft_error *error) {
  (void)i, (void)error, (void)p;
  *info = (weft_value_info){sizeof *info, 1, WEFT_FLOAT, 32, 1, "x", "float32", NULL};
  return WEFT_OK;
}

int32_t weft_output(const weft_program *p, int32_t i, weft_value_info *info, weft_error *error) {
  (void)i, (void)error;
  *info = (weft_value_info){sizeof *info, 1, doubles(p) ? WEFT_FLOAT : WEFT_UINT, doubles(p) ? 32 : 8, 1, "y", "", NULL};
  return WEFT_OK;
}

int32_t weft_run(weft_program *p, const weft_tensor *const *inputs, weft_tensor *const *outputs, weft_error *error) {
  weft_tensor *out = outputs[0];
  if (!strcmp(p->what, "spin")) for (volatile int i = 0;; i++) {}
  if (!strcmp(p->what, "crash")) *(volatile int *)16 = 1;
  if (!strcmp(p->what, "exit")) _exit(7);
  if (!strcmp(p->what, "fail")) return fail(error, WEFT_ERROR_RUN, "the run failed\nwhere: node 'a'\nwhy: it is a test");
  if (!strcmp(p->what, "fork")) {
    if (fork() == 0) for (;;) sleep(1);
    for (;;) sleep(1);
  }
  if (p->path[0]) {
    if (mkdir(p->path, 0700)) return fail(error, WEFT_ERROR_RUN, "another job runs at the same time");
    struct timespec time = {0, 2000000};
    nanosleep(&time, NULL);
    rmdir(p->path);
  }
  if (doubles(p)) {
    if (inputs[0]->ndim != 1 || inputs[0]->code != WEFT_FLOAT) return fail(error, WEFT_ERROR_INPUT, "another input");
    struct timespec time = {p->number / 1000, p->number % 1000 * 1000000};
    if (p->number) nanosleep(&time, NULL);
    out->shape[0] = inputs[0]->shape[0];
    if (!out->data) out->data = malloc((size_t)out->shape[0] * 4 + 1);
    for (int64_t i = 0; i < out->shape[0]; i++) ((float *)out->data)[i] = 2 * ((const float *)inputs[0]->data)[i];
    return WEFT_OK;
  }
  if (!strcmp(p->what, "fill")) {
    char *memory = malloc((size_t)p->number);
    if (!memory) return fail(error, WEFT_ERROR_MEMORY, "there is not enough memory");
    memset(memory, 1, (size_t)p->number);
    p->number = memory[p->number / 2];
    free(memory);
  }
  out->shape[0] = p->number;
  if (!out->data) out->data = malloc((size_t)p->number + 1);
  for (int64_t i = 0; i < p->number; i++) ((uint8_t *)out->data)[i] = (uint8_t)(i % 251);
  return WEFT_OK;
}

void weft_release(weft_tensor *output) {
  free(output->data);
  output->data = NULL;
}

int main(int argc, char **argv) {
  if (argc < 2 || strcmp(argv[1], "--serve")) return 2;
  return weft_serve(argc - 1, argv + 1);
}
