"""unswitch_loops: what does not vary in a loop is asked once, outside it."""

from __future__ import annotations

import pytest
from passcheck import same

from weft.loop.nodes import For, If, walk_stmts
from weft.loop.parser import parse_program
from weft.loop.passes.unswitch_loops import invariant, unswitch_loops

BORDERS = """
program borders(x: float32[6, 5], s: int64[1]) -> (y: float32[6, 5]) {
  for i in 6 {
    for j in 5 @ unswitch=1 {
      y[i, j] = select(1 <= i and i < 5, x[i, j], select(1 <= i, 2.0f32, 3.0f32)) + select(j < 3, 1.0f32, 0.0f32) + select(s[0] < i, 1.0f32, 0.0f32)
      if i < 4 {
        y[i, j] = y[i, j] + 10.0f32
      }
    }
  }
}
"""  # noqa: E501


def test_two_copies_of_the_loop() -> None:
    program = parse_program(BORDERS)
    (loop,) = [f for f in walk_stmts(program.body) if isinstance(f, For) and f.annotations]
    assert [str(c) for c in invariant(loop)] == ["1 <= i", "i < 5", "i < 4"]
    after = unswitch_loops(program)
    same(program, after)
    (outside,) = [
        s for s in walk_stmts(after.body) if isinstance(s, If) and any(isinstance(f, For) for f in walk_stmts(s))
    ]
    assert not any(isinstance(s, If) for s in walk_stmts(outside.then))
    assert outside.orelse is not None and any(isinstance(s, If) for s in walk_stmts(outside.orelse))
    # What varies in the loop, and what memory says, stays where it is.
    assert "j < 3" in str(outside.then) and "s[0] < i" in str(outside.then) and "i < 5" not in str(outside.then)


VARYING = BORDERS.replace("i < 5", "j < 4").replace("1 <= i", "1 <= j").replace("i < 4", "j < 2")


@pytest.mark.parametrize("text", [BORDERS.replace(" @ unswitch=1", ""), VARYING], ids=["not_asked", "varying"])
def test_nothing_to_do(text: str) -> None:
    program = parse_program(text)
    assert str(unswitch_loops(program)) == str(program)
