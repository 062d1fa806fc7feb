"""Instructions that are begun and awaited: every need is waited for, no wait is too many, and the interpreter shows one
that is missing."""

from __future__ import annotations

import cProfile
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import LoopError, ScheduleError
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import LoopPass, lower_program
from weft.loop.queues import Queue
from weft.scheduling.intrinsic import Call, Intrinsic, Operand, meanings, queued
from weft.scheduling.schedule import Schedule
from weft.tensor import language as tl
from weft_interpreter.interpret import interpret
from weft_queues.await_queues import await_queues

ROWS, TILE = 3, 4
BY = ("all", "count", "token")


def load(by: str, size: int = TILE) -> Intrinsic:
    """A copy of one row of a tile."""
    a = tl.placeholder((size,), name="A")
    return Intrinsic(
        "load",
        tl.compute((size,), lambda i: a[i], name="B"),
        (Operand("A"), Operand("B")),
        Call("load"),
        queue=Queue("dma", by),
    )  # type: ignore[arg-type]


def run(program: Program, by: str, x: Any, **dims: int) -> Any:
    return interpret(program, [x], dims, intrinsics=meanings([load(by)]))["y"]


AHEAD = """program p(x: float32[8, 4]) -> (y: float32[8, 4]) {
  allocate t: float32[2, 4] in tiles
  @load(x[0, 0], t[0, 0]) within(x[0 for 1, 0 for 4], t[0 for 1, 0 for 4])
  for k in 7 {
    @load(x[k + 1, 0], t[(k + 1)%2, 0]) within(x[k + 1 for 1, 0 for 4], t[(k + 1)%2 for 1, 0 for 4])
    for i in 4 { y[k, i] = t[k%2, i] + 1.0f32 }
  }
  for i2 in 4 { y[7, i2] = t[1, i2] + 1.0f32 }
}"""


@pytest.mark.parametrize(
    ("by", "waits"),
    [
        ("count", ["await_dma(1)", "await_dma(0)"]),
        ("all", ["await_dma()", "await_dma()"]),
        (
            "token",
            [
                "await_dma(dma_tokens[0])",
                "await_dma(dma_tokens[2 + (k + 1)%2])",
                "await_dma(dma_tokens[2])",
                "await_dma(dma_tokens[3])",
            ],
        ),
    ],
)
def test_what_is_brought_a_step_ahead_goes_on_while_the_step_is_computed(by: str, waits: list[str]) -> None:
    program = parse_program(AHEAD)
    done = await_queues(program, queued([load(by)]))
    assert re.findall(r"@(await_dma\(.*\))", str(done)) == waits
    assert "@load(" not in str(done) and str(done).count("@begin_load(") == 2
    assert parse_program(str(done)) == done
    # The wait of a step stands in front of its computation, not in its loop; a fence in front of the next copy.
    first = str(done).index("@await_dma")
    assert (first < str(done).index("@begin_load(x[k + 1, 0]")) == (by == "all") or by == "token"
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    np.testing.assert_array_equal(run(done, by, x), x + 1)


def test_every_fence_goes_in_front_of_the_begins_before_it() -> None:
    """The second of two loops as the first."""
    start, body = AHEAD.split("\n", 1)
    _, behind = body.removesuffix("}").split("\n", 1)
    again = re.sub(r"\b(k|i|i2)\b", r"\1_b", behind)
    text = str(await_queues(parse_program(f"{start}\n{body.removesuffix('}')}\n{again}}}"), queued([load("all")])))
    assert re.findall(r"@(await_dma|begin_load)|for (k|i)", text) == [
        ("begin_load", ""),
        *(
            [
                ("", "k"),
                ("await_dma", ""),
                ("begin_load", ""),
                ("", "i"),
                ("await_dma", ""),
                ("", "i"),
                ("begin_load", ""),
            ]
            * 2
        )[:-1],
    ]


