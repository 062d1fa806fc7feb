"""What is kept for the backward pass: the same results, in less memory, in the order that was planned."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import dtypes as dt
from weft.errors import UnsupportedError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops import (
    Add,
    Barrier,
    Cast,
    Entropy,
    Fill,
    Multiply,
    RandomBits,
    ReduceSum,
    Reshape,
    RightShift,
    Sigmoid,
    Softmax,
    Tanh,
)
from weft_training.differentiate import _Work
from weft_training.rematerialize import Joint, cheapest_cut, computed_again, peak_bytes, segments


def chain(depth: int, rows: int = 32) -> Graph:
    """Residual blocks of a sigmoid, a tanh and a softmax."""
    b = GraphBuilder("chain")
    h = b.input("x", tensor_type("float32", [rows, 64]))
    for _ in range(depth):
        h = b.add(Softmax(), b.add(Add(), h, b.add(Tanh(), b.add(Sigmoid(), b.add(Multiply(), h, h)))))
    b.output(b.add(ReduceSum(None), h), "loss")
    return b.build()


def joint(graph: Graph) -> Joint:
    work = _Work(graph, None, None)
    inside = {id(n) for n in work.graph.nodes}
    seeds = [work.builder.add(Fill(v.dtype, v.shape, 1)) for v in work.of]
    done = work.finished(work.reversed(seeds, "error"), "gradient", values=True)
    return Joint(done, sum(id(n) in inside for n in done.nodes))


def inputs(graph: Graph) -> dict[str, np.ndarray]:
    return {v.name: np.random.default_rng(3).normal(size=v.shape).astype(np.float32) for v in graph.inputs}


def equal(a: Graph, b: Graph) -> bool:
    given = inputs(a)
    return all(x.tobytes() == y.tobytes() for x, y in zip(evaluate(a, given), evaluate(b, given)))


def test_the_cheapest_cut_keeps_what_is_dear_and_gives_the_same() -> None:
    whole = joint(chain(6))
    before = peak_bytes(whole)
    forward, _ = whole.nodes
    cut = cheapest_cut(whole)
    kept = [n for n in forward if id(n.output) in cut and n.output not in whole.graph.outputs]
    assert kept and all(isinstance(n.op, Softmax) for n in kept)
    done = computed_again(whole, lambda v: id(v) in cut)
    assert equal(joint(chain(6)).graph, done.graph)
    assert peak_bytes(done) < 0.6 * before


@pytest.mark.parametrize("depth", [1, 2, 5, 16])
def test_segments_give_the_same(depth: int) -> None:
    assert equal(joint(chain(depth)).graph, segments(joint(chain(depth)), None).joint.graph)


def test_bytes_grow_with_the_square_root_of_the_depth() -> None:
    peaks = {n: segments(joint(chain(n)), None).peak for n in (16, 64, 256)}
    assert peaks[64] <= 2.3 * peaks[16] and peaks[256] <= 2.3 * peaks[64]
    whole = {n: peak_bytes(joint(chain(n))) for n in (16, 64)}
    assert whole[64] >= 3.8 * whole[16]


def test_a_budget_is_kept_with_as_little_work_as_it_needs() -> None:
    least, most = segments(joint(chain(64)), None).peak, peak_bytes(joint(chain(64)))
    again = []
    for budget in (least, least + (most - least) // 20, least + (most - least) // 8, most):
        choice = segments(joint(chain(64)), budget)
        assert choice.peak <= budget
        again.append(choice.again)
    assert again == sorted(again, reverse=True) and again[0] > again[-1] == 0.0


def test_a_budget_that_cannot_be_kept_says_the_least() -> None:
    least = segments(joint(chain(16)), None).peak
    with pytest.raises(UnsupportedError, match="a step does not fit 1,000 bytes of results") as caught:
        segments(joint(chain(16)), 1000)
    assert f"it takes about {least:,}" in str(caught.value.why)


def test_the_compiled_arena_shrinks() -> None:
    """The plan of the compiled program, not only the estimate."""

    def arena(graph: Graph) -> int:
        return int(weft.compile(graph, "llvm -threads=1", cache=False).manifest.arena)

    kept, least = arena(joint(chain(48, 512)).graph), arena(segments(joint(chain(48, 512)), None).joint.graph)
    assert least < kept / 3


def test_random_numbers_are_drawn_once() -> None:
    """A key that the run draws is kept; the words that follow from it may be computed again."""
    b = GraphBuilder("dropout")
    h = b.input("x", tensor_type("float32", [4, 8]))
    for _ in range(6):
        words = b.add(RandomBits(32), b.add(Entropy()))
        uniform = b.add(Cast(dt.float32), b.add(RightShift(), words, b.constant(np.uint32(8), "eight")))
        h = b.add(Softmax(), b.add(Multiply(), h, b.add(Reshape((4, 8)), uniform)))
    b.output(b.add(ReduceSum(None), h), "loss")
    done = segments(joint(b.build()), None).joint.graph
    assert sum(isinstance(n.op, Entropy) for n in done.nodes) == 6
    assert sum(isinstance(n.op, RandomBits) for n in done.nodes) > 6


def test_barriers_are_the_operand_in_its_memory() -> None:
    b = GraphBuilder("barrier")
    x = b.input("x", tensor_type("float32", [4]))
    b.output(b.add(Tanh(), b.add(Barrier(), x)))
    b.output(b.add(Tanh(), x))
    executable = weft.compile(b.build(), "llvm -threads=1", cache=False)
    results = executable(np.ones(4, np.float32))
    assert np.array_equal(results[0], results[1])
    assert int(executable.manifest.arena) == 0
