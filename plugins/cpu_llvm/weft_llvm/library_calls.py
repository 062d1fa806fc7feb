"""What LLVM calls where a processor has no instruction for an operation on integers: divisions, and conversions between
integers of 64 bits and floats. As LLVM IR, each in a text of its own, so that an image holds those that it needs.

They are called as the library compiler-rt calls them, and for Arm as its run-time ABI does too. A division by zero
gives 0, and a number that an integer cannot hold gives any integer: compiled code looks for both before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType


def _divided(bits: int) -> str:
    """A function that gives quotient and remainder of two numbers without signs, bit by bit from the highest on that
    the quotient can have."""
    t = f"i{bits}"
    return f"""declare {t} @llvm.ctlz.{t}({t}, i1)
define internal {{ {t}, {t} }} @divided({t} %n, {t} %d) nounwind {{
entry:
  %below = icmp ult {t} %n, %d
  %zero = icmp eq {t} %d, 0
  %none = or i1 %below, %zero
  br i1 %none, label %small, label %long
small:
  %given = insertvalue {{ {t}, {t} }} zeroinitializer, {t} %n, 1
  ret {{ {t}, {t} }} %given
long:
  %empty.d = call {t} @llvm.ctlz.{t}({t} %d, i1 false)
  %empty.n = call {t} @llvm.ctlz.{t}({t} %n, i1 false)
  %first = sub {t} %empty.d, %empty.n
  %top = shl {t} %d, %first
  br label %bit
bit:
  %left = phi {t} [ %first, %long ], [ %left.next, %bit ]
  %rest = phi {t} [ %n, %long ], [ %rest.next, %bit ]
  %part = phi {t} [ %top, %long ], [ %part.next, %bit ]
  %sum = phi {t} [ 0, %long ], [ %sum.next, %bit ]
  %fits = icmp uge {t} %rest, %part
  %less = sub {t} %rest, %part
  %rest.next = select i1 %fits, {t} %less, {t} %rest
  %one = zext i1 %fits to {t}
  %twice = shl {t} %sum, 1
  %sum.next = or {t} %twice, %one
  %part.next = lshr {t} %part, 1
  %left.next = sub {t} %left, 1
  %more = icmp ne {t} %left, 0
  br i1 %more, label %bit, label %done
done:
  %first.result = insertvalue {{ {t}, {t} }} zeroinitializer, {t} %sum.next, 0
  %result = insertvalue {{ {t}, {t} }} %first.result, {t} %rest.next, 1
  ret {{ {t}, {t} }} %result
}}
"""


def _division(bits: int, signed: bool, gives: str, name: str) -> str:
    """Args:
    gives: "quotient", "remainder", or "both" in a structure.
    """
    t = f"i{bits}"
    pair = f"{{ {t}, {t} }}"
    lines = []
    if signed:
        for v in ("n", "d"):
            lines += [
                f"%{v}.sign = ashr {t} %{v}, {bits - 1}",
                f"%{v}.other = xor {t} %{v}, %{v}.sign",
                f"%{v}.size = sub {t} %{v}.other, %{v}.sign",
            ]
    size = ".size" if signed else ""
    lines.append(f"%both = call {pair} @divided({t} %n{size}, {t} %d{size})")
    if signed:
        lines += [
            f"%q = extractvalue {pair} %both, 0",
            f"%r = extractvalue {pair} %both, 1",
            f"%q.sign = xor {t} %n.sign, %d.sign",
            f"%q.other = xor {t} %q, %q.sign",
            f"%quotient = sub {t} %q.other, %q.sign",
            f"%r.other = xor {t} %r, %n.sign",
            f"%remainder = sub {t} %r.other, %n.sign",
            f"%with = insertvalue {pair} zeroinitializer, {t} %quotient, 0",
            f"%pair = insertvalue {pair} %with, {t} %remainder, 1",
        ]
    else:
        lines += [f"%quotient = extractvalue {pair} %both, 0", f"%remainder = extractvalue {pair} %both, 1"]
    result = ("%pair" if signed else "%both") if gives == "both" else f"%{gives}"
    of = pair if gives == "both" else t
    return _divided(bits) + _function(name, of, f"{t} %n, {t} %d", [*lines, f"ret {of} {result}"])


def _function(name: str, result: str, arguments: str, lines: list[str]) -> str:
    body = "\n  ".join(lines)
    # Arm's own functions take floats in registers of integers, also where others do not.
    convention = "arm_aapcscc " if name.startswith("__aeabi_") else ""
    return f"define hidden {convention}{result} @{name}({arguments}) nounwind {{\n  {body}\n}}\n"


def _to_integer(bits: int, signed: bool, name: str) -> str:
    """From a float of so many bits to an integer of 64, towards zero."""
    float_, word = ("float", "i32") if bits == 32 else ("double", "i64")
    mantissa, bias = (23, 127) if bits == 32 else (52, 1023)
    lines = [
        f"%bits = bitcast {float_} %x to {word}",
        f"%up = lshr {word} %bits, {mantissa}",
        f"%exponent.of = and {word} %up, {2 * bias + 1}",
        f"%digits = and {word} %bits, {(1 << mantissa) - 1}",
        f"%whole = or {word} %digits, {1 << mantissa}",
        *(
            [f"%exponent.is = zext {word} %exponent.of to i64", f"%number = zext {word} %whole to i64"]
            if bits == 32
            else ["%exponent.is = add i64 %exponent.of, 0", "%number = add i64 %whole, 0"]
        ),
        f"%exponent = sub i64 %exponent.is, {bias}",
        "%fraction = icmp slt i64 %exponent, 0",
        f"%higher = sub i64 %exponent, {mantissa}",
        f"%lower = sub i64 {mantissa}, %exponent",
        "%left.by = and i64 %higher, 63",
        "%right.by = and i64 %lower, 63",
        "%left = shl i64 %number, %left.by",
        "%right = lshr i64 %number, %right.by",
        "%large = icmp sgt i64 %higher, 0",
        "%shifted = select i1 %large, i64 %left, i64 %right",
        "%size = select i1 %fraction, i64 0, i64 %shifted",
    ]
    if signed:
        lines += [
            f"%negative = icmp slt {word} %bits, 0",
            "%other = sub i64 0, %size",
            "%result = select i1 %negative, i64 %other, i64 %size",
            "ret i64 %result",
        ]
    else:
        lines.append("ret i64 %size")
    return _function(name, "i64", f"{float_} %x", lines)


def _to_double(signed: bool, name: str) -> str:
    """The halves are exact, and so is the higher one's product: only the sum is rounded."""
    lines = [
        f"%up = {'ashr' if signed else 'lshr'} i64 %x, 32",
        "%high = trunc i64 %up to i32",
        "%low = trunc i64 %x to i32",
        f"%h = {'sitofp' if signed else 'uitofp'} i32 %high to double",
        "%l = uitofp i32 %low to double",
        "%scaled = fmul double %h, 0x41F0000000000000",  # 2^32
        "%sum = fadd double %scaled, %l",
        "ret double %sum",
    ]
    return _function(name, "double", "i64 %x", lines)