def calls(by: str, number: int) -> int:
    """How many functions are called for so many copies in flight, a step ahead."""

    def copies(k: str, half: str) -> str:
        return "\n".join(
            f"@load(x[{k}, {c}], t[{half}, {c}]) within(x[{k} for 1, {c} for 1], t[{half} for 1, {c} for 1])"
            for c in range(number)
        )

    program = parse_program(f"""program p(x: float32[8, {number}]) -> (y: float32[8, {number}]) {{
      allocate t: float32[2, {number}] in tiles
      {copies("0", "0")}
      for k in 7 {{
        {copies("k + 1", "(k + 1)%2")}
        {" ".join(f"y[k, {c}] = t[k%2, {c}]" for c in range(number))}
      }}
    }}""")
    profile = cProfile.Profile()
    profile.runcall(await_queues, program, {"load": Queue("dma", by)})  # type: ignore[arg-type]
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("by", BY)
def test_time_grows_with_what_goes_on_at_once(by: str) -> None:
    few, many = calls(by, 25), calls(by, 100)
    assert many < 5.5 * few


@pytest.mark.parametrize("by", BY)
def test_the_interpreter_shows_a_missing_wait(by: str) -> None:
    """Each wait of the program left out: what it waited for reads as nothing. But for the second token of the end,
    which had been begun before."""
    done = str(await_queues(parse_program(AHEAD), queued([load(by)])))
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    lines = done.splitlines()
    seen = []
    for k in [k for k, line in enumerate(lines) if "@await" in line]:
        shorter = parse_program("\n".join([*lines[:k], *lines[k + 1 :]]))
        seen.append(bool(np.isnan(run(shorter, by, x)).any()))
    assert all(seen) if by != "token" else seen == [True, True, True, False]


@pytest.mark.parametrize("by", BY)
def test_two_steps_ahead(by: str) -> None:
    """What has begun two turns ago is awaited, what has begun since is not, in the first turns and in later ones."""
    program = parse_program("""program p(x: float32[8, 4]) -> (y: float32[8, 4]) {
      allocate t: float32[3, 4] in tiles
      @load(x[0, 0], t[0, 0]) within(x[0 for 1, 0 for 4], t[0 for 1, 0 for 4])
      @load(x[1, 0], t[1, 0]) within(x[1 for 1, 0 for 4], t[1 for 1, 0 for 4])
      for k in 8 {
        if k < 6 { @load(x[k + 2, 0], t[(k + 2)%3, 0]) within(x[k + 2 for 1, 0 for 4], t[(k + 2)%3 for 1, 0 for 4]) }
        for i in 4 { y[k, i] = t[k%3, i] + 1.0f32 }
      }
    }""")
    queues = queued([load(by)])
    done = lower_program(
        program, frozenset(), extra=[LoopPass("await_queues", lambda p: await_queues(p, queues), "partition_loops")]
    )
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    np.testing.assert_array_equal(run(done, by, x.reshape(-1)).reshape(8, 4), x + 1)
    if by == "count":  # in front of the begin, so two go on while a step is computed
        assert re.findall(r"@(await_dma\(.*\)|begin_load\(x)", str(done))[2:] == [
            "await_dma(1)",
            "begin_load(x",
            "await_dma(0)",
        ]


ROW = st.sampled_from(["0", "1", "2", "k", "(k + 1)%3", "(k + 2)%3", "2 - k", "(k + j)%3", "j", "(j + 1)%3", "data[0]"])


