// Functions that kernels call. A text gets those that it uses, with what these use (weft_webgpu.definitions).
// Pieces stand between blank lines. Bools are joined by & and |, since && and || are branches. 64-bit integers are pairs
// of words, the lower one first.

// Bits as a float that no constant may be: infinity, NaN. A module's variable is no constant.
var<private> weft_none: u32 = 0u;

fn weft_float(bits: u32) -> f32 { return bitcast<f32>(bits | weft_none); }

fn weft_isnan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn weft_isinf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }

fn weft_min_f32(a: f32, b: f32) -> f32 { return select(b, a, (a < b) | weft_isnan(a)); }

fn weft_max_f32(a: f32, b: f32) -> f32 { return select(b, a, (a > b) | weft_isnan(a)); }

fn weft_copysign(a: f32, b: f32) -> f32 { return select(abs(a), -abs(a), (bitcast<u32>(b) >> 31u) != 0u); }

// -- 64 bits

fn weft_i64(x: i32) -> vec2<u32> { return vec2<u32>(u32(x), u32(x >> 31u)); }

fn weft_negative(x: vec2<u32>) -> bool { return (x.y >> 31u) != 0u; }

// How often a loop runs, as a word.
fn weft_extent(x: vec2<u32>) -> i32 {
  return select(select(2147483647, i32(x.x), (x.y == 0u) & (x.x < 0x80000000u)), 0, weft_negative(x));
}

fn weft_lt_u64(a: vec2<u32>, b: vec2<u32>) -> bool { return select(a.y < b.y, a.x < b.x, a.y == b.y); }

fn weft_lt_i64(a: vec2<u32>, b: vec2<u32>) -> bool { return select(i32(a.y) < i32(b.y), a.x < b.x, a.y == b.y); }

fn weft_min_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, weft_lt_u64(a, b)); }

fn weft_max_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, weft_lt_u64(b, a)); }

fn weft_min_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, weft_lt_i64(a, b)); }

fn weft_max_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, weft_lt_i64(b, a)); }

fn weft_add_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn weft_sub_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn weft_neg_64(a: vec2<u32>) -> vec2<u32> { return weft_sub_64(vec2<u32>(0u, 0u), a); }

fn weft_abs_i64(x: vec2<u32>) -> vec2<u32> { return select(x, weft_neg_64(x), weft_negative(x)); }

// A product of words, whole.
fn weft_mul_32(a: u32, b: u32) -> vec2<u32> {
  let a0 = a & 0xffffu;
  let a1 = a >> 16u;
  let b0 = b & 0xffffu;
  let b1 = b >> 16u;
  let middle = a1 * b0 + ((a0 * b0) >> 16u);
  let other = a0 * b1 + (middle & 0xffffu);
  return vec2<u32>(a * b, a1 * b1 + (middle >> 16u) + (other >> 16u));
}

fn weft_mul_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = weft_mul_32(a.x, b.x);
  return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}

// Shifts by less than 64.
fn weft_left_64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

fn weft_right_u64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}

fn weft_right_i64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(u32(i32(a.y) >> (n - 32u)), u32(i32(a.y) >> 31u)); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), u32(i32(a.y) >> n));
}

// Shifts by any number: by 64 or more all bits are gone.
fn weft_shl_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(vec2<u32>(0u, 0u), weft_left_64(a, b.x & 63u), (b.y == 0u) & (b.x < 64u));
}

fn weft_shl_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return weft_shl_u64(a, b); }

fn weft_shr_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(vec2<u32>(0u, 0u), weft_right_u64(a, b.x & 63u), (b.y == 0u) & (b.x < 64u));
}

fn weft_shr_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return weft_right_i64(a, select(63u, b.x & 63u, (b.y == 0u) & (b.x < 64u)));
}

// Quotient and rest without sign; b is not 0. Bit by bit where words do not suffice.
fn weft_divide_64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if ((a.y | b.y) == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  for (var k = 0u; k < 64u; k++) {
    let bit = (select(a.x, a.y, k < 32u) >> (31u - (k & 31u))) & 1u;
    let over = (rest.y >> 31u) != 0u;
    rest = vec2<u32>((rest.x << 1u) | bit, (rest.y << 1u) | (rest.x >> 31u));
    quotient = vec2<u32>(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
    if (over | !weft_lt_u64(rest, b)) {
      rest = weft_sub_64(rest, b);
      quotient.x |= 1u;
    }
  }
  return vec4<u32>(quotient, rest);
}

// By zero it is by one: the value is not wanted there.
fn weft_truncdiv_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if ((b.x | b.y) == 0u) { return a; }
  return weft_divide_64(a, b).xy;
}

