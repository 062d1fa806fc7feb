"""Formulas for the functions of `weft.expr.functions` over +, *, fma, select, casts and bits: no branches, no tables of
loads.

A formula takes `Lets` (which gives names to shared parts) and arguments of dtype float32 or float64, scalar or vector.
Largest error found, in units in the last place (float32 over dense samples of all values, float64 over random ones):

    float32        4 (of tan; docs/math.md has the numbers)
    float64        4

Denormal arguments and results, infinities, NaN and signed zeros are as IEEE 754 and C have them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr.functions import call
from weft.expr.nodes import (
    Bitcast,
    Broadcast,
    Const,
    Expr,
    ExprLike,
    Var,
    cast_to,
    eq,
    maximum,
    minimum,
    ne,
    not_,
    select,
    wrap,
)

# Coefficients, lowest degree first: Chebyshev interpolation of the function named, computed with 60 digits.
EXP_32 = (
    0.5, 0.1666657702559799, 0.041666554662050534, 0.008363173074513711, 0.001392617611993558,
)  # fmt: skip
EXP_64 = (
    0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326141, 0.0013888888888883752, 0.00019841269874800493,
    2.4801587325533363e-05, 2.7557255425746435e-06, 2.7557273661348637e-07, 2.510520637395701e-08,
    2.0914679376583935e-09,
)  # fmt: skip
LOG_32 = (
    0.33333331180030046, -0.24999996957950882, 0.200007157488921, -0.16667802319501254, 0.1424905764569748,
    -0.12425687331451106, 0.1168541992348674, -0.11479733846637635, 0.06971611471451178,
)  # fmt: skip
LOG_64 = (
    0.6666666666666666, 0.4000000000000088, 0.28571428570803614, 0.22222222391713917, 0.18181795640132906,
    0.15386239702814658, 0.13268773138656886, 0.13086626147840102,
)  # fmt: skip
SIN_32 = (
    -0.16666666663741367, 0.00833333183062943, -0.00019840063040804117, 2.7246868722877944e-06,
)  # fmt: skip
SIN_64 = (
    -0.16666666666666666, 0.008333333333333331, -0.00019841269841264821, 2.7557319219150783e-06,
    -2.5052106167335705e-08, 1.6058521349954986e-10, -7.586094789672621e-13,
)  # fmt: skip
COS_32 = (
    0.04166666459882798, -0.0013888291300556933, 2.4545419078353295e-05,
)  # fmt: skip
COS_64 = (
    0.041666666666666664, -0.0013888888888887322, 2.4801587298651292e-05, -2.755731721268659e-07,
    2.0876134024090145e-09, -1.1381754653662937e-11,
)  # fmt: skip
ASIN_32 = (
    0.16666666337430908, 0.07500094543497424, 0.04459940152851218, 0.03110066273549457, 0.017149238357677253,
    0.03369084720283012,
)  # fmt: skip
ASIN_64 = (
    0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247, 0.02237217294214989,
    0.017352392720869973, 0.013971212973552933, 0.011479177415184906, 0.01032281435018578, 0.005457506718640358,
    0.01740087944269402, -0.014851887071247204, 0.028757851367421566,
)  # fmt: skip
ATAN_32 = (
    -0.3333333308107325, 0.19999949321141888, -0.1428400379473353, 0.11088261628735159, -0.08931826777381315,
    0.07031914250029966, -0.04896051402709067, 0.026305001110062377, -0.009144629760592396, 0.0014886919393047597,
)  # fmt: skip
ATAN_64 = (
    -0.3333333333333333, 0.1999999999999992, -0.14285714285701234, 0.11111111110268297, -0.0909090906193528,
    0.07692307078827029, -0.06666657934573768, 0.05882264416776449, -0.052624922290256754, 0.04758080083637821,
    -0.043306538430670664, 0.03938687540798632, -0.035271331066871296, 0.030330719265790507, -0.024191345810140718,
    0.01718398172211335, -0.010412153260359241, 0.005140912856746939, -0.0019612554271685326, 0.0005376839297396244,
    -9.371186345052626e-05, 7.767624330289919e-06,
)  # fmt: skip
SINH_32 = (
    0.16666666646842135, 0.00833333967591706, 0.00019838101968683888, 2.8062802582276946e-06,
)  # fmt: skip
SINH_64 = (
    0.16666666666666666, 0.008333333333333333, 0.00019841269841269773, 2.755731922404034e-06, 2.505210836405804e-08,
    1.6059048396350562e-10, 7.646625361656657e-13, 2.8445264169895285e-15,
)  # fmt: skip
EXP2_32 = (
    0.6931471880262288, 0.24022650760568126, 0.05550357114219078, 0.009618082557277852, 0.0013390863364671234,
    0.0001545316294512069,
)  # fmt: skip
EXP2_64 = (
    0.6931471805599453, 0.24022650695910072, 0.055504108664821625, 0.00961812910762848, 0.001333355814640647,
    0.00015403530393370734, 1.5252733841556773e-05, 1.3215486808705563e-06, 1.0178057087733941e-07,
    7.0548973041554995e-09, 4.4558179083360645e-10, 2.5729324177362305e-11,
)  # fmt: skip
POW_LOG2 = (
    2.885390081777851, 0.9617966941122649, 0.5770779426603044, 0.41220922406110433, 0.31990680380701336,
    0.28288502340748234,
)  # fmt: skip
POW_EXP2 = (
    0.6931471805568324, 0.24022650695888503, 0.055504109063258665, 0.00961812913523614, 0.0013333478473685416,
    0.00015403475186530786, 1.5303700711365693e-05, 1.325080551750225e-06,
)  # fmt: skip
POW_TAIL = (
    0.4, 0.28571428571429364, 0.22222222221656232, 0.18181818335314404, 0.15384594970895457, 0.13334804238225345,
    0.11706248540922386, 0.11723051028097753,
)  # fmt: skip
ERF_64 = (
    1.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
    -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
    -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11,
)  # fmt: skip
ERFC_64 = (
    1.273194538411999e-08, 0.28209433744603646, 0.28210194185256204, 0.24676994208173553, 0.17661452876291867,
    0.08342915067749279, -0.011294696331083888, 0.0031605924750990814, -0.3377317752090611, 0.9210072415249974,
    -2.1298439188930316, 3.799359906028882, -4.583844406614994, 3.6426059404027527, -1.8535316382081848,
    0.5535022023245029, -0.07440021243346044,
)  # fmt: skip

# erf(x) is x + x P(x*x) below the first number and Q(x - middle) from there to the last, where Q is 1. Weighted minimax
# by Lawson's iteration.
ERF_PIECES = (1.375, 2.625, 3.84375)
ERF_P = (
    0.12837907671928406, -0.3761219084262848, 0.112800732254982, -0.026748208329081535, 0.005041607189923525,
    -0.0007046743994578719, 5.414647239376791e-05,
)  # fmt: skip
ERF_Q = (
    0.9997947216033936, 0.0011483170092105865, -0.00301692308858037, 0.004885188303887844, -0.005389303434640169,
    0.004233714658766985, -0.002309034811332822, 0.0006664805114269257, 0.00010589177691144869,
    -0.00015572160191368312, 3.638321868493222e-05,
)  # fmt: skip

# The bits of 2 / pi in words of 64, behind 32 zeros.
TWO_OVER_PI = (
    0x00000000A2F9836E, 0x4E441529FC2757D1, 0xF534DDC0DB629599, 0x3C439041FE5163AB, 0xDEBBC561B7246E3A,
    0x424DD2E006492EEA,
    0x09D1921CFE1DEB1C, 0xB129A73EE88235F5, 0x2EBB4484E99C7026, 0xB45F7E413991D639, 0x835339F49C845F8B,
    0xBDF9283B1FF897FF,
    0xDE05980FEF2F118B, 0x5A0A6D1F6D367ECF, 0x27CB09B74F463F66, 0x9E5FEA2D7527BAC7, 0xEBE5F17B3D0739F7,
    0x8A5292EA6BFB5FB1,
    0x1F8D5D0856033046,
)  # fmt: skip
# 1 / (2 pi) in pieces of 29 bits (the last of 53), so that a float32 times a piece is exact in float64.
TURNS = (
    0.15915494225919247,
    8.327028684640414e-10,
    5.69002511952534e-19,
    6.317065083361892e-27,
    5.595982707708916e-36,
    6.551007954373285e-45,
)
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
LN2 = (0.6931471805599453, 2.3190468138462996e-17)
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Format:
    """Properties of a float type that formulas use."""

    dtype: DType
    bits: DType
    mantissa: int
    bias: int
    # ln 2 in two parts; the first times any exponent is exact.
    ln2: tuple[float, float]
    # exp is 0 below and infinite above; so is exp2.
    exp_range: tuple[float, float]
    exp2_range: tuple[float, float]
    exp: tuple[float, ...]
    exp2: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    asin: tuple[float, ...]
    atan: tuple[float, ...]
    sinh: tuple[float, ...]

    @property
    def magic(self) -> float:
        """Added to a small number it leaves the nearest integer in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def sign(self) -> int:
        return -(1 << (self.dtype.bits - 1))