@st.composite
def bodies(draw: st.DrawFn, depth: int = 0, vars: tuple[str, ...] = (), names: list[int] | None = None) -> str:
    names = [0] if names is None else names

    def row() -> str:
        return draw(ROW.filter(lambda r: all(v in vars for v in ("k", "j") if v in re.findall(r"[a-z]+", r))))

    def fresh() -> int:
        names[0] += 1
        return names[0]

    lines = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(["load", "load", "store", "compute", "compute", "loop", "if", "scope", "unit", "change"])
        )
        if kind in ("loop", "unit", "if", "scope") and (depth == 2 or (kind == "loop" and len(vars) == 2)):
            kind = "compute"
        n, a, b = fresh(), row(), row()
        source, target = draw(st.sampled_from([("x", "t"), ("t", "u"), ("u", "t"), ("x", "u")]))
        match kind:
            case "load":
                within = (
                    f"within({source}[{a} for 1, 0 for 4], {target}[{b} for 1, 0 for 4])"
                    if draw(st.integers(0, 3))
                    else ""
                )
                lines.append(f"@load({source}[{a}, 0], {target}[{b}, 0]) {within}")
            case "store":
                lines.append(
                    f"@load({target}[{a}, 0], y[{b}, 0]) within({target}[{a} for 1, 0 for 4], y[{b} for 1, 0 for 4])"
                )
            case "compute":
                lines.append(f"for i{n} in 4 {{ {target}[{b}, i{n}] = t[{a}, i{n}] + u[{b}, i{n}] + 1.0f32 }}")
            case "change":
                lines.append(f"data[0] = ({a} + data[0])%3" if "data" not in a else "data[0] = (data[0] + 1)%3")
            case "if":
                lines.append(f"if {a} < {b} {{ {draw(bodies(depth + 1, vars, names))} }}")
            case "scope":
                inner = draw(bodies(depth + 1, vars, names))
                lines.append(
                    f"allocate s{n}: float32[3, 4] {{ for i{n} in 4 {{ s{n}[0, i{n}] = t[{a}, i{n}] }} @load(s{n}[0,"
                    f" 0], t[{b}, 0]) {inner} }}"
                )
            case "unit":
                lines.append(f"for w{n} in 1 unit.array {{ {draw(bodies(depth + 1, vars, names))} }}")
            case "loop":
                var = "k" if "k" not in vars else "j"
                if f"used {var}" in names:
                    lines.append("data[0] = 1")
                    continue
                names.append(f"used {var}")  # type: ignore[arg-type]
                lines.append(
                    f"for {var} in {draw(st.sampled_from(['3', '2', 'n']))} {{"
                    f" {draw(bodies(depth + 1, (*vars, var), names))} }}"
                )
    return "\n".join(lines)


@st.composite
def loops(draw: st.DrawFn) -> str:
    """A loop, with one in it or none, and what stands before and behind."""
    names: list[Any] = ["used k", "used j"]
    names.insert(0, 0)
    before, behind = (draw(bodies(1, (), names)) for _ in range(2))
    inner = draw(bodies(1, ("k",), names))
    if draw(st.booleans()):
        inner += (
            f"\nfor j in {draw(st.sampled_from(['2', 'n']))} {{ {draw(bodies(2, ('k', 'j'), names))}"
            f" }}\n{draw(bodies(2, ('k',), names))}"
        )
    return f"{before}\nfor k in {draw(st.sampled_from(['3', 'n']))} {{ {inner} }}\n{behind}"


@settings(max_examples=250, deadline=None)
@given(st.one_of(bodies(), loops(), loops()), st.sampled_from(BY), st.integers(0, 3), st.booleans())
def test_a_program_means_the_same_when_its_copies_are_begun_and_awaited(
    body: str, by: str, n: int, another: bool
) -> None:
    """Whatever the interpreter does with operands, at once or as late as can be, which an instruction more in front
    turns round."""
    first = "@load(x[2, 0], y[2, 0])" if another else ""
    program = parse_program(f"""program p(x: float32[3, 4]) -> (y: float32[3, 4]) dims(n) {{
      allocate t: float32[3, 4]  allocate u: float32[3, 4]  allocate data: int64[1]
      data[0] = 1
      for r in 3 {{ for c in 4 {{ t[r, c] = x[r, c]*2.0f32 u[r, c] = x[r, c]*3.0f32 y[r, c] = 0.0f32 }} }}
      {first} {body}
      for r2 in 3 {{ for c2 in 4 {{ y[r2, c2] = y[r2, c2] + t[r2, c2] + u[r2, c2]*100.0f32 }} }}
    }}""")
    x = np.arange(12, dtype=np.float32).reshape(3, 4) + 1
    n = min(n, ROWS)
    wanted = run(program, by, x, n=n)
    done = await_queues(program, queued([load(by)]))
    np.testing.assert_array_equal(run(done, by, x, n=n), wanted)