fn weft_truncmod_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if ((b.x | b.y) == 0u) { return vec2<u32>(0u, 0u); }
  return weft_divide_64(a, b).zw;
}

fn weft_floordiv_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return weft_truncdiv_u64(a, b); }

fn weft_floormod_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return weft_truncmod_u64(a, b); }

fn weft_truncdiv_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let size = weft_truncdiv_u64(weft_abs_i64(a), weft_abs_i64(b));
  return select(size, weft_neg_64(size), weft_negative(a) != weft_negative(b));
}

fn weft_truncmod_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let size = weft_truncmod_u64(weft_abs_i64(a), weft_abs_i64(b));
  return select(size, weft_neg_64(size), weft_negative(a));
}

fn weft_crosses(rest: vec2<u32>, b: vec2<u32>) -> bool {
  return ((rest.x | rest.y) != 0u) & (weft_negative(rest) != weft_negative(b));
}

fn weft_floordiv_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let whole = weft_truncdiv_i64(a, b);
  return select(whole, weft_sub_64(whole, vec2<u32>(1u, 0u)), weft_crosses(weft_truncmod_i64(a, b), b));
}

fn weft_floormod_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let rest = weft_truncmod_i64(a, b);
  return select(rest, weft_add_64(rest, b), weft_crosses(rest, b));
}

fn weft_popcount_i64(x: vec2<u32>) -> vec2<u32> { return vec2<u32>(countOneBits(x.x) + countOneBits(x.y), 0u); }

fn weft_popcount_u64(x: vec2<u32>) -> vec2<u32> { return weft_popcount_i64(x); }

fn weft_zeros_64(x: vec2<u32>) -> u32 {
  return select(32u + countLeadingZeros(x.x), countLeadingZeros(x.y), x.y != 0u);
}

// Rounded once, to even.
fn weft_f32_of_u64(x: vec2<u32>) -> f32 {
  if ((x.x | x.y) == 0u) { return 0.0f; }
  let zeros = weft_zeros_64(x);
  let high = weft_left_64(x, zeros);
  let lost = (high.y & 0xffu) | select(0u, 1u, high.x != 0u);
  let kept = high.y >> 8u;
  let up = select(0u, 1u, (lost > 128u) | ((lost == 128u) & ((kept & 1u) != 0u)));
  return bitcast<f32>(((190u - zeros) << 23u) + (kept & 0x7fffffu) + up);
}

fn weft_f32_of_i64(x: vec2<u32>) -> f32 {
  let size = weft_f32_of_u64(weft_abs_i64(x));
  return select(size, -size, weft_negative(x));
}

// Truncated; what is out of range as the nearest number in it, NaN as 0.
fn weft_u64_of_f32(x: f32) -> vec2<u32> {
  if (weft_isnan(x) | (x < 1.0f)) { return vec2<u32>(0u, 0u); }
  if (x >= 18446744073709551616.0f) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  let bits = bitcast<u32>(x);
  let exponent = i32(bits >> 23u) - 150;
  let whole = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  if (exponent < 0) { return weft_right_u64(whole, u32(-exponent)); }
  return weft_left_64(whole, u32(exponent));
}

fn weft_i64_of_f32(x: f32) -> vec2<u32> {
  if (x >= 9223372036854775808.0f) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x <= -9223372036854775808.0f) { return vec2<u32>(0u, 0x80000000u); }
  let size = weft_u64_of_f32(abs(x));
  return select(size, weft_neg_64(size), x < 0.0f);
}

// -- functions of floats
//
// Sums and products may be reassociated: x + big - big may be x (WGSL, "Reassociation and Fusion"). So nothing here is
// found by what a rounding has lost, nor rounded by the addition of a large number.

fn weft_power_of_two(n: i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }

// value 2^n, in two steps: 2^n alone may be too small or too large.
fn weft_scaled(value: f32, n: i32) -> f32 {
  let half = n >> 1u;
  return value * weft_power_of_two(half) * weft_power_of_two(n - half);
}

// exp(r) - 1 of at most half of ln 2.
fn weft_expm1_near(r: f32) -> f32 {
  return r + r * r * (0.5f + r * (0.16666667f + r * (0.041666668f + r * (0.008333334f + r * (0.0013888889f
    + r * 0.0001984127f)))));
}

