// What an image would else ask of a C library: a compiler calls the first four of its own accord, the others where a processor lacks the instruction.
#include <stddef.h>
#include <stdint.h>

// A loop that copies bytes is not to become a call of memcpy inside memcpy; -fno-builtin alone says so to others.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

void *memcpy(void *restrict to, const void *restrict from, size_t n) {
  for (size_t i = 0; i < n; ++i) ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
  return to;
}

void *memmove(void *to, const void *from, size_t n) {
  unsigned char *const a = to;
  const unsigned char *const b = from;
  if ((uintptr_t)a < (uintptr_t)b) {
    for (size_t i = 0; i < n; ++i) a[i] = b[i];
  } else {
    for (size_t i = n; i > 0; --i) a[i - 1] = b[i - 1];
  }
  return to;
}

void *memset(void *to, int value, size_t n) {
  for (size_t i = 0; i < n; ++i) ((unsigned char *)to)[i] = (unsigned char)value;
  return to;
}

int memcmp(const void *a, const void *b, size_t n) {
  const unsigned char *const x = a, *const y = b;
  for (size_t i = 0; i < n; ++i) {
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  }
  return 0;
}

typedef union {
  float f;
  uint32_t u;
} word32;
typedef union {
  double f;
  uint64_t u;
} word64;

static uint32_t bits32(float x) { return ((word32){.f = x}).u; }
static float float32(uint32_t u) { return ((word32){.u = u}).f; }
static uint64_t bits64(double x) { return ((word64){.f = x}).u; }
static double float64(uint64_t u) { return ((word64){.u = u}).f; }

double fabs(double x) { return float64(bits64(x) & (UINT64_MAX >> 1)); }
float fabsf(float x) { return float32(bits32(x) & (UINT32_MAX >> 1)); }
double copysign(double x, double y) { return float64((bits64(x) & (UINT64_MAX >> 1)) | (bits64(y) & ~(UINT64_MAX >> 1))); }
float copysignf(float x, float y) { return float32((bits32(x) & (UINT32_MAX >> 1)) | (bits32(y) & ~(UINT32_MAX >> 1))); }

// Adding 2^52 to a number below it rounds it to an integer, half to even. What is not below it is one, or no number.
double rint(double x) {
  const double size = fabs(x);
  if (!(size < 0x1p52)) return x;
  volatile const double up = size + 0x1p52;
  return copysign(up - 0x1p52, x);
}

double trunc(double x) {
  const double near = rint(x);
  return copysign(fabs(near) > fabs(x) ? fabs(near) - 1.0 : fabs(near), x);
}

double floor(double x) {
  const double near = rint(x);
  return copysign(near > x ? near - 1.0 : near, x);
}

double ceil(double x) {
  const double near = rint(x);
  return copysign(near < x ? near + 1.0 : near, x);
}

// Integers of a float are floats, and rounding to one in double is exact.
float rintf(float x) { return (float)rint(x); }
float truncf(float x) { return (float)trunc(x); }
float floorf(float x) { return (float)floor(x); }
float ceilf(float x) { return (float)ceil(x); }

// a + b rounded to odd: the last bit stands for what was lost, so that a second rounding is right (Boldo and Melquiond).
static double odd_sum(double a, double b) {
  const double sum = a + b, part = sum - a, lost = (a - (sum - part)) + (b - part);
  if (lost != lost || lost == 0.0 || (bits64(sum) & 1)) return sum;
  return float64((lost < 0.0) != (sum < 0.0) ? bits64(sum) - 1 : bits64(sum) + 1);
}

float fmaf(float a, float b, float c) { return (float)odd_sum((double)a * (double)b, c); }

// The product as two numbers (Dekker), the sum as two numbers (Knuth); huge operands cannot be split, and need no care.
double fma(double a, double b, double c) {
  const double p = a * b, s = p + c;
  const double ta = a * 134217729.0, tb = b * 134217729.0;
  const double ah = ta - (ta - a), al = a - ah, bh = tb - (tb - b), bl = b - bh;
  const double low = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
  const double back = s - p;
  const double result = s + (low + ((p - (s - back)) + (c - back)));
  return result != result || fabs(result) > 0x1p1023 || result == 0.0 ? s : result;
}

// Bit by bit: slow, exact, and only where a processor has no instruction for it or nothing is optimised.
double sqrt(double x) {
  uint64_t u = bits64(x);
  if (x != x || u << 1 == 0 || u == (uint64_t)0x7ff << 52) return x;
  if (u >> 63) return (x - x) / (x - x);
  int64_t exponent = (int64_t)(u >> 52);
  u &= UINT64_MAX >> 12;
  if (exponent == 0) {
    for (exponent = 1; !(u >> 52); --exponent) u <<= 1;
  } else {
    u |= (uint64_t)1 << 52;
  }
  exponent -= 1023;
  if (exponent & 1) u <<= 1;
  exponent = (exponent - (exponent & 1)) / 2;
  uint64_t root = 0, rest = 0;
  // 54 bits of the root of u · 2^54: 53 and one to round by.
  for (int k = 0; k < 54; ++k) {
    const int shift = 52 - 2 * k;
    rest = rest << 2 | (shift >= 0 ? u >> shift & 3 : 0);
    root <<= 1;
    if (rest >= 2 * root + 1) {
      rest -= 2 * root + 1;
      root += 1;
    }
  }
  root = (root >> 1) + ((root & 1) && (rest != 0 || (root >> 1 & 1)));
  return float64((root & (UINT64_MAX >> 12)) + ((uint64_t)(exponent + 1023 + (root >> 53 ? 1 : 0)) << 52));
}

float sqrtf(float x) { return (float)sqrt(x); }  // the root of a float is never so near to a tie of floats that two roundings show

// The remainder by long division, a bit of the quotient at a time; exact.
double fmod(double a, double b) {
  uint64_t m = bits64(a) & (UINT64_MAX >> 1), n = bits64(b) & (UINT64_MAX >> 1);
  const uint64_t sign = bits64(a) & ~(UINT64_MAX >> 1), infinity = (uint64_t)0x7ff << 52, hidden = (uint64_t)1 << 52;
  if (m >= infinity || n > infinity || n == 0) return (a * b - a * b) / (a * b - a * b);
  if (m < n) return a;
  int64_t e = (int64_t)(m >> 52), f = (int64_t)(n >> 52);
  m &= hidden - 1, n &= hidden - 1;
  if (e) m |= hidden;
  else for (e = 1; !(m & hidden); --e) m <<= 1;
  if (f) n |= hidden;
  else for (f = 1; !(n & hidden); --f) n <<= 1;
  for (; e > f; --e) {
    if (m >= n) m -= n;
    m <<= 1;
  }
  if (m >= n) m -= n;
  if (m == 0) return float64(sign);
  for (; !(m & hidden); --e) m <<= 1;
  return float64(sign | (e > 0 ? (m & (hidden - 1)) | (uint64_t)e << 52 : m >> (1 - e)));
}

float fmodf(float a, float b) { return (float)fmod(a, b); }  // a remainder of floats is a float