def product(m: int, n: int, k: int) -> Program:
    return parse_program(f"""program product(a: float32[{m}, {k}], b: float32[{k}, {n}]) -> (c: float32[{m}, {n}]) {{
      for i in {m} {{ for j in {n} {{ for r in {k} {{
        block C(vi: {m} = i, vj: {n} = j, vr: reduce {k} = r) {{
          init {{ c[vi, vj] = 0.0f32 }}
          c[vi, vj] = c[vi, vj] + a[vi, vr]*b[vr, vj]
        }}
      }} }} }}
    }}""")


def chip(by: str) -> tuple[Intrinsic, ...]:
    """A product of 8 × 8 in its own memory, copies there and back in a queue each."""
    k = tl.reduce_axis(8, "k")
    a, b = (tl.placeholder((8, 8), name=name) for name in "AB")
    c = tl.compute((8, 8), lambda i, j: tl.sum(a[i, k] * b[k, j], axis=k), name="C")
    tiles = tuple(Operand(name, scope="tiles") for name in "ABC")
    gemm = Intrinsic("gemm", c, tiles, compute=Call("gemm"), reset=Call("zero"), update=Call("gemm_add"))
    d = tl.placeholder((8, 8), name="D")
    copy = tl.compute((8, 8), lambda i, j: d[i, j], name="E")
    inward = (Operand("D", "global", strides=(None, 1)), Operand("E", "tiles"))
    outward = (Operand("D", "tiles"), Operand("E", "global", strides=(None, 1)))
    bring = Intrinsic("bring", copy, inward, Call("bring"), queue=Queue("inward", by))  # type: ignore[arg-type]
    take = Intrinsic("take", copy, outward, Call("take"), queue=Queue("outward", by))  # type: ignore[arg-type]
    return gemm, bring, take


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("arrays", [1, 2])
def test_a_schedule_of_a_product_that_is_a_step_ahead(by: str, arrays: int) -> None:
    """double_buffer, then tensorize: copies of the next tiles go on during the product, results are taken back while
    the next tile begins."""
    intrinsics = {i.name: i for i in chip(by)}
    s = Schedule(product(32, 16, 40), checked=True, intrinsics=intrinsics)
    pairs = [s.split(loop, [None, 8]) for loop in s.loops("C")]
    (i, j, r), inner = zip(*pairs, strict=True)
    s.reorder(i, j, r, *inner)
    if arrays > 1:
        unit, _ = s.split(i, [arrays, None])
    copies = [s.cache_read("C", name, "tiles") for name in "ab"]
    back = s.cache_write("C", "tiles")
    for name in copies:
        s.compute_at(name, r)
    s.reverse_compute_at(back, j)
    for block in ("C", *copies):
        for buffer in s.buffers(block):
            s.compact_buffer(buffer)
    if arrays > 1:
        s.bind(unit, "unit.array")
    firsts = [s.double_buffer(name, r) for name in copies]
    for name in (*copies, *firsts, back):
        s.tensorize(s.loops(name)[-2], "take" if name == back else "bring")
    s.tensorize(s.loops("C")[-3], "gemm")
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((32, 40), (40, 16)))
    functions = meanings(intrinsics.values())
    np.testing.assert_array_equal(interpret(s.program, [x, y], intrinsics=functions)["c"], x @ y)
    extra = [LoopPass("await_queues", lambda p: await_queues(p, queued(intrinsics.values())), "partition_loops")]
    lowered = lower_program(s.program, frozenset(), extra=extra)
    for seed in range(2):
        got = interpret(lowered, [x.reshape(-1), y.reshape(-1)], intrinsics=functions, shuffle_seed=seed)["c"]
        np.testing.assert_array_equal(got.reshape(32, 16), x @ y)
    text = str(lowered)
    if by == "count":  # two copies of the next step go on
        assert "@await_inward(2)" in text
    body = text[text.index("for r_0") :]
    assert body.index("@begin_bring") < body.index("@gemm_add") < body.index("@begin_take")
    lines = text.splitlines()
    for n, line in enumerate(lines):
        if "@await" in line and by == "count":
            wrong = interpret(
                parse_program("\n".join([*lines[:n], *lines[n + 1 :]])),
                [x.reshape(-1), y.reshape(-1)],
                intrinsics=functions,
            )["c"]
            assert not np.array_equal(wrong.reshape(32, 16), x @ y), f"nobody needs {line}"