// x - n ln 2.
fn weft_without_ln2(x: f32, n: f32) -> f32 { return (x - n * 0.693359375f) + n * 0.00021219444f; }

fn weft_exp(x: f32) -> f32 {
  let y = clamp(x, -104.0f, 89.0f);
  let n = round(y * 1.442695f);
  let value = weft_scaled(1.0f + weft_expm1_near(weft_without_ln2(y, n)), i32(n));
  return select(select(value, weft_float(0x7f800000u), x > 88.8f), x, weft_isnan(x));
}

fn weft_exp2(x: f32) -> f32 {
  let y = clamp(x, -151.0f, 128.0f);
  let n = round(y);
  let r = y - n;
  let value = weft_scaled(1.0f + (weft_expm1_near(r * 0.69314718f) + r * 1.9046543e-09f), i32(n));
  return select(select(value, weft_float(0x7f800000u), x >= 128.0f), x, weft_isnan(x));
}

fn weft_expm1(x: f32) -> f32 {
  let y = clamp(x, -18.0f, 89.0f);
  let n = round(y * 1.442695f);
  let half = weft_power_of_two(i32(n) - 1);
  let result = half * weft_expm1_near(weft_without_ln2(y, n)) + (half - 0.5f);
  let value = select(result + result, weft_float(0x7f800000u), x > 88.8f);
  return select(value, x, weft_isnan(x) | (abs(x) < 2.9802322e-08f));
}

fn weft_sinh(x: f32) -> f32 {
  let a = abs(x);
  let z = x * x;
  let near = x + x * z * (0.16666667f + z * (0.008333334f + z * (0.0001984127f + z * (2.7557319e-06f + z * 2.5052108e-08f))));
  let u = weft_expm1(min(a, 20.0f));
  let h = weft_exp(0.5f * a);
  let far = select((0.5f * h) * h, 0.5f * u + 0.5f * (u / (u + 1.0f)), a < 20.0f);
  return select(weft_copysign(far, x), near, a < 1.0f);
}

fn weft_cosh(x: f32) -> f32 {
  let h = weft_exp(0.5f * abs(x));
  return (0.5f * h) * h + (0.5f / h) / h;
}

fn weft_tanh(x: f32) -> f32 {
  let u = weft_expm1(2.0f * min(abs(x), 10.0f));
  return select(weft_copysign(u / (u + 2.0f), x), x, weft_isnan(x));
}

// log(1 + v) of 1 + v between the square roots of 1/2 and 2, and a number that is to be added at the end.
fn weft_log_near(v: f32, more: f32) -> f32 {
  let s = v / (v + 2.0f);
  let z = s * s;
  let half = 0.5f * v * v;
  let tail = z * (0.6666667f + z * (0.4f + z * (0.2857143f + z * (0.22222222f + z * 0.18181819f))));
  return v - (half - (s * (half + tail) + more));
}

fn weft_log(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let tiny = bits < 0x00800000u;
  // A subnormal is shifted as an integer: a product with a power of two may be 0.
  let zeros = countLeadingZeros(bits) - 8u;
  let normal = select(bits, (bits << (zeros & 31u)) & 0x7fffffu, tiny);
  let shift = (normal + 0x004afb0du) >> 23u;
  let e = f32(i32(shift) - select(127, 126 + i32(zeros), tiny));
  let m = bitcast<f32>(normal - (shift << 23u) + 0x3f800000u);
  let value = e * 0.693359375f + weft_log_near(m - 1.0f, e * -0.00021219444f);
  let ends = select(weft_float(0x7fc00000u), weft_float(0xff800000u), (bits & 0x7fffffffu) == 0u);
  let finite = select(value, ends, ((bits >> 31u) != 0u) | (bits == 0u));
  return select(finite, x, weft_isnan(x) | (bits == 0x7f800000u));
}

fn weft_log1p(x: f32) -> f32 {
  let near = (x > -0.29f) & (x < 0.41f);
  let value = weft_log_near(select(0.0f, x, near), 0.0f);
  return select(select(weft_log(1.0f + x), value, near), x, abs(x) < 5.9604645e-08f);
}

