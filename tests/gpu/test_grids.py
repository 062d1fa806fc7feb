"""Phases of threads become one body with barriers: same meaning in any order of the threads, and each barrier is
needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpu.kernels import MACHINES, scheduled

from weft.errors import CodegenError, LoopError
from weft.graph.nodes import GraphBuilder
from weft.loop.nodes import Allocate, Evaluate, Program, Seq, Stmt, stmt_children, walk_stmts, with_stmt_children
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.loop.verify import verify
from weft.lower.lower import lower_group
from weft_gpu.launches import cut
from weft_gpu.passes import grid_passes
from weft_gpu.passes.join_threads import join_threads
from weft_gpu.passes.private_buffers import private_buffers
from weft_gpu.passes.remove_barriers import remove_barriers
from weft_interpreter.interpret import interpret
from weft_ops import RandomBits

PRODUCT = """program mm(a: float32[32, 24], b: float32[24, 32]) -> (c: float32[32, 32]) {
  for by in 2 blockIdx.y {
    for bx in 2 blockIdx.x {
      allocate acc: float32[16, 16] in register
      for ty0 in 4 threadIdx.y { for tx0 in 4 threadIdx.x { for i0 in 4 { for j0 in 4 { acc[ty0*4 + i0, j0*4 + tx0] = 0.0f32 } } } }
      for k in 3 {
        allocate sa: float32[16, 8] in shared
        allocate sb: float32[8, 16] in shared
        for t in 16 threadIdx.x { for u in 8 { sa[t, u] = a[by*16 + t, k*8 + u] } }
        for t1 in 8 threadIdx.x { for u1 in 16 { sb[t1, u1] = b[k*8 + t1, bx*16 + u1] } }
        for ty in 4 threadIdx.y { for tx in 4 threadIdx.x { for kk in 8 { for i in 4 { for j in 4 {
          acc[ty*4 + i, j*4 + tx] = acc[ty*4 + i, j*4 + tx] + sa[ty*4 + i, kk]*sb[kk, j*4 + tx]
        } } } } }
      }
      for ty2 in 4 threadIdx.y { for tx2 in 4 threadIdx.x { for i2 in 4 { for j2 in 4 {
        c[by*16 + ty2*4 + i2, bx*16 + j2*4 + tx2] = acc[ty2*4 + i2, j2*4 + tx2]
      } } } }
    }
  }
}"""  # noqa: E501
TWO_PLACES = """program turns(x: float32[64]) -> (y: float32[64]) {
  allocate s: float32[2, 8] in shared
  for k in 8 {
    for t in 8 threadIdx.x { s[k % 2, t] = x[k*8 + t] }
    for t1 in 8 threadIdx.x { y[k*8 + t1] = s[k % 2, 7 - t1] }
  }
}"""
TREE = """program tree(x: float32[n, 64]) -> (y: float32[n]) dims(n) {
  for b in n blockIdx.x {
    allocate s: float32[16] in shared
    allocate p: float32[16] in register
    for t in 16 threadIdx.x { p[t] = 0.0f32 for i in 4 { p[t] = p[t] + x[b, i*16 + t] } }
    for t1 in 16 threadIdx.x { s[t1] = p[t1] }
    for t2 in 8 threadIdx.x { s[t2] = s[t2] + s[t2 + 8] }
    for t3 in 4 threadIdx.x { s[t3] = s[t3] + s[t3 + 4] }
    y[b] = 0.0f32
    for t4 in 4 { y[b] = y[b] + s[t4] }
  }
}"""
EXCHANGE = """program exchange(x: float32[24]) -> (y: float32[24], z: float32[24]) {
  for b in 2 blockIdx.x {
    for t in 12 threadIdx.x { y[b*12 + t] = x[b*12 + t] + 1.0f32 }
    for t1 in 12 threadIdx.x { z[b*12 + t1] = y[b*12 + 11 - t1]*2.0f32 }
  }
}"""
FUSED = """program fused(x: float32[64]) -> (y: float32[64]) {
  allocate acc: float32[8, 8] in register
  for t in 16 threadIdx.x { for i in 2 { for j in 2 { acc[t//4*2 + i, t % 4*2 + j] = x[t*4 + i*2 + j] } } }
  for ty in 4 threadIdx.y { for tx in 4 threadIdx.x { for i2 in 2 { for j2 in 2 { y[ty*16 + tx*4 + i2*2 + j2] = acc[ty*2 + i2, tx*2 + j2] } } } }
}"""  # noqa: E501
SQUARE = """program square(x: float32[2, 2]) -> (y: float32[2, 2]) {
  for b in 1 blockIdx.x {
    allocate p: float32[2, 2] in register
    for t in 2 threadIdx.x { for i in 2 { p[i, t] = x[i, t] } }
    for t1 in 2 threadIdx.x { for i1 in 2 { p[i1, t1] = p[i1, t1]*2.0f32 } }
    for t2 in 2 threadIdx.x { for i2 in 2 { y[i2, t2] = p[i2, t2] } }
  }
}"""
SHUFFLED = """program shuffled(x: float32[n, 64]) -> (y: float32[n, 8]) dims(n) {
  for b in n blockIdx.x {
    allocate p: float32[64] in register
    allocate a: float32[2, 32] in register
    allocate c: float32[2, 32] in shared
    for t in 64 threadIdx.x { p[t] = x[b, t] }
    for t1 in 64 threadIdx.x { if t1 % 4 < 3 { a[t1//32, t1 % 32] = p[t1] + p[t1//32*32 + (t1 % 32 ^ 16)] } else { a[t1//32, t1 % 32] = p[t1] + p[t1 ^ 16] } }
    for t2 in 32 threadIdx.x { c[0, t2] = a[0, t2] + a[0, t2 ^ 8] c[1, 31 - t2] = a[0, t2 ^ 1]*2.0f32 }
    for t3 in 8 threadIdx.x { y[b, t3] = c[0, t3] + c[1, t3] }
  }
}"""  # noqa: E501
EXAMPLES = {
    "product": (PRODUCT, 2),
    "two_places": (TWO_PLACES, 1),
    "tree": (TREE, 3),
    "exchange": (EXCHANGE, 1),
    "fused": (FUSED, 0),
    "square": (SQUARE, 0),
    "shuffled": (SHUFFLED, 1),
}
"""Text, and how many barriers it needs."""


def inputs_of(program: Program, n: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-8, 8, [getattr(d, "value", n) for d in b.shape]).astype(b.dtype.numpy) for b in program.inputs
    ]


def run(program: Program, arrays: list[Any], n: int, seed: int | None = None) -> dict[str, Any]:
    shaped = [a.reshape(-1) if len(b.shape) == 1 else a for a, b in zip(arrays, program.inputs)]
    found = interpret(program, shaped, {"n": n} if program.dims else {}, shuffle_seed=seed)
    return {k: v.reshape(-1) for k, v in found.items()}


def agree(before: Program, after: Program, seeds: int = 3, n: int = 2) -> None:
    verify(after)
    assert str(parse_program(str(after))) == str(after)
    arrays = inputs_of(before, n)
    want = run(before, arrays, n)
    for seed in range(seeds):
        for name, got in run(after, arrays, n, seed).items():
            np.testing.assert_array_equal(got, want[name], err_msg=f"{before}\n{after}")


def joined_if_warps_can(program: Program) -> list[Program]:
    """As `joined`; nothing if it has a shuffle that no warp does."""
    try:
        return joined(program)
    except LoopError as error:
        assert "threads along x are not whole pairs" in str(error.why), error
        return []


def joined(program: Program) -> list[Program]:
    """After each of the three passes."""
    found = [private_buffers(program)]
    found.append(join_threads(found[-1]))
    found.append(remove_barriers(found[-1]))
    return found


def without_barrier(program: Program, k: int) -> Program:
    """The program without its k-th barrier."""
    count = iter(range(1000))

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, Evaluate) and s.call.name == "barrier" and next(count) == k:
            return Seq(())
        children = stmt_children(s)
        return with_stmt_children(s, tuple(visit(c) for c in children)) if children else s

    return program.with_body(visit(program.body))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_stage_means_the_same(name: str) -> None:
    program = parse_program(EXAMPLES[name][0])
    stages: list[Program] = []
    lower_program(program, frozenset(), lambda _, p: stages.append(p), extra=grid_passes())
    for after in stages:
        agree(program, after)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_barrier_too_many(name: str) -> None:
    assert str(joined(parse_program(EXAMPLES[name][0]))[-1]).count("@barrier()") == EXAMPLES[name][1]


@pytest.mark.parametrize(("name", "k"), [(name, k) for name, (_, count) in EXAMPLES.items() for k in range(count)])
def test_no_barrier_too_few_goes_unseen(name: str, k: int) -> None:
    """Each of the barriers that are left matters, and the interpreter shows it."""
    program = parse_program(EXAMPLES[name][0])
    broken = without_barrier(joined(program)[-1], k)
    with pytest.raises(AssertionError):
        agree(program, broken, seeds=6)


def test_what_comes_out() -> None:
    assert (
        str(joined(parse_program(TREE))[-1])
        == """\
program tree(x: float32[n, 64]) -> (y: float32[n]) dims(n) {
  for b in n blockIdx.x {
    allocate s: float32[16] in shared
    for t in 16 threadIdx.x {
      allocate p: float32[] in register
      p[] = 0.0f32
      for i in 4 {
        p[] = p[] + x[b, i*16 + t]
      }
      s[t] = p[]
      @barrier()
      if t < 8 {
        s[t] = s[t] + s[t + 8]
      }
      @barrier()
      if t < 4 {
        s[t] = s[t] + s[t + 4]
      }
      @barrier()
      if t == 0 {
        y[b] = 0.0f32
        for t4 in 4 {
          y[b] = y[b] + s[t4]
        }
      }
    }
  }
}"""
    )


def test_threads_have_parts_of_register_buffers() -> None:
    first, second, _ = joined(parse_program(PRODUCT))
    assert "allocate acc: float32[4, 4, 4, 4] in register" in str(
        first
    ) and "acc[ty, tx, i, j] = acc[ty, tx, i, j] + " in str(first)
    assert "allocate acc: float32[4, 4] in register" in str(
        second
    ) and "acc[i, j] = acc[i, j] + sa[ty0*4 + i, kk]" in str(second)


def test_parts_may_be_gone_through_from_where_the_thread_says() -> None:
    """Halves of a loop, which begin where each thread has them: the thread is among the indices elsewhere."""
    text = """program halves(x: float32[8]) -> (y: float32[8]) {
      allocate r: float32[8, 3] in register
      for t in 8 threadIdx.x { let b = min(t, 2) { for i in 3 - b { r[t, i + b] = x[t] } for j in b { r[t, j] = 0.0f32 } } }
      for t1 in 8 threadIdx.x { y[t1] = r[t1, 0] + r[t1, 1]*2.0f32 + r[t1, 2]*4.0f32 }
    }"""  # noqa: E501
    agree(parse_program(text), joined(parse_program(text))[-1])
    with pytest.raises(LoopError, match="accesses give its elements to different threads"):
        joined(parse_program(text.replace("r[t, j] = 0.0f32", "r[(t + 1) % 8, j] = 0.0f32")))


@pytest.mark.parametrize("index", ["5*(t1//4) - 5", "t1//4 - 1", "0"])
def test_halves_of_a_group_do_not_have_the_same_part(index: str) -> None:
    text = f"""program halves(x: float32[8]) -> (y: float32[8]) {{
      allocate r: float32[4, 8] in register
      for t in 8 threadIdx.x {{ if t < 4 {{ r[t % 4, t//4] = x[t] y[t] = 0.0f32 }} }}
      for t1 in 8 threadIdx.x {{ if t1 >= 4 {{ y[t1] = r[t1 % 4, {index}] }} }}
    }}"""
    with pytest.raises(LoopError, match="threads share buffer 'r'"):
        joined(parse_program(text))


def test_shared_buffers_that_do_not_live_at_once_are_one() -> None:
    program = parse_program("""program p(x: float32[8]) -> (y: float32[8], z: float32[8]) {
      for k in 2 { allocate s: float32[8] in shared for t in 8 threadIdx.x { s[t] = x[t] } for t1 in 8 threadIdx.x { y[t1] = s[7 - t1] } }
      allocate u: float32[8] in shared
      for t2 in 8 threadIdx.x { u[t2] = x[t2] + 1.0f32 }
      for t3 in 8 threadIdx.x { z[t3] = u[7 - t3] }
    }""")  # noqa: E501
    after = joined(program)[-1]
    agree(program, after)
    assert str(after).count("allocate") == 1 and str(after).count("@barrier()") == 3


def test_instructions_may_say_where_they_stay() -> None:
    """Else they may use all of a buffer whose address they get, and barriers stand around them."""
    text = """program p(x: float32[8, 8]) -> (y: float32[8, 8]) {
      allocate s: float32[2, 8] in shared
      for t in 8 threadIdx.x { s[0, t] = x[0, t] }
      for k in 8 {
        for u in 8 threadIdx.x { if k < 7 { s[(k + 1) % 2, u] = x[k + 1, u] } }
        for v in 2 threadIdx.x { @copy4(s[k % 2, v*4], y[k, 4 - v*4])%s }
      }
    }"""
    for within, count in ((" within(s[k % 2 for 1, v*4 for 4])", 1), ("", 2)):
        program = parse_program(text.replace("%s", within))
        verify(program)
        assert str(parse_program(str(program))) == str(program)
        after = joined(program)[-1]
        assert str(after).partition("for k in 8")[2].count("@barrier()") == count, str(after)
        assert ("within" in str(after)) == bool(within) and "within" not in str(
            lower_program(program, frozenset(), extra=grid_passes())
        )


def test_programs_without_threads_are_left_alone() -> None:
    program = parse_program("program p(x: float32[8]) -> (y: float32[8]) { for b in 8 blockIdx.x { y[b] = x[b] } }")
    assert all(after is program for after in joined(program))


@pytest.mark.parametrize(
    ("body", "what", "why"),
    [
        ("allocate r: float32[8] in register for t in 8 threadIdx.x { r[t] = x[t] } for u in 8 threadIdx.x { y[u] = r[7 - u] }",  # noqa: E501
         "threads share buffer 'r' of scope register", "the part u of index 7 - u is no formula"),
        ("allocate r: float32[8] in register for t in 8 threadIdx.x { r[t] = x[t] } for u in 8 threadIdx.x { y[u] = r[(u + 1) % 8] }",  # noqa: E501
         "threads share buffer 'r' of scope register", "accesses give its elements to different threads"),
        ("allocate r: float32[1] in register for t in 8 threadIdx.x { r[0] = x[t] } for u in 8 threadIdx.x { y[u] = r[0] }",  # noqa: E501
         "threads share buffer 'r' of scope register", "no thread is among its indices"),
        ("allocate r: float32[8] in register for t in 8 threadIdx.x { r[t//2] = x[t] } for u in 8 threadIdx.x { y[u] = r[u//2] }",  # noqa: E501
         "threads share buffer 'r' of scope register", "its indices distinguish 4 of 8 threads"),
        ("allocate r: float32[8] in register for i in 8 { r[i] = x[i] } for u in 8 threadIdx.x { y[u] = r[u] }",
         "threads share buffer 'r' of scope register", "code outside the loops over threads uses it"),
        ("for t in 8 threadIdx.x { y[t] = x[t] } if y[0] < 1.0f32 { for u in 8 threadIdx.x { y[u] = x[u] } }",
         "a condition around loops over threads may differ from thread to thread", "it depends on buffer 'y'"),
        ("for t in 8 threadIdx.x { for i in 2 { for u in 2 threadIdx.y { y[t] = x[t] } } }",
         "the loops over threads of program 'p' are no nest", "a For stands between loop 't' and another over threads"),
        ("for t in n threadIdx.x { y[t] = x[t] }", "the loops over threads of program 'p' are no nest",
            "the extent n of loop 't' is no constant"),
        ("for t in 8 threadIdx.x { y[t] = x[t] } for u in 4 threadIdx.x { y[u] = x[u] @barrier() }",
         "a barrier in loop 'u' is not reached by all threads of the group", "the loop has 4 threads, the group 8"),
        ("allocate r: float32[8] in register for t in 8 threadIdx.x { r[t] = x[t] } for u in 8 threadIdx.x { y[u] = r[u ^ 3] }",  # noqa: E501
         "threads share buffer 'r' of scope register", "accesses give its elements to different threads"),
        ("allocate r: float32[8] in register for t in 8 threadIdx.x { r[t] = x[t] } for u in 8 threadIdx.x { r[u ^ 1] = x[u] }",  # noqa: E501
         "threads share buffer 'r' of scope register", "accesses give its elements to different threads"),
        ("allocate r: float32[8] in register for t in 8 threadIdx.x { r[t] = x[t] } for u in 8 threadIdx.x { r[u] = r[u ^ 1] + 1.0f32 }",  # noqa: E501
         "not all threads of the warp would come to a shuffle", "the phase changes 'r', which others load in it"),
        ("allocate r: float32[8] in register for t in 8 threadIdx.x { r[t] = x[t] } for u in 8 threadIdx.x { for i in u { y[u] = r[u ^ 1] } }",  # noqa: E501
         "not all threads of the warp would come to a shuffle",
         "a statement around a shuffle is not the same for all threads"),
        ("allocate r: float32[2, 6] in register for v in 2 threadIdx.y { for t in 6 threadIdx.x { r[v, t] = x[t] } } "
         "for w in 2 threadIdx.y { for u in 6 threadIdx.x { y[u] = r[w, u//4*4 + (u % 4 ^ 2)] } }",
         "threads share buffer 'r' of scope register", "accesses give its elements to different threads"),
        ("allocate r: float32[2, 6] in register for v in 2 threadIdx.y { for t in 6 threadIdx.x { r[v, t] = x[t] } } "
         "for w in 12 threadIdx.x { y[w % 6] = r[(w ^ 2)//6, (w ^ 2) % 6] }",
         "not all threads of the warp would come to a shuffle", "6 threads along x are not whole pairs of 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_said(body: str, what: str, why: str) -> None:
    program = parse_program(f"program p(x: float32[8]) -> (y: float32[8]) dims(n) {{ {body} }}")
    with pytest.raises(LoopError) as caught:
        joined(program)
    assert what in caught.value.what and str(caught.value.why).startswith(why)
    assert "# <-- here" in str(caught.value.where)


# -- random programs --------------------------------------------------------------------------------------------------

SIZE = 12
SHAPES = {"all": (12, 1), "half": (6, 1), "plane": (3, 4), "slab": (2, 3)}
SPREAD = (1, 5, 7, 11)  # prime to SIZE: a permutation of it


class Writer:
    """Phases over an output, two shared buffers (one of two places) and two of registers, under loops and
    conditions."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.number = draw, 0

    def fresh(self, stem: str) -> str:
        self.number += 1
        return f"{stem}{self.number}"

    def phase(self, loops: tuple[str, ...]) -> str:
        draw = self.draw
        x, y = SHAPES[draw(st.sampled_from(sorted(SHAPES)))]
        tx, ty = self.fresh("t"), self.fresh("u")
        number = f"({tx} + {ty}*{x})" if y > 1 else tx
        count = x * y

        def place(writes: bool) -> str:
            kind = draw(st.sampled_from(["s", "d", "r", "q", "y"]))
            other = f"({number}*{draw(st.sampled_from(SPREAD))} + {draw(st.integers(0, 3))}) % {SIZE}"
            at = (
                draw(st.sampled_from([number, other]))
                if writes
                else draw(st.sampled_from([number, other, f"{SIZE - 1} - {number}", "3"]))
            )
            turn = f"{draw(st.sampled_from(loops))} % 2" if loops else str(draw(st.integers(0, 1)))
            thread = (
                number
                if writes
                else draw(
                    st.sampled_from([number, *(f"({number} ^ {bit})" for bit in (1, 2) if count % (2 * bit) == 0)])
                )
            )
            own = f"q[{draw(st.integers(0, 1))}*{SIZE} + {thread}]"
            return {"s": f"s[{at}]", "d": f"d[{turn}, {at}]", "y": f"y[{at}]", "r": f"r[{thread}]", "q": own}[kind]

        to = place(True)
        same = to.partition("[")[0]
        terms = [to, f"x[{number}]"] + [p for p in (place(False), place(False)) if p.partition("[")[0] != same]
        store = f"{to} = ({' + '.join(f'{k + 1}*{t}' for k, t in enumerate(terms))}) % 97"
        guard = draw(st.sampled_from(["", f"if {number} < {count - 1}"]))
        inner = f"{guard} {{ {store} }}" if guard else store
        return (
            f"for {ty} in {y} threadIdx.y {{ for {tx} in {x} threadIdx.x {{ {inner} }} }}"
            if y > 1
            else f"for {tx} in {x} threadIdx.x {{ {inner} }}"
        )

    def body(self, depth: int, loops: tuple[str, ...]) -> str:
        parts = []
        for _ in range(self.draw(st.integers(1, 3))):
            kind = (
                self.draw(st.sampled_from(["phase", "phase", "phase", "loop", "if", "alone"])) if depth < 2 else "phase"
            )
            if kind == "phase":
                parts.append(self.phase(loops))
            elif kind == "loop":
                k = self.fresh("k")
                parts.append(
                    f"for {k} in {self.draw(st.sampled_from(['2', '3', 'n']))} {{"
                    f" {self.body(depth + 1, (*loops, k))} }}"
                )
            elif kind == "if":
                cond = f"{loops[-1]} < 1" if loops else "x[0] < 2"
                parts.append(f"if {cond} {{ {self.body(depth + 1, loops)} }}")
            else:
                parts.append(
                    f"y[{self.draw(st.integers(0, 11))}] = (s[{self.draw(st.integers(0, 11))}] + d[1, 2]*3) % 89"
                )
        return " ".join(parts)


def group(writer: Writer, first: str, second: str) -> str:
    """A program of one group whose phases `writer` makes up; `first` and `second` are what the two halves of its double
    buffer begin with."""
    start = (
        f"for t in 12 threadIdx.x {{ s[t] = x[t] d[0, t] = {first} d[1, t] = {second} r[t] = x[t] q[t] = 1 q[t + 12] ="
        " 2 y[t] = x[t] }"
    )
    allocate = (
        "allocate s: int64[12] in shared allocate d: int64[2, 12] in shared allocate r: int64[12] in register allocate"
        " q: int64[24] in register"
    )
    return f"program g(x: int64[12]) -> (y: int64[12]) dims(n) {{ {allocate} {start} {writer.body(0, ())} }}"


@st.composite
def grids(draw: st.DrawFn) -> str:
    return group(Writer(draw), "x[t] + 1", "x[t] + 2")


@settings(max_examples=60, deadline=None)
@given(grids())
def test_random_groups_mean_the_same_in_any_order(text: str) -> None:
    program = parse_program(text)
    found = joined_if_warps_can(program)
    for after in found:
        agree(program, after, seeds=4)
    if found:
        agree(program, lower_program(program, frozenset(), extra=grid_passes()), seeds=2)


def test_threads_that_nobody_joined_are_no_launch() -> None:
    program = parse_program(PRODUCT)
    with pytest.raises(
        CodegenError, match="the threads of a group of kernel 'mm' are not joined to one nest of loops"
    ) as caught:
        cut(lower_program(program, frozenset()))
    assert caught.value.hint is not None and "`weft_gpu.passes.grid_passes`" in caught.value.hint
    assert len(cut(lower_program(program, frozenset(), extra=grid_passes())).parts) == 1


def test_a_constant_operand_of_loops_written_by_hand_stands_in_them() -> None:
    """Stored before the loops it would be another launch's, whose threads' memory nobody else reads."""
    key = np.array([7], np.uint64)
    b = GraphBuilder()
    b.output(b.add(RandomBits(10), b.constant(key, "key")), "y")
    naive = lower_group(b.build())
    assert not [s for s in walk_stmts(naive.body) if isinstance(s, Allocate)] and "7u64" in str(naive)
    np.testing.assert_array_equal(interpret(naive, {})["out0"], RandomBits(10).reference(key))
    _, s = scheduled(naive, MACHINES["small"])
    assert len(cut(lower_program(s.program, frozenset(), extra=grid_passes())).parts) == 1