def test_memory_that_is_given_back_is_not_written_any_more() -> None:
    program = parse_program("""program p(x: float32[3, 4]) -> (y: float32[3, 4]) {
      for k in 3 {
        allocate t: float32[1, 4]
        for i in 4 { t[0, i] = x[k, i] }
        @load(t[0, 0], y[k, 0]) within(t[0 for 1, 0 for 4], y[k for 1, 0 for 4])
      }
    }""")
    text = str(await_queues(program, queued([load("count")])))
    assert re.sub(r"\s+", " ", text).endswith(
        "@begin_load(t[0, 0], y[k, 0]) within(t[0 for 1, 0 for 4], y[k for 1, 0 for 4]) @await_dma(0) } }"
    )


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize(
    "body",
    [
        # read, then written
        "@load(x[0, 0], t[0, 0]) for i in 4 { y[0, i] = 7.0f32 } for j in 4 { y[1, j] = t[0, j] }",
        (  # written, then read
            "@load(x[0, 0], y[1, 0]) within(x[0 for 1, 0 for 4], y[1 for 1, 0 for 4]) for i in 4 { y[2, i] = x[1, i] +"
            " 1.0f32 }"
        ),
    ],
)
def test_an_output_may_be_the_memory_of_an_input(by: str, body: str) -> None:
    program = parse_program(
        f"program p(x: float32[3, 4]) -> (y: float32[3, 4]) aliases(0 = 0) {{ allocate t: float32[1, 4] {body} }}"
    )
    done, apart = (await_queues(replace(program, aliases=a), queued([load(by)])) for a in (program.aliases, ()))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    wanted = interpret(program, [x], intrinsics=meanings([load(by)]), in_place=True)["y"]
    np.testing.assert_array_equal(interpret(done, [x], intrinsics=meanings([load(by)]), in_place=True)["y"], wanted)
    assert (
        "@await" in str(done)[: str(done).index("for i in 4")]
        and "@await" not in str(apart)[: str(apart).index("for i in 4")]
    )


def test_declarations_that_contradict_themselves() -> None:
    k = tl.reduce_axis(4, "k")
    a = tl.placeholder((4,), name="A")
    with pytest.raises(ScheduleError, match="begun in a queue, and is no single Call, or reduces"):
        Intrinsic(
            "sum",
            tl.compute((), lambda: tl.sum(a[k], axis=k), name="S"),
            (Operand("A"), Operand("S")),
            Call("sum"),
            queue=Queue("dma"),
        )
    with pytest.raises(ValueError, match="awaited by all, count or token, got 'dma' and 'luck'"):
        Queue("dma", "luck")  # type: ignore[arg-type]
    other = Intrinsic(
        "other",
        tl.compute((4,), lambda i: a[i], name="B"),
        (Operand("A"), Operand("B")),
        Call("other"),
        queue=Queue("dma", "all"),
    )
    with pytest.raises(ScheduleError, match="the queue 'dma' is awaited by count and by all"):
        queued([load("count"), other])
    threads = parse_program(
        "program p(x: float32[3, 4]) -> (y: float32[3, 4]) { for t in 3 threadIdx.x { @load(x[t, 0], y[t, 0]) } }"
    )
    with pytest.raises(LoopError, match="'load' stands in a loop over threads"):
        await_queues(threads, queued([load("count")]))