F32 = Format(
    dt.float32, dt.int32, 23, 127, (0.693359375, -2.1219444005469057e-4), (-105.0, 90.0), (-151.0, 129.0),
    EXP_32, EXP2_32, SIN_32, COS_32, ASIN_32, ATAN_32, SINH_32,
)  # fmt: skip
F64 = Format(
    dt.float64, dt.int64, 52, 1023, (0.6931471803691238, 1.9082149292705877e-10), (-746.0, 712.0), (-1076.0, 1025.0),
    EXP_64, EXP2_64, SIN_64, COS_64, ASIN_64, ATAN_64, SINH_64,
)  # fmt: skip


ROUNDED_TWICE = "a product and a sum"
"""Beside the names of functions: the target has no instruction for fma, which takes many, and fuses products and sums
where it may."""


class Lets:
    """Names for parts of formulas that are used more than once. `bound` is what to bind, in order."""

    def __init__(self, functions: frozenset[str], fresh: Callable[[str], str]) -> None:
        self.functions, self.fresh = functions, fresh
        self.bound: list[tuple[Var, Expr]] = []
        self._known: dict[Expr, Var] = {}

    def let(self, e: Expr) -> Expr:
        if isinstance(e, (Var, Const)) or (isinstance(e, Broadcast) and isinstance(e.value, (Var, Const))):
            return e
        var = self._known.get(e)
        if var is None:
            var = self._known[e] = Var(self.fresh("t"), e.dtype)
            self.bound.append((var, e))
        return var

    def fma(self, a: ExprLike, b: ExprLike, c: ExprLike) -> Expr:
        return call("fma", a, b, c) if "fma" in self.functions else _fma(self, a, b, c)

    def sum(self, a: ExprLike, b: ExprLike, c: ExprLike) -> Expr:
        """a·b + c where a second rounding does no harm."""
        return wrap(a * b + c) if ROUNDED_TWICE in self.functions else self.fma(a, b, c)

    def call(self, name: str, *args: ExprLike) -> Expr:
        """name(args), expanded if the target lacks it."""
        e = call(name, *args)
        return e if name in self.functions else self.let(FORMULAS[name](self, *e.children()))

    def poly(self, coefficients: tuple[float, ...], x: Expr) -> Expr:
        result: ExprLike = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            result = self.sum(result, x, c)
        assert isinstance(result, Expr)
        return result