// The rest of a division that rounds to zero, exact: mantissas are subtracted bit by bit.
fn weft_fmod(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a) & 0x7fffffffu;
  let y = bitcast<u32>(b) & 0x7fffffffu;
  let sign = bitcast<u32>(a) & 0x80000000u;
  if ((x >= 0x7f800000u) | (y > 0x7f800000u) | (y == 0u)) { return weft_float(0x7fc00000u); }
  if (x < y) { return a; }
  var e = i32(x >> 23u);
  let f = max(i32(y >> 23u), 1);
  let n = (y & 0x7fffffu) | select(0u, 0x800000u, y >= 0x800000u);
  var m = ((x & 0x7fffffu) | select(0u, 0x800000u, e > 0)) % n;
  e = max(e, 1);
  for (; e > f; e--) {
    m <<= 1u;
    if (m >= n) { m -= n; }
  }
  if (m == 0u) { return bitcast<f32>(sign); }
  let down = min(i32(countLeadingZeros(m)) - 8, e - 1);
  m <<= u32(down);
  e -= down;
  return bitcast<f32>(sign | select(m, (m & 0x7fffffu) | (u32(e) << 23u), m >= 0x800000u));
}

fn weft_floormod_f32(a: f32, b: f32) -> f32 {
  let rest = weft_fmod(a, b);
  if (rest == 0.0f) { return weft_copysign(0.0f, b); }
  return select(rest, rest + b, (rest < 0.0f) != (b < 0.0f));
}

// An angle as quarter turns, modulo 4, and the rest in radians, at most an eighth of a turn.
struct weft_angle { quarters: u32, rest: f32 }

// Of a finite number: the mantissa times 96 bits of 1 / (2 pi), of which whole turns are dropped (Payne and Hanek,
// "Radian Reduction for Trigonometric Functions", 1983).
fn weft_turned(x: f32) -> weft_angle {
  let bits = bitcast<u32>(x) & 0x7fffffffu;
  if (bits < 0x3f490fdbu) { return weft_angle(0u, x); }
  var words = array<u32, 8>(
    0u, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau);
  let mantissa = (bits & 0x7fffffu) | 0x800000u;
  let skipped = (bits >> 23u) - 118u;
  let word = skipped >> 5u;
  let bit = skipped & 31u;
  let w0 = words[word];
  let w1 = words[word + 1u];
  let w2 = words[word + 2u];
  let w3 = words[min(word + 3u, 7u)];
  let back = (32u - bit) & 31u;
  let p0 = select((w0 << bit) | (w1 >> back), w0, bit == 0u);
  let p1 = select((w1 << bit) | (w2 >> back), w1, bit == 0u);
  let p2 = select((w2 << bit) | (w3 >> back), w2, bit == 0u);
  let low = weft_mul_32(mantissa, p2);
  let high = weft_mul_32(mantissa, p1);
  let turns = weft_add_64(vec2<u32>(high.x, high.y + mantissa * p0), vec2<u32>(low.y, 0u));
  let quarters = (turns.y + 0x20000000u) >> 30u;
  var rest = weft_left_64(turns, 2u);
  let below = weft_negative(rest);
  rest = weft_abs_i64(rest);
  if ((rest.x | rest.y) == 0u) { return weft_angle(quarters, 0.0f); }
  let zeros = weft_zeros_64(rest);
  let kept = weft_left_64(rest, zeros);
  // At least one half, and what follows; a quarter turn is pi/2 in two numbers.
  let size = f32(kept.y >> 8u) * 5.9604645e-08f;
  let after = f32(((kept.y & 0xffu) << 16u) | (kept.x >> 16u)) * 3.5527137e-15f;
  let radians = (size * 1.5707964f + (after * 1.5707964f - size * 4.371139e-08f)) * bitcast<f32>((127u - zeros) << 23u);
  let negative = (bitcast<u32>(x) >> 31u) != 0u;
  return weft_angle(select(quarters, 4u - quarters, negative) & 3u, select(radians, -radians, below != negative));
}

fn weft_sine(r: f32) -> f32 {
  let s = r * r;
  return r + r * s * (-0.16666667f + s * (0.008333332f + s * (-0.00019841270f + s * 2.7557319e-06f)));
}

fn weft_cosine(r: f32) -> f32 {
  let s = r * r;
  return 1.0f - (0.5f * s - s * s * (0.041666668f + s * (-0.0013888889f + s * (2.4801587e-05f - s * 2.7557319e-07f))));
}

