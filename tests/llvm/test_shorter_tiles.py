"""shorter_tiles: the last tile of a row of open length has as many rows as are left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.loop.nodes import For, If, Program, Store, int_const, walk_stmts
from weft.loop.parser import parse_program
from weft.loop.passes.partition_loops import conditions_in
from weft.loop.verify import verify
from weft_interpreter.interpret import interpret
from weft_llvm.shorter_tiles import MOST_EXACT, shorter_tiles

# A sum of taps with a border, its tile in registers, and what follows it.
TILE = """
program tile(x: float32[n + 2, 3], w: float32[3, 3]) -> (y: float32[n]) dims(n) {
  for i in (n + ROWS - 1)//ROWS {
    allocate c: float32[ROWS] in register
    for a in ROWS unrolled {
      if i*ROWS + a < n { c[a] = 0.0f32 }
    }
    for k in 3 {
      for t in 3 unrolled {
        for q in ROWS unrolled {
          if i*ROWS + q < n and i*ROWS + q + t < n + 1 {
            c[q] = c[q] + x[i*ROWS + q + t, k]*w[t, k]
          }
        }
      }
    }
    for z in ROWS unrolled {
      if i*ROWS + z < n { y[i*ROWS + z] = max(c[z], 0.0f32) }
    }
  }
}
"""


def tile(rows: int) -> Program:
    return parse_program(TILE.replace("ROWS", str(rows)))


def well_formed(program: Program) -> None:
    verify(program)
    assert str(parse_program(str(program))) == str(program)


def heights(program: Program) -> list[int]:
    """Rows of the stores of results, in the order of the text."""
    found = []
    for f in walk_stmts(program.body):
        if (
            isinstance(f, For)
            and f.kind == "unrolled"
            and any(isinstance(s, Store) and s.buffer.name == "y" for s in walk_stmts(f.body))
        ):
            found.append(int_const(f.extent) or 0)
    return found


@pytest.mark.parametrize("rows", [2, 3, 5, 8, 9, 14, 31])
def test_every_length_has_each_row_once(rows: int) -> None:
    program = tile(rows)
    after = shorter_tiles(program)
    well_formed(after)
    rng = np.random.default_rng(rows)
    for n in {*range(1, rows + 3), 2 * rows - 1, 2 * rows, 3 * rows + 1}:
        x, w = rng.standard_normal((n + 2, 3)).astype(np.float32), rng.standard_normal((3, 3)).astype(np.float32)
        got, want = (interpret(p, {"x": x, "w": w}, {"n": n})["y"] for p in (after, program))
        np.testing.assert_array_equal(got, want)


def test_a_tile_for_each_number_of_rows() -> None:
    after = shorter_tiles(tile(4))
    assert heights(after) == [4, 3, 2], "one row needs no loop"
    inside = [
        str(c)
        for c, binders in conditions_in(after.body)
        if any(isinstance(b, For) and b.kind == "unrolled" for b in binders)
    ]
    assert len(inside) == 4 and all("<= n" in c for c in inside), "only the border is asked for inside"
    assert sum(isinstance(s, If) for s in walk_stmts(after.body)) - len(inside) == 3, "one row there always is"


def test_of_many_rows_a_half_comes_first() -> None:
    """So that the code grows less than with the square of the rows."""
    got = heights(shorter_tiles(tile(MOST_EXACT + 7)))
    assert got[:2] == [14, 7] and sorted(got[2:]) == sorted([6, 5, 4, 3, 2] * 2)


SUM = TILE.replace("y[i*ROWS + z] = max(c[z], 0.0f32)", "y[i*ROWS + z] = c[z] + s[0]").replace(
    "    for k in 3 {", "    allocate s: float32[1] in register\n    s[0] = 0.0f32\n    for k in 3 {"
).replace("c[q] = c[q] +", "s[0] = s[0] + w[t, k]\n            c[q] = c[q] +")  # fmt: skip
WITHOUT = TILE.replace("if i*ROWS + z < n { y[i*ROWS + z] = max(c[z], 0.0f32) }", "y[(i*ROWS + z)%n] = 1.0f32")
TOGETHER = TILE.replace("max(c[z], 0.0f32)", "max(c[z], c[0])")


LEFT = {"a sum over rows": SUM, "stored without asking": WITHOUT, "rows together": TOGETHER}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_what_would_be_computed_again_or_wrongly_is_left(text: str) -> None:
    program = parse_program(text.replace("ROWS", "4"))
    assert shorter_tiles(program) is program


def test_fixed_sizes_are_left() -> None:
    text = TILE.replace("(n + ROWS - 1)//ROWS", "3").replace("ROWS", "4").replace("dims(n) ", "")
    for old, new in (("n + 2", "12"), ("float32[n]", "float32[10]"), ("< n + 1", "< 11"), ("< n", "< 10")):
        assert old in text
        text = text.replace(old, new)
    program = parse_program(text)
    assert shorter_tiles(program) is program


ROWS_OF = """
program rows(x: float32[n + 20]) -> (y: float32[n + 20]OUTPUT) dims(n) {
  for i in (n + ROWS - 1)//ROWS {
    allocate c: float32[ROWS] in register
    BEFORE
    for a in ROWS unrolled { if i*ROWS + a < n { c[a] = LOADED } }
    STORES
  }
}
"""
STORE = "for z in ROWS unrolled { if i*ROWS + z < n { y[i*ROWS + z] = c[z] + 1.0f32 } }"
SCRATCH = "for b in ROWS unrolled { if i*ROWS + b < n { t[i*ROWS + b] = c[b] } }\n"
IN_ORDER = {
    "in place": ("", "y[max(i*ROWS + a - 1, 0)]", STORE),
    "what a neighbour stores": ("", "x[i*ROWS + a]", SCRATCH + STORE.replace("1.0f32", "t[max(i*ROWS + z - 1, 0)]")),
    "computed before": ("allocate s: float32[1] in register\n    s[0] = y[i*ROWS]", "x[i*ROWS + a] + s[0]", STORE),
    "a sum of all": ("", "x[a]", "for k in 2 { " + STORE.replace("y[i*ROWS + z] =", "y[0] = y[0]*0.5f32 +") + " }"),
    "the last one": ("", "x[a]", "for k in 2 { " + STORE.replace("y[i*ROWS + z] =", "y[0] =") + " }"),
    "stored twice": ("", "x[a]", STORE + "\n" + STORE.replace("z", "v").replace("i*ROWS + v]", "0]")),
}  # fmt: skip


def rows_of(name: str, rows: int) -> Program:
    before, loaded, stores = IN_ORDER[name]
    text = ROWS_OF.replace("BEFORE", before).replace("LOADED", loaded).replace("STORES", stores)
    output = ", t: float32[n + 20]" if name == "what a neighbour stores" else ""
    return parse_program(text.replace("OUTPUT", output).replace("ROWS", str(rows)))


@pytest.mark.parametrize("rows", [4, MOST_EXACT + 1, MOST_EXACT + 2, 14])
@pytest.mark.parametrize("name", IN_ORDER)
def test_what_depends_on_the_order_of_rows(name: str, rows: int) -> None:
    """A tile of as many rows as there are keeps it; one after another would not."""
    program = rows_of(name, rows)
    after = shorter_tiles(program)
    well_formed(after)
    assert (after is program) == (rows > MOST_EXACT + 1)
    for n in (1, rows - 1, rows, rows + 3, 2 * rows - 1):
        x = np.random.default_rng(n).standard_normal(n + 20).astype(np.float32)
        outputs = [interpret(p, {"x": x}, {"n": n}) for p in (after, program)]
        for key in outputs[0]:
            np.testing.assert_array_equal(outputs[0][key], outputs[1][key])


def test_an_output_in_the_place_of_an_input_is_read() -> None:
    program = parse_program(
        ROWS_OF.replace("BEFORE", "").replace("LOADED", "x[i*ROWS + a]").replace("STORES", STORE)
        .replace("OUTPUT", "").replace("ROWS", "12")
    )  # fmt: skip
    assert shorter_tiles(program) is not program
    same = replace(program, aliases=((0, 0),))
    assert shorter_tiles(same) is same


def test_bounds_that_may_not_be_evaluated_before_a_condition_are_left() -> None:
    text = ROWS_OF.replace("BEFORE", "").replace("OUTPUT", "").replace("LOADED", "x[a]").replace("STORES", STORE)
    text = text.replace("< n {", "< n//(n - 1) {").replace("ROWS", "4")
    program = parse_program(text)
    assert shorter_tiles(program) is program
