"""block_sums: long chains of float additions become blocks of them, whatever stands around."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passcheck import same
from programs import EXAMPLES, programs

from weft.loop.nodes import Allocate, Program, walk_stmts
from weft.loop.parser import parse_program
from weft.loop.passes.block_sums import block_sums
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.simplify import simplify
from weft.loop.passes.start_empty_reductions import start_empty_reductions
from weft_interpreter.interpret import interpret

ROW = """
program row(x: float32[n]) -> (y: float32[1]) dims(n) {
  allocate acc: float32[] in register
  acc[] = 0.0f32
  for k in n {
    acc[] = acc[] + x[k]
  }
  y[0] = acc[]
}
"""
TILE = """
program tile(a: float32[7, n], b: float32[n, 8]) -> (y: float32[7, 8]) dims(n) {
  for io in 2 parallel {
    allocate acc: float32[4, 8] in register
    for i0 in 4 unrolled {
      for j0 in 8 vectorized {
        if io*4 + i0 < 7 {
          acc[i0, j0] = 0.0f32
        }
      }
    }
    for ko in (n + 2)//3 {
      for ki in 3 {
        for i in 4 unrolled {
          for j in 8 vectorized {
            if ko*3 + ki < n and io*4 + i < 7 {
              acc[i, j] = acc[i, j] + a[io*4 + i, ko*3 + ki]*b[ko*3 + ki, j]
            }
          }
        }
      }
    }
    for i2 in 4 {
      for j2 in 8 {
        if io*4 + i2 < 7 {
          y[io*4 + i2, j2] = acc[i2, j2]
        }
      }
    }
  }
}
"""
STARTED_INSIDE = """
program started(x: float32[4, m, n]) -> (y: float32[4]) dims(m, n) {
  for i in 4 {
    for k in m {
      for l in n {
        if k == 0 and l == 0 {
          y[i] = 0.0f32
        }
        y[i] = y[i] + x[i, k, l]
      }
    }
  }
}
"""

PREFIX = """
program prefix(x: float32[n, m]) -> (y: float32[n, m], last: float32[m]) dims(n, m) {
  allocate state: float32[m]
  allocate total: float32[m]
  for i in m {
    state[i] = 1.5f32
  }
  for t in n {
    for i1 in (m + 3)//4 {
      for j1 in 4 vectorized {
        if i1*4 + j1 < m {
          total[i1*4 + j1] = (state[i1*4 + j1] - x[t, i1*4 + j1]) + 0.25f32
        }
      }
    }
    for i2 in m {
      y[t, i2] = total[i2]*2.0f32
    }
    for i3 in (m + 3)//4 {
      for j3 in 4 vectorized {
        if i3*4 + j3 < m {
          state[i3*4 + j3] = total[i3*4 + j3]
        }
      }
    }
  }
  for i4 in m {
    last[i4] = state[i4] + total[i4]
  }
}
"""
IN_PLACE = """
program in_place(x: float32[2, n]) -> (y: float32[2, n]) dims(n) {
  allocate acc: float32[]
  acc[] = 0.0f32
  for i in 2 {
    for t in n {
      y[i, t] = acc[]
      acc[] = acc[] + x[i, t]
    }
  }
}
"""

PADDED = """
program padded(x: float32[n]) -> (y: float32[(n + 2)//3]) dims(n) {
  for i in (n + 2)//3 {
    for k in 9 {
      for l in 2 {
        if k == 0 and l == 0 {
          y[i] = 0.0f32
        }
        if 4 <= i*3 + k and i*3 + k < n + 4 {
          if 0.0f32 < x[i*3 + k - 4] {
            y[i] = y[i] + x[i*3 + k - 4]
          }
        }
      }
    }
  }
}
"""

TRIANGLE = """
program triangle(x: float32[n, n]) -> (y: float32[1]) dims(n) {
  y[0] = 0.0f32
  for i in n {
    for j in i + 1 {
      for k in min(n - j, 2) {
        y[0] = y[0] + x[i, j]
      }
    }
  }
}
"""


def blocked(program: Program, longest: int = 2, block: int = 2) -> Program:
    return block_sums(program, longest, block)


def totals(program: Program) -> list[str]:
    return [
        s.buffer.name for s in walk_stmts(program.body) if isinstance(s, Allocate) and s.buffer.name.endswith("_total")
    ]


@pytest.mark.parametrize(
    "text",
    [ROW, TILE, STARTED_INSIDE, PREFIX, IN_PLACE, PADDED, TRIANGLE],
    ids=["row", "tile", "started_inside", "prefix", "in_place", "padded", "triangle"],
)
@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_the_meaning_stays(text: str, block: int) -> None:
    program = parse_program(text)
    after = blocked(program, block=block)
    assert totals(after)
    for n in (1, 2, 7, 12):
        same(program, after, {"n": n, "m": 3}, exact=False)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_keep_their_meaning(name: str) -> None:
    program = simplify(lower_blocks(start_empty_reductions(EXAMPLES[name]())))
    same(program, blocked(program), exact=False)


@given(programs(), st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_random_programs_keep_their_meaning(program: Program, block: int) -> None:
    program = simplify(lower_blocks(start_empty_reductions(program)))
    after = blocked(program, block=block)
    for dims in ({"n": 5, "m": 3}, {"n": 16, "m": 8}):
        same(program, after, dims, exact=False)


def test_a_product_of_the_examples_has_blocks() -> None:
    program = simplify(lower_blocks(start_empty_reductions(EXAMPLES["matmul"]())))
    assert totals(blocked(program))


def test_short_sums_and_other_reductions_stay() -> None:
    short = parse_program(
        ROW.replace("for k in n", "for k in 8192").replace("x: float32[n]", "x: float32[8192]").replace(" dims(n)", "")
    )
    assert block_sums(short) is short
    longer = parse_program(str(short).replace("8192", "8193"))
    assert totals(block_sums(longer)) == ["acc_total"]
    for text in (
        ROW.replace("float32", "int32").replace("0.0f32", "0i32"),  # exact
        ROW.replace("acc[] + x[k]", "max(acc[], x[k])"),
        ROW.replace("acc[] + x[k]", "acc[]*0.5f32 + x[k]"),  # no sum
        ROW.replace("acc[] = acc[] + x[k]\n", "y[0] = acc[]*acc[]\n    acc[] = x[k] - acc[]\n"),  # of alternating sign
        ROW.replace(
            "acc[] = acc[] + x[k]\n", "acc[] = acc[] + x[k]\n    if x[k] < 0.0f32 {\n      acc[] = 0.0f32\n    }\n"
        ),  # starts again
    ):
        program = parse_program(text)
        assert str(blocked(program)) == str(program)


def test_infinities_and_nan_are_what_they_were() -> None:
    program = blocked(parse_program(ROW))
    cases = {np.inf: [1.0, np.inf, 2, 3, 4], -np.inf: [1, -np.inf, 2, 3, 4], np.nan: [np.inf, 1, 2, -np.inf, 3]}
    for want, values in [*cases.items(), (np.nan, [1, np.nan, 2, 3, 4])]:
        y = interpret(program, {"x": np.array(values, np.float32)}, {"n": 5})["y"]
        np.testing.assert_array_equal(y, np.float32([want]))
    large = np.float32([3e38, 3e38, 1, 1, 1])  # beyond the largest float32
    assert interpret(program, {"x": large}, {"n": 5})["y"][0] == np.inf


def test_what_rounding_loses_of_totals_is_added_up() -> None:
    """0.1 a hundred thousand times in blocks of 16: totals alone would be off by 1e-4."""
    n = 100_000
    program = block_sums(parse_program(ROW), block=16)
    got = float(interpret(program, {"x": np.full(n, 0.1, np.float32)}, {"n": n})["y"][0])
    assert math.isclose(got, n * float(np.float32(0.1)), rel_tol=1e-6)


@pytest.mark.parametrize("text", [ROW, IN_PLACE], ids=["row", "in_place"])
def test_a_sum_of_negative_zeros_keeps_its_sign(text: str) -> None:
    program = blocked(parse_program(text.replace("acc[] = 0.0f32", "acc[] = -0.0f32")))
    y = interpret(program, {"x": np.full((2, 7) if text is IN_PLACE else 7, -0.0, np.float32)}, {"n": 7})["y"]
    assert np.signbit(y).all()


COLUMNS = """
program columns(x: float32[n, m]) -> (y: float32[n, m], last: float32[m]) dims(n, m) {
  allocate state: float32[m]
  allocate total: float32[m]
  for i in m {
    state[i] = 0.5f32
  }
  for b in m {
    for t in n {
      total[b] = state[b] + x[t, b]
      y[t, b] = total[b]*2.0f32
      state[b] = total[b]
    }
  }
  for i4 in m {
    last[i4] = state[i4] + total[i4]
  }
}
"""
"""Each iteration of b has one prefix sum, in elements that lie where all find them."""


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_the_total_of_one_element_is_one_element(block: int) -> None:
    """A buffer like the state's, made anew by each iteration, would be too much for a group of a grid."""
    after = blocked(parse_program(COLUMNS), block=block)
    made = {s.buffer.name: s.buffer for s in walk_stmts(after.body) if isinstance(s, Allocate)}
    assert [made[n].shape for n in totals(after)] == [()]
    assert {made[n].scope for n in totals(after)} == {"local"}
    x = np.random.default_rng(0).integers(-8, 8, (7, 3)).astype(np.float32)
    want, got = (interpret(p, {"x": x}, {"n": 7, "m": 3}) for p in (parse_program(COLUMNS), after))
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_sums_of_which_other_elements_are_read_stay() -> None:
    """Of these elements there are no totals."""
    program = parse_program(COLUMNS.replace("y[t, b] = total[b]*2.0f32", "y[t, b] = total[b] + total[0]"))
    assert not totals(blocked(program))


