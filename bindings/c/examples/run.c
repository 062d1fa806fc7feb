/* Runs a model with one float32 input and one float32 output of two dimensions on rows from a file.

   run LIBRARY ARCHIVE|- INPUT OUTPUT

   LIBRARY is libweft, and ARCHIVE a file of `weft compile`; or LIBRARY is a file of `weft export`, and ARCHIVE is "-".
   INPUT and OUTPUT hold the numbers, row by row, and nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft_library.h"

int main(int argc, char **argv) {
  if (argc != 5) return fprintf(stderr, "usage: run LIBRARY ARCHIVE|- INPUT OUTPUT\n"), 2;

  weft_error error = {.size = sizeof error};
  weft_library weft;
  weft_program *program = NULL;
  const char *archive = strcmp(argv[2], "-") == 0 ? NULL : argv[2];
  if (weft_library_load(&weft, argv[1], NULL, &error) || weft.open(archive, NULL, &program, &error))
    return fprintf(stderr, "%s\n", error.message), 1;

  weft_value_info input = {.size = sizeof input};
  if (weft.input(program, 0, &input, &error)) return fprintf(stderr, "%s\n", error.message), 1;
  if (input.ndim != 2 || input.shape[1] < 1) return fprintf(stderr, "the input '%s' has no rows of a fixed size\n", input.name), 1;
  const size_t row = (size_t)input.shape[1] * sizeof(float);

  FILE *file = fopen(argv[3], "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) return perror(argv[3]), 1;
  const size_t rows = (size_t)ftell(file) / row;
  float *numbers = malloc(rows * row + 1);
  rewind(file);
  if (numbers == NULL || fread(numbers, row, rows, file) != rows) return perror(argv[3]), 1;
  fclose(file);

  int64_t x_shape[] = {(int64_t)rows, input.shape[1]}, y_shape[2];
  weft_tensor x = {.data = numbers, .device_type = 1, .ndim = 2, .code = WEFT_FLOAT, .bits = 32, .lanes = 1, .shape = x_shape};
  weft_tensor y = {.shape = y_shape}; /* no data: weft_run gives it memory */
  if (weft.run(program, (const weft_tensor *[]){&x}, (weft_tensor *[]){&y}, &error))
    return fprintf(stderr, "%s\n", error.message), 1;

  file = fopen(argv[4], "wb");
  const size_t count = (size_t)(y_shape[0] * y_shape[1]);
  if (file == NULL || fwrite(y.data, sizeof(float), count, file) != count || fclose(file) != 0) return perror(argv[4]), 1;

  weft.release(&y);
  weft.close(program);
  free(numbers);
  return 0;
}
