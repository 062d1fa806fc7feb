"""Lists of tensors, written and read, also in loops that let them grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.coreml.models import Program, listed
from tests.frontends.coreml.test_reading import block

import weft
from weft.errors import FrontendError, UnsupportedError, WeftError
from weft.graph.evaluate import evaluate
from weft_testing.frontend import FrontendCase, check_frontend

F, I32 = np.float32, np.int32
A, B = F([1, 3]), F([2, 4])


def program(**given: Any) -> Program:
    """A list of elements of two numbers, `ls`."""
    p = Program({"a": ("FLOAT32", (2,)), "b": ("FLOAT32", (2,)), "at": ("INT32", ()), "many": ("INT32", (2,))})
    p.op("make_list", {"elem_shape": [("=", 2)], "init_length": ("=", 2), **given}, {"ls": listed("FLOAT32", (2,))})
    return p


def write(p: Program, name: str, index: Any, value: Any, to: str, kind: str = "list_write") -> None:
    key = "index" if kind == "list_write" else "indices"
    p.op(kind, {"ls": name, key: index, "value": value}, {to: listed("FLOAT32", (2,))})


def given(at: int = 0, many: Any = (0, 1)) -> dict[str, Any]:
    return {"a": A, "b": B, "at": np.array(at, I32), "many": np.array(many, I32)}


def test_a_list_is_zeros_and_grows() -> None:
    p = program()
    p.op("list_read", {"ls": "ls", "index": ("=", 0)}, {"zero": ("FLOAT32", (2,))})
    write(p, "ls", ("=", 0), "a", "one")
    write(p, "one", ("=", 4), "b", "two")
    write(p, "two", ("=", np.array([2, 1], I32)), ("=", F([[-1, -2], [-4, -5]])), "three", "list_scatter")
    p.op("list_read", {"ls": "three", "index": ("=", 0)}, {"first": ("FLOAT32", (2,))})
    p.op("list_gather", {"ls": "three", "indices": ("=", np.array([4, 2, 3], I32))}, {"some": ("FLOAT32", (3, 2))})
    p.op("list_length", {"ls": "three"}, {"length": ("INT32", ())})
    found = evaluate(weft.load(p.bytes("zero", "first", "some", "length"), frontend="coreml"), given())
    for got, want in zip(found, (F([0, 0]), A, F([[2, 4], [-1, -2], [0, 0]]), I32(5))):
        assert np.array_equal(got, want)


def test_places_are_known_at_run_time() -> None:
    p = program()
    write(p, "ls", "at", "a", "one")
    write(p, "one", "many", ("=", F([[5, 6], [7, 8]])), "two", "list_scatter")
    p.op("list_length", {"ls": "two"}, {"length": ("INT32", ())})
    p.op("list_read", {"ls": "two", "index": "at"}, {"y": ("FLOAT32", (2,))})
    graph = weft.load(p.bytes("length", "y"), frontend="coreml")
    for at, many, length, y in ((3, (0, 1), 4, A), (0, (6, 0), 7, F([7, 8]))):
        found = evaluate(graph, given(at, many))
        assert found[0] == length and np.array_equal(found[1], y)
    with pytest.raises(WeftError, match="-1"):
        evaluate(graph, given(-1))


def test_a_list_of_one_length() -> None:
    p = program(dynamic_length=("=", False))
    write(p, "ls", "at", "a", "one")
    p.op("list_read", {"ls": "one", "index": ("=", 1)}, {"y": ("FLOAT32", (2,))})
    graph = weft.load(p.bytes("y"), frontend="coreml")
    assert np.array_equal(evaluate(graph, given(1))[0], A)
    with pytest.raises(WeftError, match="a place in a list 2 is out of range"):
        evaluate(graph, given(2))


def test_sizes_of_elements_come_from_the_first_one() -> None:
    p = program(elem_shape=[("=", "i0")])
    write(p, "ls", ("=", 1), "a", "one")
    p.op("list_gather", {"ls": "one", "indices": "many"}, {"y": ("FLOAT32", (2, 2))})
    assert np.array_equal(evaluate(weft.load(p.bytes("y"), frontend="coreml"), given())[0], [[0, 0], A])
    p.op("list_read", {"ls": "ls", "index": ("=", 0)}, {"z": ("FLOAT32", (2,))})
    with pytest.raises(UnsupportedError, match="not known before one is written"):
        weft.load(p.bytes("z"), frontend="coreml")


def looped() -> bytes:
    """A loop that writes element i, v · i, for i below k."""
    p = Program({"v": ("FLOAT32", (2,)), "k": ("INT32", (1,))})
    p.op("squeeze", {"x": "k"}, {"n": ("INT32", ())})
    p.op("make_list", {"elem_shape": [("=", 2)]}, {"ls": listed("FLOAT32", (2,))})
    loop = p.op("while_loop", {"loop_vars": [("=", 0), "ls"]}, {"i_": ("INT32", ()), "made": listed("FLOAT32", (2,))})
    types = {"i": ("INT32", ()), "l": listed("FLOAT32", (2,))}
    block(loop.blocks.add(), types, ["more"]).op("less", {"x": "i", "y": "n"}, {"more": ("BOOL", ())})
    body = block(loop.blocks.add(), types, ["next", "longer"])
    body.op("cast", {"x": "i", "dtype": ("=", "fp32")}, {"real": ("FLOAT32", ())})
    body.op("mul", {"x": "v", "y": "real"}, {"w": ("FLOAT32", (2,))})
    body.op("list_write", {"ls": "l", "index": "i", "value": "w"}, {"longer": listed("FLOAT32", (2,))})
    body.op("add", {"x": "i", "y": ("=", 1)}, {"next": ("INT32", ())})
    p.op("list_length", {"ls": "made"}, {"length": ("INT32", ())})
    p.op("range_1d", {"start": ("=", 0), "end": "length", "step": ("=", 1)}, {"all": ("INT32", (None,))})
    p.op("list_gather", {"ls": "made", "indices": "all"}, {"y": ("FLOAT32", (None, 2))})
    return p.bytes("y")


@pytest.mark.needs("weft_llvm")
def test_a_loop_lets_a_list_grow() -> None:
    def wanted(inputs: Any) -> list[Any]:
        return [np.arange(max(int(inputs["k"][0]), 1), dtype=F)[:, None] * inputs["v"]]

    three, none = ({"v": A, "k": np.array([k], I32)} for k in (3, 0))
    check_frontend(FrontendCase(looped(), three, wanted, "coreml", others=[none]))


def test_what_is_refused() -> None:
    p = program()
    p.op("add", {"x": "ls", "y": "a"}, {"y": ("FLOAT32", (2,))})
    with pytest.raises(FrontendError, match="operand 'x' is a list"):
        weft.load(p.bytes("y"), frontend="coreml")
    p = program()
    p.op("list_read", {"ls": "a", "index": ("=", 0)}, {"y": ("FLOAT32", (2,))})
    with pytest.raises(FrontendError, match="operand 'ls' is no list"):
        weft.load(p.bytes("y"), frontend="coreml")
    with pytest.raises(UnsupportedError, match="a list of tensors leaves the model"):
        weft.load(program().bytes("ls"), frontend="coreml")
    p = program(init_length=("=", -1))
    with pytest.raises(FrontendError, match="-1"):
        weft.load(p.bytes("ls"), frontend="coreml")
