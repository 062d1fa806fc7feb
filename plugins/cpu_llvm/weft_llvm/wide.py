"""Products of 128 bits for processors without an instruction for them, as LLVM IR."""

MULTIPLY = "__multi3"
"""What LLVM calls where it needs the whole product of two 64-bit integers, as the compiler-rt library names it."""

SOURCE = f"""; the product modulo 2^128 of a = ah:al and b = bh:bl
define hidden void @{MULTIPLY}(ptr %r, i64 %al, i64 %ah, i64 %bl, i64 %bh) nounwind {{
  %a0 = and i64 %al, 4294967295
  %a1 = lshr i64 %al, 32
  %b0 = and i64 %bl, 4294967295
  %b1 = lshr i64 %bl, 32
  %p00 = mul i64 %a0, %b0
  %p01 = mul i64 %a0, %b1
  %p10 = mul i64 %a1, %b0
  %p11 = mul i64 %a1, %b1
  %carried = lshr i64 %p00, 32
  %low = and i64 %p00, 4294967295
  %middle = add i64 %p10, %carried
  %middle.low = and i64 %middle, 4294967295
  %middle.high = lshr i64 %middle, 32
  %second = add i64 %p01, %middle.low
  %second.high = lshr i64 %second, 32
  %second.up = shl i64 %second, 32
  %lo = or i64 %second.up, %low
  %cross.a = mul i64 %ah, %bl
  %cross.b = mul i64 %al, %bh
  %h0 = add i64 %p11, %middle.high
  %h1 = add i64 %h0, %second.high
  %h2 = add i64 %h1, %cross.a
  %hi = add i64 %h2, %cross.b
  store i64 %lo, ptr %r, align 8
  %r.high = getelementptr i8, ptr %r, i32 8
  store i64 %hi, ptr %r.high, align 8
  ret void
}}
"""