@pytest.mark.parametrize("order", ["for t in n { for b in m {", "for b in m { for t in n {"])
def test_elements_that_nothing_is_added_to_have_no_totals(order: str) -> None:
    """They are read as they were before the loop."""
    text = f"""program some(x: float32[n, m]) -> (y: float32[n, m]) dims(n, m) {{
      allocate state: float32[m]
      for i in m {{ state[i] = 0.5f32 }}
      {order}
        if b < 2 {{ state[b] = state[b] + x[t, b] }}
        y[t, b] = state[b]
      }} }}
    }}"""
    program = parse_program(text)
    x = np.random.default_rng(0).integers(-8, 8, (7, 3)).astype(np.float32)
    want = interpret(program, {"x": x}, {"n": 7, "m": 3})["y"]
    assert (want[:, 2] == 0.5).all()
    np.testing.assert_array_equal(interpret(blocked(program), {"x": x}, {"n": 7, "m": 3})["y"], want)
    both = parse_program(
        text.replace("y[t, b] = state[b]", "if b < 2 { y[t, b] = state[b] } else { y[t, b] = 0.5f32 }")
    )
    assert totals(blocked(both))
    np.testing.assert_array_equal(interpret(blocked(both), {"x": x}, {"n": 7, "m": 3})["y"], want)