fn weft_sin(x: f32) -> f32 {
  if ((bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u) { return weft_float(0x7fc00000u); }
  let angle = weft_turned(x);
  let size = select(weft_sine(angle.rest), weft_cosine(angle.rest), (angle.quarters & 1u) != 0u);
  return select(size, -size, angle.quarters >= 2u);
}

fn weft_cos(x: f32) -> f32 {
  if ((bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u) { return weft_float(0x7fc00000u); }
  let angle = weft_turned(x);
  let size = select(weft_cosine(angle.rest), weft_sine(angle.rest), (angle.quarters & 1u) != 0u);
  return select(size, -size, (angle.quarters == 1u) | (angle.quarters == 2u));
}

fn weft_tan(x: f32) -> f32 {
  if ((bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u) { return weft_float(0x7fc00000u); }
  let angle = weft_turned(x);
  let s = weft_sine(angle.rest);
  let c = weft_cosine(angle.rest);
  let odd = (angle.quarters & 1u) != 0u;
  return select(s, -c, odd) / select(c, s, odd);
}

fn weft_half(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }

// A product as two numbers (Dekker, "A Floating-Point Technique for Extending the Available Precision", 1971).
fn weft_product(a: f32, b: f32) -> vec2<f32> {
  let p = a * b;
  let a1 = weft_half(a);
  let a2 = a - a1;
  let b1 = weft_half(b);
  let b2 = b - b1;
  return vec2<f32>(p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2);
}

// The logarithm to base 2 of a positive finite number as three numbers: of 2^e m e, and 2 atanh((m - 1) / (m + 1)) / ln 2
// in two.
fn weft_log2_parts(a: f32) -> vec3<f32> {
  let tiny = bitcast<u32>(a) < 0x00800000u;
  let zeros = countLeadingZeros(bitcast<u32>(a)) - 8u;
  let bits = select(bitcast<u32>(a), (bitcast<u32>(a) << zeros) & 0x7fffffu, tiny);
  let shift = (bits + 0x004afb0du) >> 23u;
  let e = f32(i32(shift) - select(127, 126 + i32(zeros), tiny));
  let m = bitcast<f32>(bits - (shift << 23u) + 0x3f800000u);
  let n = m - 1.0f;
  // m + 1 in two numbers.
  let high = weft_half(m) + 1.0f;
  let low = m - weft_half(m);
  let s = n / (high + low);
  let back = weft_product(s, high);
  let s_low = (((n - back.x) - back.y) - s * low) / high;
  let z = s * s;
  let tail = s * z * (0.9617967f + z * (0.5770780f + z * (0.4121986f + z * (0.3205989f + z * 0.2623082f))));
  let head = weft_product(s, 2.885390f);
  return vec3<f32>(e, head.x, (head.y + (s_low * 2.885390f + s * 3.8519e-08f)) + tail);
}

fn weft_pow(a: f32, b: f32) -> f32 {
  let size = bitcast<u32>(a) & 0x7fffffffu;
  let power = bitcast<u32>(b) & 0x7fffffffu;
  if ((power == 0u) | (bitcast<u32>(a) == 0x3f800000u)) { return 1.0f; }
  if ((size > 0x7f800000u) | (power > 0x7f800000u)) { return weft_float(0x7fc00000u); }
  let negative = (bitcast<u32>(a) >> 31u) != 0u;
  let whole = (power >= 0x4b800000u) | (trunc(b) == b);
  let odd = (power < 0x4b800000u) & whole & ((i32(b) & 1) != 0);
  let sign = select(0u, 0x80000000u, negative & odd);
  let down = (bitcast<u32>(b) >> 31u) != 0u;
  if ((size == 0u) | (size == 0x7f800000u)) {
    return weft_float(sign | select(0u, 0x7f800000u, (size == 0u) == down));
  }
  if (negative & !whole) { return weft_float(0x7fc00000u); }
  if (size == 0x3f800000u) { return bitcast<f32>(sign | 0x3f800000u); }
  let log2 = weft_log2_parts(bitcast<f32>(size));
  let rough = b * (log2.x + log2.y);
  if (rough >= 128.5f) { return weft_float(sign | 0x7f800000u); }
  if (rough <= -151.0f) { return bitcast<f32>(sign); }
  // What is whole of b e and of b times the rest is the exponent.
  let first = weft_product(b, log2.x);
  let second = weft_product(b, log2.y);
  let k = round(first.x);
  let l = round(second.x);
  let rest = ((first.x - k) + (second.x - l)) + ((first.y + second.y) + b * log2.z);
  let n = round(rest);
  let f = rest - n;
  let value = 1.0f + f * (0.6931472f + f * (0.24022651f + f * (0.055504109f + f * (0.0096181291f
    + f * (0.0013333558f + f * (0.00015403530f + f * 1.5252734e-05f))))));
  let result = weft_scaled(value, i32(k) + i32(l) + i32(n));
  return bitcast<f32>(bitcast<u32>(result) | sign);
}