def _format(x: Expr) -> Format:
    return F32 if x.dtype.bits == 32 else F64


def _bits(x: Expr) -> Expr:
    return Bitcast(x, _format(x).bits.with_lanes(x.dtype.lanes))


def _float(bits: Expr) -> Expr:
    return Bitcast(bits, (dt.float32 if bits.dtype.bits == 32 else dt.float64).with_lanes(bits.dtype.lanes))


def _is_nan(x: Expr) -> Expr:
    return ne(x, x)


def _fma(m: Lets, a: ExprLike, b: ExprLike, c: ExprLike) -> Expr:
    """float32 by way of float64; float64 with two roundings."""
    if any(isinstance(e, Expr) and e.dtype.bits == 64 for e in (a, b, c)):
        return wrap(a * b + c)
    wide = [cast_to(e, dt.float64) if isinstance(e, Expr) else float(Const(e, dt.float32).value) for e in (a, b, c)]
    return cast_to(wide[0] * wide[1] + wide[2], dt.float32)


# -- bits and rounding ------------------------------------------------------------------------------------------------


def _abs(m: Lets, x: Expr) -> Expr:
    if x.dtype.is_integer:
        x = m.let(x)
        return select(x < 0, 0 - x, x) if x.dtype.kind == "int" else x
    return _float(_bits(x) & ~_format(x).sign)


def _copysign(m: Lets, x: Expr, y: Expr) -> Expr:
    sign = _format(x).sign
    return _float((_bits(x) & ~sign) | (_bits(y) & sign))


def _signed(size: Expr, x: Expr) -> Expr:
    """copysign(size, x) of a `size` that has no sign yet."""
    return _float(_bits(size) | (_bits(x) & _format(x).sign))