def _to_float(signed: bool, name: str) -> str:
    """By way of a double that holds all digits but the lowest eleven of a large number, which become one that says
    whether any was set: the second rounding is then the right one."""
    lines = [
        *(
            ["%sign = ashr i64 %x, 63", "%other = xor i64 %x, %sign", "%size = sub i64 %other, %sign"]
            if signed
            else ["%size = add i64 %x, 0"]
        ),
        "%low = and i64 %size, 2047",
        "%carried = add i64 %low, 2047",
        "%marked = or i64 %size, %carried",
        "%short = and i64 %marked, -2048",
        "%large = icmp ugt i64 %size, 9007199254740991",
        "%exact = select i1 %large, i64 %short, i64 %size",
        "%up = lshr i64 %exact, 32",
        "%high = trunc i64 %up to i32",
        "%lower = trunc i64 %exact to i32",
        "%h = uitofp i32 %high to double",
        "%l = uitofp i32 %lower to double",
        "%scaled = fmul double %h, 0x41F0000000000000",
        "%sum = fadd double %scaled, %l",
        "%near = fptrunc double %sum to float",
        *(
            [
                "%negative = icmp slt i64 %x, 0",
                "%turned = fneg float %near",
                "%result = select i1 %negative, float %turned, float %near",
                "ret float %result",
            ]
            if signed
            else ["ret float %near"]
        ),
    ]
    return _function(name, "float", "i64 %x", lines)


_MADE: dict[str, Callable[[str], str]] = {
    "__divsi3": partial(_division, 32, True, "quotient"), "__udivsi3": partial(_division, 32, False, "quotient"),
    "__modsi3": partial(_division, 32, True, "remainder"), "__umodsi3": partial(_division, 32, False, "remainder"),
    "__divdi3": partial(_division, 64, True, "quotient"), "__udivdi3": partial(_division, 64, False, "quotient"),
    "__moddi3": partial(_division, 64, True, "remainder"), "__umoddi3": partial(_division, 64, False, "remainder"),
    "__aeabi_idiv": partial(_division, 32, True, "quotient"),
    "__aeabi_uidiv": partial(_division, 32, False, "quotient"),
    "__aeabi_idivmod": partial(_division, 32, True, "both"), "__aeabi_uidivmod": partial(_division, 32, False, "both"),
    "__aeabi_ldivmod": partial(_division, 64, True, "both"), "__aeabi_uldivmod": partial(_division, 64, False, "both"),
    "__fixsfdi": partial(_to_integer, 32, True), "__fixunssfdi": partial(_to_integer, 32, False),
    "__fixdfdi": partial(_to_integer, 64, True), "__fixunsdfdi": partial(_to_integer, 64, False),
    "__aeabi_f2lz": partial(_to_integer, 32, True), "__aeabi_f2ulz": partial(_to_integer, 32, False),
    "__aeabi_d2lz": partial(_to_integer, 64, True), "__aeabi_d2ulz": partial(_to_integer, 64, False),
    "__floatdidf": partial(_to_double, True), "__floatundidf": partial(_to_double, False),
    "__floatdisf": partial(_to_float, True), "__floatundisf": partial(_to_float, False),
    "__aeabi_l2d": partial(_to_double, True), "__aeabi_ul2d": partial(_to_double, False),
    "__aeabi_l2f": partial(_to_float, True), "__aeabi_ul2f": partial(_to_float, False),
}  # fmt: skip
SOURCES: Mapping[str, str] = MappingProxyType({name: make(name) for name, make in _MADE.items()})
"""LLVM IR of each function by its name, without target triple."""
