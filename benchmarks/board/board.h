#ifndef BOARD_H
#define BOARD_H
#include <stdint.h>

void print(const char *text);
void print_number(uint32_t value);
void print_bytes(const void *data, uint32_t bytes);
/* Counts down, modulo 2^24; one for 40 instructions. */
uint32_t ticks(void);
#endif