def _round(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    a = m.let(m.call("abs", x))
    limit = 2.0 ** _format(x).mantissa
    # From `limit` on every number is an integer; NaN stays.
    return select(a < limit, m.call("copysign", (a + limit) - limit, x), x)


def _floor(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    r = m.let(m.call("round", x))
    return select(x < r, r - 1.0, r)


def _ceil(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    r = m.let(m.call("round", x))
    return m.call("copysign", select(r < x, r + 1.0, r), x)


def _trunc(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    return m.call("copysign", m.call("floor", m.call("abs", x)), x)


def _isnan(m: Lets, x: Expr) -> Expr:
    return _is_nan(m.let(x))


def _isinf(m: Lets, x: Expr) -> Expr:
    return eq(m.call("abs", x), math.inf)


def _popcount(m: Lets, x: Expr) -> Expr:
    bits = x.dtype.bits
    unsigned = {8: dt.uint8, 16: dt.uint16, 32: dt.uint32, 64: dt.uint64}[bits]

    def pattern(byte: int) -> int:
        return int.from_bytes(bytes([byte]) * (bits // 8), "little")

    v = m.let(Bitcast(x, unsigned.with_lanes(x.dtype.lanes)) if x.dtype.kind == "int" else x)
    v = m.let(v - ((v >> 1) & pattern(0x55)))
    v = m.let((v & pattern(0x33)) + ((v >> 2) & pattern(0x33)))
    v = m.let((v + (v >> 4)) & pattern(0x0F))
    v = (v * pattern(0x01)) >> (bits - 8)
    return Bitcast(v, x.dtype) if x.dtype.kind == "int" else v


# -- exponentials -----------------------------------------------------------------------------------------------------


def _clamp(x: Expr, bounds: tuple[float, float]) -> Expr:
    return minimum(maximum(x, bounds[0]), bounds[1])


def _power_of_two(m: Lets, shifted: Expr, f: Format, plus: int = 0) -> Expr:
    """2**(n + plus), where `shifted` is n + magic. The shift drops all but the low bits."""
    return _float((_bits(shifted) << f.mantissa) + ((f.bias + plus) << f.mantissa))


def _exp_half(m: Lets, x: Expr) -> Expr:
    """The square root of exp(x): its square reaches denormals and infinity though its own exponent stays small.

    At the lower bound it is 0: processors take a hundred cycles for a product that is smaller than every normal number,
    and masked scores are far below."""
    f = _format(x)
    x = m.let(_clamp(x, (-2 * f.bias * math.log(2), f.exp_range[1])))
    t = m.let(m.sum(x, LOG2_E / 2, f.magic))
    n = m.let(t - f.magic)
    r = m.let(m.sum(n, -2 * f.ln2[1], m.sum(n, -2 * f.ln2[0], x)))
    halved = (1.0, 0.5, *(c / 2 ** (k + 2) for k, c in enumerate(f.exp)))
    return m.let(m.poly(halved, r) * _power_of_two(m, t, f))


def _exp(m: Lets, x: Expr) -> Expr:
    e = _exp_half(m, x)
    return e * e


def _exp2(m: Lets, x: Expr) -> Expr:
    f = _format(x)
    x = m.let(_clamp(x, f.exp2_range))
    t = m.let(x + f.magic)
    r = m.let(x - (t - f.magic))
    # In two steps: 2**n alone may be too small or too large.
    magic_bits = Const(f.magic, f.dtype)
    n = m.let(_bits(t) - _bits_of(magic_bits, f))
    half = m.let(n >> 1)
    low = _float((half + f.bias) << f.mantissa)
    high = _float((n - half + f.bias) << f.mantissa)
    return m.sum(r, m.poly(f.exp2, r), 1.0) * low * high


def _bits_of(value: Const, f: Format) -> int:
    import struct

    return int(
        struct.unpack("<i", struct.pack("<f", value.value))[0]
        if f is F32
        else struct.unpack("<q", struct.pack("<d", value.value))[0]
    )


def _expm1(m: Lets, x: Expr) -> Expr:
    f = _format(x)
    x = m.let(x)
    c = m.let(_clamp(x, (-18.0, 89.0) if f is F32 else (-38.0, 709.9)))
    t = m.let(m.sum(c, LOG2_E, f.magic))
    n = m.let(t - f.magic)
    r = m.let(m.sum(n, -f.ln2[1], m.sum(n, -f.ln2[0], c)))
    p = m.sum(m.let(r * r), m.poly(f.exp, r), r)
    half = m.let(_power_of_two(m, t, f, -1))
    h = m.let(m.sum(p, half, half - 0.5))
    # Denormals would lose a bit in halves, and zero its sign.
    return select(m.call("abs", x) < 2.0 ** (-f.mantissa - 2), x, h + h)


def _sinh(m: Lets, x: Expr) -> Expr:
    f = _format(x)
    x = m.let(x)
    a = m.let(m.call("abs", x))
    z = m.let(x * x)
    e = _exp_half(m, a)
    large = m.call("copysign", (e * 0.5) * e - (0.5 / e) / e, x)
    return select(a < 1.0, m.sum(x * z, m.poly(f.sinh, z), x), large)


def _cosh(m: Lets, x: Expr) -> Expr:
    e = _exp_half(m, m.call("abs", x))
    return (e * 0.5) * e + (0.5 / e) / e


def _tanh(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    f = _format(x)
    a = m.let(m.call("abs", x))
    if f is F32:
        # u = (exp(2 a) - 1) / 2, then u / (u + 1); ln 2 in one part, because its error matters less the larger the
        # exponent.
        c = m.let(minimum(a, 9.02))
        t = m.let(m.sum(c, 2 * LOG2_E, f.magic))
        n = m.let(t - f.magic)
        r = m.let(m.sum(n, -0.5 * LN2[0], c))
        p = m.sum(m.let(r * r), m.poly(tuple(e * 2.0 ** (k + 1) for k, e in enumerate(f.exp)), r), r)
        power = m.let(_power_of_two(m, t, f))
        u = m.let(m.sum(p, power, m.sum(power, 0.5, -0.5)))
        return _signed(u / (u + 1.0), x)
    t = m.let(_expm1(m, minimum(a, 20.0) * 2.0))
    return m.call("copysign", t / (t + 2.0), x)


# -- logarithms -------------------------------------------------------------------------------------------------------


def _split(m: Lets, x: Expr) -> tuple[Expr, Expr]:
    """Exponent and mantissa of a positive normal number, the mantissa in sqrt(1/2) … sqrt(2)."""
    f = _format(x)
    low = 0x3F3504F3 if f is F32 else 0x3FE6A09E667F3BCD
    b = m.let(_bits(x) - low)
    return b >> f.mantissa, _float((b & ((1 << f.mantissa) - 1)) + low)


def _log1p_tail(m: Lets, v: Expr) -> Expr:
    """log(1 + v) - v for 1 + v in sqrt(1/2) … sqrt(2)."""
    z = m.let(v * v)
    if _format(v) is F32:
        return z * m.sum(m.poly(LOG_32, v), v, -0.5)
    s = m.let(v / (v + 2.0))
    z2 = m.let(s * s)
    half = m.let(z * 0.5)
    return m.sum(s, m.sum(z2, m.poly(LOG_64, z2), half), 0.0 - half)


def _normal(m: Lets, x: Expr) -> tuple[Expr, Expr]:
    """`x` scaled up if it is denormal, and what that adds to its exponent."""
    f = _format(x)
    tiny = m.let(x < 2.0 ** (1 - f.bias))
    return select(tiny, x * 2.0 ** (f.mantissa + 2), x), select(tiny, Const(-f.mantissa - 2, f.bits), Const(0, f.bits))


def _log_ends(x: Expr, result: Expr, least: float) -> Expr:
    """Infinity at infinity, -infinity at `least`, NaN below and for NaN."""
    below = select(eq(x, least), -math.inf, Const(math.nan, x.dtype.scalar))
    return select(x < math.inf, select(least < x, result, below), select(_is_nan(x), x, math.inf))


def _log_parts(m: Lets, x: Expr) -> tuple[Expr, Expr, Expr]:
    f = _format(x)
    scaled, extra = _normal(m, x)
    e, mantissa = _split(m, m.let(scaled))
    v = m.let(mantissa - 1.0)
    return m.let(cast_to(e + extra, f.dtype)), v, _log1p_tail(m, v)


def _log(m: Lets, x: Expr) -> Expr:
    f = _format(x)
    x = m.let(x)
    e, v, tail = _log_parts(m, x)
    return _log_ends(x, m.sum(e, f.ln2[0], v + m.sum(e, f.ln2[1], tail)), 0.0)


def _log2(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    e, v, tail = _log_parts(m, x)
    f = _format(x)
    # log2(e) in two parts, because one alone loses half a unit.
    high = float(Const(LOG2_E, f.dtype).value)
    low = 2.0355273740931033e-17 if f is F64 else LOG2_E - high
    tail = m.let(tail)
    return _log_ends(x, e + m.fma(v, high, m.fma(tail, high, v * low)), 0.0)


def _log1p(m: Lets, x: Expr) -> Expr:
    f = _format(x)
    x = m.let(x)
    u = m.let(x + 1.0)
    e, mantissa = _split(m, u)
    e = m.let(e)
    # What 1 + x lost, at the scale of the mantissa.
    lost = (x - (u - 1.0)) * _float(maximum(f.bias - e, 0) << f.mantissa)
    v = m.let((mantissa - 1.0) + lost)
    k = m.let(cast_to(e, f.dtype))
    result = m.sum(k, f.ln2[0], v + m.sum(k, f.ln2[1], _log1p_tail(m, v)))
    return select(eq(x, 0.0), x, _log_ends(x, result, -1.0))


def _asinh(m: Lets, x: Expr) -> Expr:
    f = _format(x)
    x = m.let(x)
    a = m.let(m.call("abs", x))
    z = m.let(a * a)
    large = m.let(a > 2.0 ** (f.mantissa + 6))
    inner = select(large, a, a + z / (m.call("sqrt", z + 1.0) + 1.0))
    return m.call("copysign", m.call("log1p", inner) + select(large, Const(LN2[0], f.dtype), Const(0.0, f.dtype)), x)


def _acosh(m: Lets, x: Expr) -> Expr:
    f = _format(x)
    x = m.let(x)
    t = m.let(x - 1.0)
    large = m.let(x > 2.0 ** (f.mantissa + 6))
    inner = select(large, x, t + m.call("sqrt", m.fma(t, t, t * 2.0)))
    result = m.call("log1p", inner) + select(large, Const(LN2[0], f.dtype), Const(0.0, f.dtype))
    return select(x < 1.0, Const(math.nan, f.dtype), result)


def _atanh(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    a = m.let(m.call("abs", x))
    return m.call("copysign", m.call("log1p", (a * 2.0) / (1.0 - a)) * 0.5, x)


# -- circular functions -----------------------------------------------------------------------------------------------


def _quarter_turns(m: Lets, x: Expr) -> tuple[Expr, Expr, Expr | None]:
    """k (its last two bits) and r + rest with x = k pi/2 + r + rest, |r| <= pi/4.

    float32: the turns in float64, from products that are exact. float64: Cody and Waite's subtraction of k pi/2 in
    three parts with what each step loses, and for large numbers `_many_turns`.
    """
    if _format(x) is F32:
        d = m.let(cast_to(x, dt.float64))
        turns: Expr | None = None
        for piece in TURNS[:-1]:
            part = m.let(d * piece)
            part = part - m.call("round", part)
            turns = m.let(part if turns is None else turns + part)
        assert turns is not None
        quarters = m.let(m.fma(d, TURNS[-1], turns) * 4.0)
        t = m.let(quarters + F64.magic)
        r = (quarters - (t - F64.magic)) * HALF_PI[0]
        return cast_to(_bits(t) & 3, dt.int32), m.let(cast_to(r, dt.float32)), None
    t = m.let(m.fma(x, 2 / math.pi, F64.magic))
    n = m.let(t - F64.magic)
    r0 = m.let(m.fma(n, -HALF_PI[0], x))
    w = m.let(n * HALF_PI[1])
    r1 = m.let(r0 - w)
    # What r1 and w lost.
    lost = m.let((r0 - r1) - w) - m.fma(n, HALF_PI[1], 0.0 - w) - n * HALF_PI[2]
    lost = m.let(lost)
    r = m.let(r1 + lost)
    exponent = m.let((_bits(x) >> 52) & 0x7FF)
    # Neither infinity nor NaN, which the other way makes NaN of.
    large = m.let((exponent >= F64.bias + 30) & (exponent < 0x7FF))
    k, high, low = _many_turns(m, x, exponent)
    return (
        m.let(select(large, k, _bits(t) & 3)),
        m.let(select(large, high, r)),
        m.let(select(large, low, (r1 - r) + lost)),
    )


def _many_turns(m: Lets, x: Expr, exponent: Expr) -> tuple[Expr, Expr, Expr]:
    """`_quarter_turns` of a float64 from 2**30 to the largest; `exponent` is its biased one.

    Payne and Hanek (Radian reduction for trigonometric functions, SIGNUM Newsletter 18, 1983): of the product of the
    mantissa and 2/pi only 128 bits matter, from the last two of the integer part on. No float64 is closer than 2**-61
    to a multiple of pi/2, so 60 of them stay at the worst.
    """
    low32 = 0xFFFFFFFF

    def halves(e: Expr) -> tuple[Expr, Expr]:
        return m.let(e >> 32), m.let(e & low32)

    def to_float(e: Expr) -> Expr:
        """An integer below 2**32: its bits are the last of 2**52 + itself."""
        return Bitcast(e | 0x4330000000000000, dt.float64.with_lanes(x.dtype.lanes)) - 2.0**52

    unsigned = dt.uint64.with_lanes(x.dtype.lanes)
    # The first bit of 2/pi (with its zeros) that times the mantissa's last is less than 4.
    first = m.let(Bitcast(exponent - (F64.bias + 22), unsigned))
    words: list[Expr] = [Const(w, dt.uint64) for w in TWO_OVER_PI]
    # The four words from first / 64 on, halving the candidates bit by bit of that index.
    for step in (8, 4, 2, 1):
        skip = m.let(ne(first & (64 * step), 0))
        words = [m.let(select(skip, words[j + step], words[j])) for j in range(step + 3)]
    left = m.let(first & 63)
    right = m.let(63 - left)
    w0, w1, w2 = (m.let((a << left) | ((b >> 1) >> right)) for a, b in itertools.pairwise(words))
    mantissa = m.let((Bitcast(x, unsigned) & ((1 << 52) - 1)) | (1 << 52))
    # mantissa * (w0, w1, w2) without the lowest 64 bits and above 192: in halves of words.
    (mh, ml), (ah, al), (bh, bl) = halves(mantissa), halves(w1), halves(w2)
    lowest = m.let(ml * al)
    cross = m.let(ml * ah + (lowest >> 32))
    other = m.let(mh * al + (cross & low32))
    below = m.let((other << 32) | (lowest & low32))
    mid = m.let(below + (mh * bh + ((mh * bl) >> 32) + ((ml * bh) >> 32)))
    one, none = Const(1, dt.uint64), Const(0, dt.uint64)
    top = m.let(w0 * mantissa + (mh * ah + (cross >> 32) + (other >> 32)) + select(mid < below, one, none))
    # top is in quarter turns, times 2**62; take off the nearest whole number of them.
    k = m.let(Bitcast((top + (1 << 61)) >> 62, F64.bits.with_lanes(x.dtype.lanes)))
    signed = m.let(Bitcast(top, F64.bits.with_lanes(x.dtype.lanes)) - (k << 62))
    a = m.let(cast_to(cast_to(signed >> 32, dt.int32), dt.float64) * 2.0**32)
    b = m.let(to_float(Bitcast(signed, unsigned) & low32))
    high, more = _sum(m, a, b)
    mid_high, mid_low = halves(mid)
    more = m.let(more + (to_float(mid_high) * 2.0**-32 + to_float(mid_low) * 2.0**-64))
    high, more = _sum(m, high, more)
    unit = 2.0**-62
    p, p_low = _product(m, high, Const(HALF_PI[0] * unit, dt.float64))
    p_low = m.let(p_low + m.fma(high, HALF_PI[1] * unit, more * (HALF_PI[0] * unit)))
    r, rest = _sum(m, p, p_low)
    sign = m.let(_bits(x) & F64.sign)
    return select(x < 0.0, 0 - k, k), _float(_bits(r) ^ sign), _float(_bits(rest) ^ sign)


def _sin_cos(m: Lets, x: Expr) -> tuple[Expr, Expr, Expr]:
    """k, and sine and cosine of what is left of x after k quarter turns."""
    f = _format(x)
    k, r, rest = _quarter_turns(m, x)
    z = m.let(r * r)
    s = m.fma(r * z, m.poly(f.sin, z), r)
    if rest is None:
        return m.let(k), m.let(s), m.let(m.fma(z, m.fma(z, m.poly(f.cos, z), -0.5), 1.0))
    s = r + (m.fma(r * z, m.poly(f.sin, z), rest * (1.0 - z * 0.5)))
    # 1 - z/2 with what it loses.
    half = m.let(z * 0.5)
    w = m.let(1.0 - half)
    c = w + (((1.0 - w) - half) + (m.fma(z * z, m.poly(f.cos, z), 0.0 - r * rest)))
    return m.let(k), m.let(s), m.let(c)


def _turned(k: Expr, s: Expr, c: Expr) -> Expr:
    """The sine k quarter turns on."""
    f = _format(s)
    value = select(eq(k & 1, 0), s, c)
    return _float(_bits(value) ^ ((k & 2) << (f.dtype.bits - 2)))


def _sin(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    k, s, c = _sin_cos(m, x)
    return select(eq(x, 0.0), x, _turned(k, s, c))


def _cos(m: Lets, x: Expr) -> Expr:
    k, s, c = _sin_cos(m, m.let(x))
    return _turned(m.let(k + 1), s, c)


def _tan(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    k, s, c = _sin_cos(m, x)
    even = m.let(eq(k & 1, 0))
    return select(eq(x, 0.0), x, select(even, s, 0.0 - c) / select(even, c, s))


def _asin_core(m: Lets, a: Expr) -> tuple[Expr, Expr, Expr]:
    """Whether a > 1/2; then asin(a) is pi/2 minus twice the sum of the others, else their sum."""
    f = _format(a)
    large = m.let(a > 0.5)
    z = m.let(select(large, (1.0 - a) * 0.5, a * a))
    s = m.let(select(large, m.call("sqrt", z), a))
    return large, s, m.let(s * z * m.poly(f.asin, z))


def _asin(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    f = _format(x)
    large, s, more = _asin_core(m, m.let(m.call("abs", x)))
    high = float(Const(HALF_PI[0], f.dtype).value)
    low = HALF_PI[1] if f is F64 else HALF_PI[0] - high
    # s in halves around pi/4 would gain another half unit; two units are good enough.
    return m.call("copysign", select(large, high - (2.0 * (s + more) - low), s + more), x)


def _acos(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    f = _format(x)
    large, s, more = _asin_core(m, m.let(m.call("abs", x)))
    high = float(Const(HALF_PI[0], f.dtype).value)
    low = HALF_PI[1] if f is F64 else HALF_PI[0] - high
    part = m.let(s + more)
    negative = m.let(x < 0.0)
    outer = select(negative, 2.0 * high - (2.0 * part - 2.0 * low), 2.0 * part)
    return select(large, outer, high - (select(negative, 0.0 - part, part) - low))


def _atan(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    f = _format(x)
    a = m.let(m.call("abs", x))
    large = m.let(a > 1.0)
    t = m.let(select(large, 1.0 / a, a))
    z = m.let(t * t)
    p = m.let(m.sum(t * z, m.poly(f.atan, z), t))
    high = float(Const(HALF_PI[0], f.dtype).value)
    low = HALF_PI[1] if f is F64 else HALF_PI[0] - high
    return m.call("copysign", select(large, high - (p - low), p), x)


# -- erf and pow ------------------------------------------------------------------------------------------------------


def _erf(m: Lets, x: Expr) -> Expr:
    x = m.let(x)
    if _format(x) is F32:
        # Two polynomials cost no more than the one division of a rational, whose rounding errors all show close to 1.
        edge, middle, limit = ERF_PIECES
        a = m.let(m.call("abs", x))
        near = m.sum(m.poly(ERF_P, m.let(a * a)), a, a)
        far = m.poly(ERF_Q, m.let(minimum(a, limit) - middle))
        return _signed(select(a < edge, near, far), x)
    a = m.let(minimum(m.call("abs", x), 6.0))
    z = m.let(a * a)
    u = m.let(1.0 / m.sum(a, 0.5, 1.0))
    large = 1.0 - _exp(m, 0.0 - z) * m.poly(ERFC_64, u)
    return m.call("copysign", select(a < 1.0, a * m.poly(ERF_64, z), large), x)


def _pow(m: Lets, x: Expr, y: Expr) -> Expr:
    f = _format(x)
    x, y = m.let(x), m.let(y)
    a = m.let(m.call("abs", x))
    size = m.let(_pow32(m, a, y) if f is F32 else _pow64(m, a, y))
    whole = m.let(eq(m.call("round", y), y))
    half = m.let(y * 0.5)
    odd = whole & ne(m.call("round", half), half)
    zero = Const(0, f.bits)
    signed = _float(_bits(size) ^ select(odd, _bits(x) & f.sign, zero))
    nan = Const(math.nan, f.dtype)
    undefined = ((x < 0.0) & not_(whole) & (-math.inf < x)) | _is_nan(x) | _is_nan(y)
    one = eq(y, 0.0) | eq(x, 1.0) | (eq(x, -1.0) & eq(m.call("abs", y), math.inf))
    return select(one, 1.0, select(undefined, nan, signed))


def _at_ends(a: Expr, logarithm: Expr) -> Expr:
    return select(eq(a, 0.0), -math.inf, select(eq(a, math.inf), math.inf, logarithm))


def _pow32(m: Lets, a: Expr, y: Expr) -> Expr:
    """a ** y of float32 by way of float64: log2 and exp2 good to 2**-40."""
    d = m.let(cast_to(a, dt.float64))
    e, mantissa = _split(m, d)
    mantissa = m.let(mantissa)
    s = m.let((mantissa - 1.0) / (mantissa + 1.0))
    log2 = m.fma(s, m.poly(POW_LOG2, m.let(s * s)), cast_to(e, dt.float64))
    power = m.let(_clamp(cast_to(y, dt.float64) * _at_ends(d, log2), (-200.0, 200.0)))
    t = m.let(power + F64.magic)
    r = m.let(power - (t - F64.magic))
    return cast_to(m.fma(r, m.poly(POW_EXP2, r), 1.0) * _power_of_two(m, t, F64), dt.float32)


def _sum(m: Lets, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a + b as two numbers; |a| >= |b|."""
    s = m.let(a + b)
    return s, m.let(b - (s - a))


def _product(m: Lets, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a * b as two numbers."""
    p = m.let(a * b)
    return p, m.let(m.fma(a, b, 0.0 - p))


def _pow64(m: Lets, a: Expr, y: Expr) -> Expr:
    """a ** y of float64: the logarithm in two numbers, good to 2**-65."""
    f = F64
    scaled, extra = _normal(m, a)
    e, mantissa = _split(m, m.let(scaled))
    k = m.let(cast_to(e + extra, f.dtype))
    mantissa = m.let(mantissa)
    v = m.let(mantissa - 1.0)
    g = m.let(mantissa + 1.0)
    g_low = m.let(mantissa - (g - 1.0))
    s = m.let(v / g)
    s_low = m.let((m.fma(0.0 - s, g, v) - s * g_low) / g)
    # log = 2 s + s**3 (2/3 + tail), s**3 in two numbers.
    z, z_low = _product(m, s, s)
    z_low = m.let(m.fma(2.0 * s, s_low, z_low))
    tail = m.let(z * m.poly(POW_TAIL, z))
    q = m.let(tail + 0.6666666666666666)
    q_low = m.let((0.6666666666666666 - q) + tail + 3.700743415417188e-17)
    c, c_low = _product(m, s, z)
    c_low = m.let(c_low + m.fma(s, z_low, s_low * z))
    w, w_low = _product(m, c, q)
    w_low = m.let(w_low + m.fma(c, q_low, c_low * q))
    h, h_low = _sum(m, m.let(2.0 * s), w)
    h_low = m.let(h_low + m.fma(2.0, s_low, w_low))
    b, b_low = _product(m, k, Const(f.ln2[0], f.dtype))
    high, more = _sum(m, b, h)
    # k = 0: the order of size is the other way round, and b is 0.
    low = m.let(more + b_low + m.fma(k, f.ln2[1], h_low))
    high, low = m.let(_at_ends(a, high + low)), m.let(low - ((high + low) - high))
    low = select(m.call("abs", high) < math.inf, low, 0.0)
    p = m.let(y * high)
    p_low = m.let(m.fma(y, high, 0.0 - p) + y * low)
    clamped = m.let(_clamp(p, f.exp_range))
    p_low = m.let(select(eq(clamped, p), p_low, 0.0))
    t = m.let(m.fma(clamped, LOG2_E, f.magic))
    n = m.let(t - f.magic)
    r = m.let(m.fma(n, -f.ln2[0], clamped))
    r = m.let(r + m.fma(n, -f.ln2[1], p_low))
    value = m.poly((1.0, 1.0, *f.exp), r)
    i = m.let(_bits(t) - _bits_of(Const(f.magic, f.dtype), f))
    half = m.let(i >> 1)
    return value * _float((half + f.bias) << f.mantissa) * _float((i - half + f.bias) << f.mantissa)


FORMULAS: dict[str, Callable[..., Expr]] = {
    "exp": _exp, "exp2": _exp2, "expm1": _expm1, "log": _log, "log2": _log2, "log1p": _log1p,
    "sin": _sin, "cos": _cos, "tan": _tan, "asin": _asin, "acos": _acos, "atan": _atan,
    "sinh": _sinh, "cosh": _cosh, "tanh": _tanh, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh,
    "erf": _erf, "pow": _pow, "floor": _floor, "ceil": _ceil, "trunc": _trunc, "round": _round,
    "abs": _abs, "copysign": _copysign, "isnan": _isnan, "isinf": _isinf, "fma": _fma, "popcount": _popcount,
}  # fmt: skip