def test_prefix_sums_are_as_exact_as_sums() -> None:
    n = 20_000
    got = interpret(block_sums(parse_program(IN_PLACE)), {"x": np.full((2, n), 0.1, np.float32)}, {"n": n})["y"]
    want = np.arange(2 * n).reshape(2, n) * float(np.float32(0.1))
    np.testing.assert_allclose(got, want, rtol=2e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("state[i3*4 + j3] = total[i3*4 + j3]", "state[i3*4 + j3] = total[i3*4 + j3]*0.5f32"),  # decays
        ("for i3 in (m + 3)//4", "for i3 in m//4"),  # of some elements only
        ("state[i1*4 + j1] - x", "x[t, i1*4 + j1] - state[i1*4 + j1] - x"),
        ("y[t, i2] = total[i2]*2.0f32", "y[t, i2] = total[i2]*2.0f32\n      total[i2] = 0.0f32"),
        ("y[t, i2] = total[i2]*2.0f32", "y[t, i2] = total[i2]*state[i2 + 0*t]"),
        ("if i3*4 + j3 < m", "if i3*4 + j3 < m and t < 3"),
    ],
)
def test_recurrences_that_are_no_sums_stay(old: str, new: str) -> None:
    assert old in PREFIX
    program = simplify(parse_program(PREFIX.replace(old, new)))
    assert not totals(blocked(program))


def test_a_condition_of_steps_does_not_say_which_elements_there_are() -> None:
    """Where elements are certain to be there, a block's end may store into them; else their condition must be asked,
    and it is not the same in all steps."""
    assert totals(blocked(parse_program(PADDED)))
    program = simplify(
        parse_program(
            PADDED.replace("for i in (n + 2)//3 {", "for i in n {").replace(
                "k < n + 4 {", "k < n + 4 and i*3 + k < n {"
            )
        )
    )
    assert not totals(blocked(program))


@pytest.mark.parametrize("text", [STARTED_INSIDE, PADDED], ids=["started_inside", "padded"])
def test_steps_of_blocks_do_not_ask_whether_they_are_the_first(text: str) -> None:
    assert "== 0" in text
    assert "== 0 " not in str(blocked(parse_program(text)))


def test_what_branches_add_to_an_element_has_one_total() -> None:
    branches = "if x[k] < 0.0f32 {\n acc[] = acc[] - x[k]\n } else {\n acc[] = (acc[] + x[k]) + 1.0f32\n }"
    program = parse_program(ROW.replace("acc[] = acc[] + x[k]", branches))
    after = blocked(program)
    assert totals(after) == ["acc_total"]
    same(program, after, {"n": 11}, exact=False)


def test_a_loop_may_have_sums_of_both_kinds() -> None:
    program = parse_program(IN_PLACE.replace("y[i, t] = acc[]", "y[i, t] = acc[]\n y[0, 0] = y[0, 0] + x[1, t]"))
    assert len(totals(blocked(program))) == 1  # the sum is not alone: its buffer is stored otherwise, too
    program = parse_program(IN_PLACE.replace("acc[] = 0.0f32",
    "acc[] = 0.0f32\n allocate sum: float32[]\n sum[] = 0.0f32").replace(
        "y[i, t] = acc[]", "y[i, t] = acc[]\n sum[] = sum[] + x[1, t]").replace("    }\n  }\n",
        "    }\n    y[i, 0] = sum[]\n  }\n"))  # fmt: skip
    after = blocked(program)
    assert sorted(totals(after)) == ["acc_total", "sum_total"]
    same(program, after, {"n": 13}, exact=False)
