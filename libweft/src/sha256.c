/* SHA-256 (FIPS 180-4). */

typedef struct sha256 {
  uint32_t state[8];
  uint64_t bytes;
  unsigned char block[64];
} sha256;

static const uint32_t SHA_ROUNDS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74,
    0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d,
    0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e,
    0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
    0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turned(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void sha_block(sha256 *s, const unsigned char *at) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; ++i) w[i] = (uint32_t)at[4 * i] << 24 | (uint32_t)at[4 * i + 1] << 16 | (uint32_t)at[4 * i + 2] << 8 | at[4 * i + 3];
  for (int i = 16; i < 64; ++i)
    w[i] = w[i - 16] + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] + (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
  for (int i = 0; i < 8; ++i) v[i] = s->state[i];
  for (int i = 0; i < 64; ++i) {
    const uint32_t a = v[0], e = v[4];
    const uint32_t t = v[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + SHA_ROUNDS[i] + w[i];
    const uint32_t u = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    for (int k = 7; k > 0; --k) v[k] = v[k - 1];
    v[4] += t;
    v[0] = t + u;
  }
  for (int i = 0; i < 8; ++i) s->state[i] += v[i];
}

static void sha_begin(sha256 *s) {
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  for (int i = 0; i < 8; ++i) s->state[i] = first[i];
  s->bytes = 0;
}

static void sha_add(sha256 *s, const void *data, size_t bytes) {
  const unsigned char *at = (const unsigned char *)data;
  while (bytes > 0) {
    const size_t held_bytes = (size_t)(s->bytes % 64), room = 64 - held_bytes, n = bytes < room ? bytes : room;
    if (n == 64) sha_block(s, at);
    else {
      for (size_t i = 0; i < n; ++i) s->block[held_bytes + i] = at[i];
      if (n == room) sha_block(s, s->block);
    }
    s->bytes += n;
    at += n;
    bytes -= n;
  }
}

static void sha_end(sha256 *s, unsigned char digest[32]) {
  const uint64_t bits = s->bytes * 8;
  sha_add(s, "\x80", 1);
  while (s->bytes % 64 != 56) sha_add(s, "", 1);
  for (int i = 7; i >= 0; --i) s->block[63 - i] = (unsigned char)(bits >> 8 * i);
  sha_block(s, s->block);
  for (int i = 0; i < 32; ++i) digest[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}
