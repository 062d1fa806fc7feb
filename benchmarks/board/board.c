/* Start, output and a count of instructions on a Cortex-M that QEMU emulates, by semihosting. With -icount shift=0 an
   instruction takes a nanosecond, and the counter of the board's clock of 25 MHz counts every 40. */
#include <stdint.h>

#include "board.h"

extern int main(void);
void reset(void);

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {(void *)0x20400000, (void *)reset};

#define SYSTICK ((volatile uint32_t *)0xE000E010)
#define CPACR (*(volatile uint32_t *)0xE000ED88)

static int call(int operation, const void *argument) {
  register int r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

void reset(void) {
  CPACR |= 0xFU << 20;
  SYSTICK[1] = 0xFFFFFF;
  SYSTICK[2] = 0;
  SYSTICK[0] = 5;
  (void)main();
  (void)call(0x18, (const void *)0x20026);
  for (;;) {
  }
}

void print(const char *text) { (void)call(0x04, text); }

void print_number(uint32_t value) {
  char text[12];
  int at = 11;
  text[at] = '\0';
  do {
    text[--at] = (char)('0' + (value % 10U));
    value /= 10U;
  } while (value != 0U);
  print(&text[at]);
}

void print_bytes(const void *data, uint32_t bytes) {
  const uint8_t *at = data;
  char text[65];
  for (uint32_t k = 0; k < bytes;) {
    int n = 0;
    for (; k < bytes && n < 64; ++k) {
      text[n++] = "0123456789abcdef"[at[k] >> 4];
      text[n++] = "0123456789abcdef"[at[k] & 15U];
    }
    text[n] = '\0';
    print(text);
  }
}

uint32_t ticks(void) { return SYSTICK[2]; }
