"""How compile time grows with a model: chains whose formulas, graphs or files could double with every step.

    python -m benchmarks.growth [--kinds gather,if,…] [--levels 10,20,30] [--limit SECONDS] [--json FILE]

Every model is compiled without caches, in a process of its own that ends after --limit seconds. A chain of 30 steps may
take 2 s, a wide model (10,000 elementwise nodes, 5,000 pieces, 3,000 outputs) 5 s, of the compiling process's own time
or of the clock, whichever is less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.arguments import chosen, judge, machine, write_report

CHAIN_LIMIT, WIDE_LIMIT = 2.0, 5.0
OPSET = 20
Input: TypeAlias = "tuple[str, int, Sequence[Any]]"
"""Name, dtype and shape."""
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


# -- chains -----------------------------------------------------------------------------------------------------------


def gather(levels: int) -> onnx.ModelProto:
    """Each Gather by the same run-time indices of what the one before gave."""
    nodes = [helper.make_node("Gather", [f"x{k}", "i"], [f"x{k + 1}"], axis=0) for k in range(levels)]
    return _model(nodes, [("x0", FLOAT, ["n"]), ("i", INT, ["n"])], [(f"x{levels}", FLOAT, ["n"])])


def gather_of_itself(levels: int) -> onnx.ModelProto:
    """t = t[t]: the indices are what they index."""
    nodes = [helper.make_node("Gather", [f"x{k}", f"x{k}"], [f"x{k + 1}"], axis=0) for k in range(levels)]
    return _model(nodes, [("x0", INT, ["n"])], [(f"x{levels}", INT, ["n"])])


def gather_arithmetic(levels: int) -> onnx.ModelProto:
    """Arithmetic between: i = (x[i] + i) mod 8, of eight elements."""
    nodes = []
    for k in range(levels):
        nodes += [
            helper.make_node("Gather", ["x", f"i{k}"], [f"g{k}"], axis=0),
            helper.make_node("Add", [f"g{k}", f"i{k}"], [f"s{k}"]),
            helper.make_node("Mod", [f"s{k}", "eight"], [f"i{k + 1}"]),
        ]
    return _model(nodes, [("x", INT, [8]), ("i0", INT, [8])], [(f"i{levels}", INT, [8])], {"eight": np.array(8)})


def gather_elements(levels: int) -> onnx.ModelProto:
    """As `gather`, along the rows of a matrix."""
    nodes = [helper.make_node("GatherElements", [f"x{k}", "i"], [f"x{k + 1}"], axis=1) for k in range(levels)]
    return _model(nodes, [("x0", FLOAT, ["m", "n"]), ("i", INT, ["m", "n"])], [(f"x{levels}", FLOAT, ["m", "n"])])


def nested_if(levels: int) -> onnx.ModelProto:
    """If in the then-branch of If, of branches that can both be computed."""
    return _nested_if(levels, "Relu")


def nested_if_failing(levels: int) -> onnx.ModelProto:
    """As `nested_if`, with work inside that only the branch taken may do."""
    return _nested_if(levels, "Gather")


def _nested_if(levels: int, leaf: str) -> onnx.ModelProto:
    body = _leaf(leaf, "y")
    for k in range(levels):
        other = helper.make_graph(
            [helper.make_node("Neg", ["x"], [f"e{k}"])], f"else{k}", [], [_info(f"e{k}", FLOAT, ["n"])]
        )
        node = helper.make_node("If", ["c"], [f"y{k}"], then_branch=body, else_branch=other)
        body = helper.make_graph([node], f"then{k}", [], [_info(f"y{k}", FLOAT, ["n"])])
    inputs = [("x", FLOAT, ["n"]), ("c", BOOL, []), ("i", INT, ["n"])]
    return _model(list(body.node), inputs, [(body.output[0].name, FLOAT, ["n"])])


def _leaf(kind: str, name: str) -> onnx.GraphProto:
    inputs = ["x", "i"] if kind == "Gather" else ["x"]
    return helper.make_graph([helper.make_node(kind, inputs, [name])], "leaf", [], [_info(name, FLOAT, ["n"])])


def nested_loop(levels: int) -> onnx.ModelProto:
    """Loop in the body of Loop, of a number of iterations known only at run time."""
    nodes = [helper.make_node("Neg", ["v"], ["w"])]
    inner = "w"
    for k in range(levels):
        taken = "x" if k == levels - 1 else f"v{k}"
        last = inner
        body = helper.make_graph(
            [*nodes, helper.make_node("Identity", [f"go{k}"], [f"on{k}"])], f"body{k}",
            [_info(f"trip{k}", INT, []), _info(f"go{k}", BOOL, []), _info("v" if k == 0 else f"v{k - 1}", FLOAT,
                ["n"])],
            [_info(f"on{k}", BOOL, []), _info(last, FLOAT, ["n"])],
        )  # fmt: skip
        nodes = [helper.make_node("Loop", ["m", "", taken], [f"y{k}"], body=body)]
        inner = f"y{k}"
    return _model(nodes, [("x", FLOAT, ["n"]), ("m", INT, [])], [(inner, FLOAT, ["n"])])


def concat(levels: int) -> onnx.ModelProto:
    """t = Concat(t, t), of open size."""
    nodes = [helper.make_node("Concat", [f"x{k}", f"x{k}"], [f"x{k + 1}"], axis=0) for k in range(levels)]
    return _model(nodes, [("x0", FLOAT, ["n"])], [(f"x{levels}", FLOAT, [None])])


def concat_axes(levels: int) -> onnx.ModelProto:
    """t = Concat(t, transposed t), of open sizes: each size is a sum of both."""
    nodes = []
    for k in range(levels):
        nodes += [
            helper.make_node("Transpose", [f"x{k}"], [f"t{k}"]),
            helper.make_node("Reshape", [f"t{k}", "flat"], [f"f{k}"]),
            helper.make_node("Reshape", [f"x{k}", "flat"], [f"g{k}"]),
            helper.make_node("Concat", [f"f{k}", f"g{k}"], [f"c{k}"], axis=0),
            helper.make_node("Shape", [f"x{k}"], [f"s{k}"]),
            helper.make_node("Mul", [f"s{k}", "scale"], [f"r{k}"]),
            helper.make_node("Reshape", [f"c{k}", f"r{k}"], [f"x{k + 1}"]),
        ]
    return _model(
        nodes,
        [("x0", FLOAT, ["m", "n"])],
        [(f"x{levels}", FLOAT, [None, None])],
        {"flat": np.array([-1]), "scale": np.array([2, 1])},
    )


def shape_sums(levels: int) -> onnx.ModelProto:
    """s = s + s·s/(s + 1) on a shape, by which a value is expanded at the end."""
    return _shapes(levels, lambda s, k: [
        helper.make_node("Mul", [s, s], [f"a{k}"]), helper.make_node("Add", [s, "one"], [f"b{k}"]),
        helper.make_node("Div", [f"a{k}", f"b{k}"], [f"d{k}"]), helper.make_node("Add", [f"d{k}", s], [f"s{k + 1}"]),
    ])  # fmt: skip


def shape_products(levels: int) -> onnx.ModelProto:
    """s = s · s on a shape."""
    return _shapes(levels, lambda s, k: [helper.make_node("Mul", [s, s], [f"s{k + 1}"])])


def shape_powers(levels: int) -> onnx.ModelProto:
    """s = s · (s + 1) on a shape."""
    return _shapes(
        levels,
        lambda s, k: [
            helper.make_node("Add", [s, "one"], [f"a{k}"]),
            helper.make_node("Mul", [s, f"a{k}"], [f"s{k + 1}"]),
        ],
    )


def shape_mix(levels: int) -> onnx.ModelProto:
    """s = max(s, (s + s mod 7) / 2) on a shape."""
    return _shapes(levels, lambda s, k: [
        helper.make_node("Mod", [s, "seven"], [f"a{k}"]), helper.make_node("Add", [s, f"a{k}"], [f"b{k}"]),
        helper.make_node("Div", [f"b{k}", "two"], [f"c{k}"]), helper.make_node("Max", [s, f"c{k}"], [f"s{k + 1}"]),
    ])  # fmt: skip


def _shapes(levels: int, step: Callable[[str, int], list[onnx.NodeProto]]) -> onnx.ModelProto:
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    for k in range(levels):
        nodes += step(f"s{k}", k)
    nodes.append(helper.make_node("Expand", ["v", f"s{levels}"], ["y"]))
    numbers = {"one": np.array([1]), "two": np.array([2]), "seven": np.array([7])}
    return _model(nodes, [("x", FLOAT, ["n"]), ("v", FLOAT, [1])], [("y", FLOAT, [None])], numbers)


def shape_of_expanded(levels: int) -> onnx.ModelProto:
    """Each step expands to a size made of that of the one before: n ↦ n·n + n."""
    nodes = []
    for k in range(levels):
        nodes += [
            helper.make_node("Shape", [f"x{k}"], [f"s{k}"]),
            helper.make_node("Mul", [f"s{k}", f"s{k}"], [f"q{k}"]),
            helper.make_node("Add", [f"q{k}", f"s{k}"], [f"r{k}"]),
            helper.make_node("Expand", ["v", f"r{k}"], [f"x{k + 1}"]),
        ]
    return _model(nodes, [("x0", FLOAT, ["n"]), ("v", FLOAT, [1])], [(f"x{levels}", FLOAT, [None])])


def data_products(levels: int) -> onnx.ModelProto:
    """t = t · t on an integer of the data, by which a value is expanded at the end."""
    nodes = [helper.make_node("Mul", [f"t{k}", f"t{k}"], [f"t{k + 1}"]) for k in range(levels)]
    nodes.append(helper.make_node("Expand", ["v", f"t{levels}"], ["y"]))
    return _model(nodes, [("t0", INT, [1]), ("v", FLOAT, [1])], [("y", FLOAT, [None])])


def data_sizes(levels: int) -> onnx.ModelProto:
    """A size of the data, doubled and cut by Tile and Slice at every step."""
    nodes = []
    for k in range(levels):
        nodes += [
            helper.make_node("Tile", [f"x{k}", "t"], [f"y{k}"]),
            helper.make_node("Slice", [f"y{k}", "t", "end"], [f"x{k + 1}"]),
        ]
    return _model(nodes, [("x0", FLOAT, ["n"]), ("t", INT, [1]), ("end", INT, [1])], [(f"x{levels}", FLOAT, [None])])


def product(levels: int) -> onnx.ModelProto:
    """t = t · t on values of open size."""
    nodes = [helper.make_node("Mul", [f"x{k}", f"x{k}"], [f"x{k + 1}"]) for k in range(levels)]
    return _model(nodes, [("x0", FLOAT, ["n"])], [(f"x{levels}", FLOAT, ["n"])])


def product_of_open(levels: int) -> onnx.ModelProto:
    """t = t · u, sizes open and different: each may be 1 or the other's."""
    inputs = [("x0", FLOAT, ["n0"]), *((f"u{k}", FLOAT, [f"m{k}"]) for k in range(levels))]
    nodes = [helper.make_node("Mul", [f"x{k}", f"u{k}"], [f"x{k + 1}"]) for k in range(levels)]
    return _model(nodes, inputs, [(f"x{levels}", FLOAT, [None])])


def transposed_product(levels: int) -> onnx.ModelProto:
    """t = t · tᵀ: each element reads two of those before."""
    nodes = []
    for k in range(levels):
        nodes += [
            helper.make_node("Transpose", [f"x{k}"], [f"t{k}"]),
            helper.make_node("Mul", [f"x{k}", f"t{k}"], [f"x{k + 1}"]),
        ]
    return _model(nodes, [("x0", FLOAT, ["n", "n"])], [(f"x{levels}", FLOAT, ["n", "n"])])


def sums_of_slices(levels: int) -> onnx.ModelProto:
    """t = t[1:] + t[:-1]: each element reads two of those before, of open size."""
    nodes = []
    for k in range(levels):
        nodes += [
            helper.make_node("Slice", [f"x{k}", "one", "most"], [f"a{k}"]), helper.make_node("Slice", [f"x{k}", "zero",
                "last"], [f"b{k}"]),
            helper.make_node("Add", [f"a{k}", f"b{k}"], [f"x{k + 1}"]),
        ]  # fmt: skip
    numbers = {"zero": np.array([0]), "one": np.array([1]), "last": np.array([-1]), "most": np.array([1 << 60])}
    return _model(nodes, [("x0", FLOAT, ["n"])], [(f"x{levels}", FLOAT, [None])], numbers)


def padded(levels: int) -> onnx.ModelProto:
    """t = Pad(t) + Pad(t), one to the left and one to the right: conditions around conditions."""
    nodes = []
    for k in range(levels):
        nodes += [
            helper.make_node("Pad", [f"x{k}", "left"], [f"a{k}"]), helper.make_node("Pad", [f"x{k}", "right"],
                [f"b{k}"]),
            helper.make_node("Add", [f"a{k}", f"b{k}"], [f"x{k + 1}"]),
        ]  # fmt: skip
    numbers = {"left": np.array([1, 0]), "right": np.array([0, 1])}
    return _model(nodes, [("x0", FLOAT, ["n"])], [(f"x{levels}", FLOAT, [None])], numbers)


def wheres(levels: int) -> onnx.ModelProto:
    """t = c ? t : u, conditions and values of the run: each element is read under the conditions of all steps behind
    it."""
    inputs: list[Input] = [("x0", FLOAT, ["n"])]
    inputs += [i for k in range(levels) for i in ((f"c{k}", BOOL, ["n"]), (f"u{k}", FLOAT, ["n"]))]
    return _model(
        [helper.make_node("Where", [f"c{k}", f"x{k}", f"u{k}"], [f"x{k + 1}"]) for k in range(levels)],
        inputs,
        [(f"x{levels}", FLOAT, ["n"])],
    )


def wheres_of_themselves(levels: int) -> onnx.ModelProto:
    """t = t > u ? t : v: the condition holds all conditions before."""
    inputs: list[Input] = [("x0", FLOAT, ["n"])]
    nodes = []
    for k in range(levels):
        inputs += [(f"u{k}", FLOAT, ["n"]), (f"v{k}", FLOAT, ["n"])]
        nodes += [
            helper.make_node("Greater", [f"x{k}", f"u{k}"], [f"c{k}"]), helper.make_node("Where", [f"c{k}", f"x{k}",
                f"v{k}"], [f"x{k + 1}"]),
        ]  # fmt: skip
    return _model(nodes, inputs, [(f"x{levels}", FLOAT, ["n"])])


def pads(levels: int) -> onnx.ModelProto:
    """Each step padded by numbers of its own, known only at run time."""
    inputs: list[Input] = [("x0", FLOAT, ["n", "m"]), *((f"p{k}", INT, [4]) for k in range(levels))]
    return _model(
        [helper.make_node("Pad", [f"x{k}", f"p{k}"], [f"x{k + 1}"]) for k in range(levels)],
        inputs,
        [(f"x{levels}", FLOAT, [None, None])],
    )


def slices(levels: int) -> onnx.ModelProto:
    """Of each step a slice whose start, end and step are known only at run time."""
    inputs: list[Input] = [
        ("x0", FLOAT, ["n"]),
        *((f"{bound}{k}", INT, [1]) for k in range(levels) for bound in ("start", "end", "step")),
    ]
    nodes = [
        helper.make_node("Slice", [f"x{k}", f"start{k}", f"end{k}", "axis", f"step{k}"], [f"x{k + 1}"])
        for k in range(levels)
    ]
    return _model(nodes, inputs, [(f"x{levels}", FLOAT, [None])], {"axis": np.array([0])})


def expands(levels: int) -> onnx.ModelProto:
    """Each step broadcast with a shape of its own, known only at run time: a size is that of the step before, or where
    it is 1 the shape's."""
    inputs: list[Input] = [("x0", FLOAT, ["n", "m"]), *((f"s{k}", INT, [2]) for k in range(levels))]
    return _model(
        [helper.make_node("Expand", [f"x{k}", f"s{k}"], [f"x{k + 1}"]) for k in range(levels)],
        inputs,
        [(f"x{levels}", FLOAT, [None, None])],
    )


def tiles(levels: int) -> onnx.ModelProto:
    """Each step repeated a number of times of its own, known only at run time."""
    inputs: list[Input] = [("x0", FLOAT, ["n", "m"]), *((f"t{k}", INT, [2]) for k in range(levels))]
    return _model(
        [helper.make_node("Tile", [f"x{k}", f"t{k}"], [f"x{k + 1}"]) for k in range(levels)],
        inputs,
        [(f"x{levels}", FLOAT, [None, None])],
    )


def compressed(levels: int) -> onnx.ModelProto:
    """Of each step the columns that conditions of its own choose."""
    inputs: list[Input] = [("x0", FLOAT, ["n", "m"]), *((f"c{k}", BOOL, [f"k{k}"]) for k in range(levels))]
    nodes = [helper.make_node("Compress", [f"x{k}", f"c{k}"], [f"x{k + 1}"], axis=1) for k in range(levels)]
    return _model(nodes, inputs, [(f"x{levels}", FLOAT, [None, None])])


def pools(levels: int) -> onnx.ModelProto:
    """Each step half as large, rounded up."""
    nodes = [
        helper.make_node("MaxPool", [f"x{k}"], [f"x{k + 1}"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
        for k in range(levels)
    ]
    return _model(nodes, [("x0", FLOAT, ["n", 3, "h", "w"])], [(f"x{levels}", FLOAT, ["n", 3, None, None])])


def products_of_matrices(levels: int) -> onnx.ModelProto:
    """Each step times a matrix of its own, all sizes open: the same kernel, under other names of sizes."""
    inputs: list[Input] = [
        ("x0", FLOAT, ["n", "m0"]),
        *((f"w{k}", FLOAT, [f"m{k}", f"m{k + 1}"]) for k in range(levels)),
    ]
    return _model(
        [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"]) for k in range(levels)],
        inputs,
        [(f"x{levels}", FLOAT, ["n", f"m{levels}"])],
    )


def function_of_itself(levels: int) -> onnx.ModelProto:
    """f(x) = g(g(x)), g(x) = h(h(x)), …: 2ⁿ calls one after another, which must be refused."""
    return _functions(
        levels,
        lambda f: [helper.make_node(f, ["a"], ["t"], domain="own"), helper.make_node(f, ["t"], ["b"], domain="own")],
    )


def function_twice(levels: int) -> onnx.ModelProto:
    """f(x) = g(x) + g(x), g(x) = h(x) + h(x), …: the same call twice."""
    return _functions(levels, lambda f: [
        helper.make_node(f, ["a"], ["s"], domain="own"), helper.make_node(f, ["a"], ["t"], domain="own"),
        helper.make_node("Add", ["s", "t"], ["b"]),
    ])  # fmt: skip


def _functions(levels: int, body: Callable[[str], list[onnx.NodeProto]]) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function("own", f"f{levels}", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)
    ]
    functions += [helper.make_function("own", f"f{k}", ["a"], ["b"], body(f"f{k + 1}"), opsets) for k in range(levels)]
    nodes = [helper.make_node("f0", ["x"], ["y"], domain="own")]
    return _model(nodes, [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])], functions=functions, opsets=opsets)


def constants(levels: int) -> onnx.ModelProto:
    """A constant that doubles with every step and is summed up at last: 2³⁰ elements from a few hundred bytes."""
    nodes = [helper.make_node("Concat", [f"x{k}", f"x{k}"], [f"x{k + 1}"], axis=0) for k in range(levels)]
    nodes += [
        helper.make_node("ReduceSum", [f"x{levels}"], ["s"], keepdims=0),
        helper.make_node("Add", ["s", "x"], ["y"]),
    ]
    return _model(nodes, [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])], {"x0": np.ones(1, np.float32)})


# -- wide models ------------------------------------------------------------------------------------------------------


def nodes_in_a_row(count: int) -> onnx.ModelProto:
    """Elementwise nodes, one after another, of eight kinds."""
    kinds = ("Relu", "Neg", "Sigmoid", "Abs", "Tanh", "Sqrt", "Exp", "Add")
    nodes = []
    for k in range(count):
        kind = kinds[k % len(kinds)]
        nodes.append(helper.make_node(kind, [f"x{k}", *(["x0"] if kind == "Add" else [])], [f"x{k + 1}"]))
    return _model(nodes, [("x0", FLOAT, ["n"])], [(f"x{count}", FLOAT, ["n"])])


def nodes_all_different(count: int) -> onnx.ModelProto:
    """As `nodes_in_a_row`, each Add of a constant of its own: hardly any two kernels are alike."""
    nodes = [
        helper.make_node(("Add", "Mul", "Sub", "Max")[k % 4], [f"x{k}", f"c{k}"], [f"x{k + 1}"]) for k in range(count)
    ]
    numbers = {f"c{k}": np.array(1 + k / count, np.float32) for k in range(count)}
    return _model(nodes, [("x0", FLOAT, ["n"])], [(f"x{count}", FLOAT, ["n"])], numbers)


def nodes_side_by_side(count: int) -> onnx.ModelProto:
    """Elementwise nodes of one input, all summed up by one Sum."""
    kinds = ("Relu", "Neg", "Sigmoid", "Abs", "Tanh", "Exp", "Sin", "Cos")
    nodes = []
    for k in range(count // 2):
        nodes += [
            helper.make_node("Add", ["x", f"c{k}"], [f"a{k}"]),
            helper.make_node(kinds[k % len(kinds)], [f"a{k}"], [f"b{k}"]),
        ]
    nodes.append(helper.make_node("Sum", [f"b{k}" for k in range(count // 2)], ["y"]))
    return _model(
        nodes,
        [("x", FLOAT, ["n"])],
        [("y", FLOAT, ["n"])],
        {f"c{k}": np.array(k / count, np.float32) for k in range(count // 2)},
    )


def outputs(count: int) -> onnx.ModelProto:
    """Each output another sum."""
    nodes = [helper.make_node("Add", ["x", f"c{k}"], [f"y{k}"]) for k in range(count)]
    return _model(
        nodes,
        [("x", FLOAT, ["n"])],
        [(f"y{k}", FLOAT, ["n"]) for k in range(count)],
        {f"c{k}": np.array(k, np.float32) for k in range(count)},
    )


def outputs_in_a_row(count: int) -> onnx.ModelProto:
    """A chain, each value an output."""
    nodes = [helper.make_node(("Relu", "Neg", "Abs", "Exp")[k % 4], [f"y{k}"], [f"y{k + 1}"]) for k in range(count)]
    return _model(nodes, [("y0", FLOAT, ["n"])], [(f"y{k + 1}", FLOAT, ["n"]) for k in range(count)])


def concat_wide(count: int) -> onnx.ModelProto:
    """One Concat of many inputs of open size."""
    inputs = [(f"x{k}", FLOAT, ["n", 3]) for k in range(count)]
    return _model(
        [helper.make_node("Concat", [n for n, _, _ in inputs], ["y"], axis=0)], inputs, [("y", FLOAT, [None, 3])]
    )


def concat_computed(count: int) -> onnx.ModelProto:
    """One Concat along the last axis of many computed pieces of three columns."""
    nodes = [helper.make_node(("Add", "Mul", "Sub")[k % 3], ["x", f"c{k}"], [f"p{k}"]) for k in range(count)]
    nodes.append(helper.make_node("Concat", [f"p{k}" for k in range(count)], ["y"], axis=1))
    numbers = {f"c{k}": np.array(k, np.float32) for k in range(count)}
    return _model(nodes, [("x", FLOAT, ["n", 3])], [("y", FLOAT, ["n", 3 * count])], numbers)


def split_wide(count: int) -> onnx.ModelProto:
    """One Split into many outputs."""
    outputs = [(f"y{k}", FLOAT, [4, 3]) for k in range(count)]
    return _model(
        [helper.make_node("Split", ["x"], [n for n, _, _ in outputs], axis=0, num_outputs=count)],
        [("x", FLOAT, [4 * count, 3])],
        outputs,
    )


def split_concat(count: int) -> onnx.ModelProto:
    """One Split into many pieces, put together in the opposite order by one Concat."""
    pieces = [f"p{k}" for k in range(count)]
    nodes = [
        helper.make_node("Split", ["x"], pieces, axis=1, num_outputs=count),
        helper.make_node("Concat", pieces[::-1], ["y"], axis=1),
    ]
    return _model(nodes, [("x", FLOAT, ["n", 4 * count])], [("y", FLOAT, ["n", 4 * count])])


CHAINS: dict[str, Callable[[int], onnx.ModelProto]] = {
    f.__name__: f
    for f in (
        gather, gather_of_itself, gather_arithmetic, gather_elements, nested_if, nested_if_failing, nested_loop, concat,
        concat_axes, shape_sums,
        shape_products, shape_powers, shape_mix, shape_of_expanded, data_products, data_sizes, product, product_of_open,
        transposed_product,
        sums_of_slices, padded, wheres, wheres_of_themselves, pads, slices, expands, tiles, compressed, pools,
        products_of_matrices, function_of_itself,
        function_twice, constants,
    )
}  # fmt: skip
"""Kind → the model of so many steps."""
WIDE: dict[str, tuple[Callable[[int], onnx.ModelProto], int]] = {
    f.__name__: (f, count)
    for f, count in (
        (nodes_in_a_row, 10_000), (nodes_all_different, 10_000), (nodes_side_by_side, 10_000), (outputs, 3_000),
        (outputs_in_a_row, 3_000),
        (concat_wide, 5_000), (concat_computed, 5_000), (split_wide, 5_000), (split_concat, 5_000),
    )
}  # fmt: skip
"""Kind → the model of so many nodes, outputs or pieces, and how many."""
REFUSED = ("function_of_itself",)
"""Chains that are work without end and are refused, if they are long."""


def _info(name: str, dtype: int, shape: Sequence[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[Input], outputs: Sequence[Input], constants: dict[str,
        np.ndarray[Any, Any]] | None = None,
    functions: Sequence[onnx.FunctionProto] = (), opsets: Sequence[onnx.OperatorSetIdProto] = (),
) -> onnx.ModelProto:  # fmt: skip
    tensors = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "growth", [_info(*i) for i in inputs], [_info(*o) for o in outputs], tensors)
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=list(opsets) or [helper.make_opsetid("", OPSET)], functions=list(functions), ir_version=10
    )
    return model


# -- measuring --------------------------------------------------------------------------------------------------------


CODE = """
import json, resource, sys, time
from benchmarks.growth import model_of
import weft
kind, count = sys.argv[1], int(sys.argv[2])
data = model_of(kind, count).SerializeToString()
# What the first compilation of a process imports and starts
weft.compile(model_of("gather", 1).SerializeToString(), cache=False)
began, cpu = time.perf_counter(), time.process_time()
error = None
try:
    weft.compile(data, cache=False)
except weft.WeftError as e:
    error = str(e)
seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
print(json.dumps({"seconds": seconds, "cpu": cpu, "bytes": len(data), "peak": peak, "error": error}))
"""


def model_of(kind: str, count: int) -> onnx.ModelProto:
    """A model of a kind by name, of so many steps, nodes, outputs or pieces."""
    return CHAINS[kind](count) if kind in CHAINS else WIDE[kind][0](count)


def measure(kind: str, count: int, limit: float) -> dict[str, Any]:
    """Seconds of the clock and of the process, the model's bytes, the process's peak in MiB, and the message of a
    refusal; "failed" if it ended otherwise."""
    found: dict[str, Any] = {"kind": kind, "count": count}
    try:
        done = subprocess.run(
            [sys.executable, "-c", CODE, kind, str(count)], capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {**found, "failed": f"more than {limit:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {**found, "failed": lines[-1] if lines else f"ended with {done.returncode}"}
    return {**found, **json.loads(done.stdout)}


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kinds", help=f"names separated by commas, of {', '.join([*CHAINS, *WIDE])} [all]")
    parser.add_argument("--levels", default="10,20,30", help="steps of the chains [%(default)s]")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds after which a compilation is given up [%(default)s]"
    )
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    results = []
    for kind in chosen(options.kinds, [*CHAINS, *WIDE], "kind"):
        for count in map(int, options.levels.split(",")) if kind in CHAINS else (WIDE[kind][1],):
            print(f"{kind} {count} …", file=sys.stderr, flush=True)
            results.append(measure(kind, count, options.limit))
            if "failed" in results[-1]:
                break
    rows, within = [], True
    for r in results:
        limit = CHAIN_LIMIT if r["kind"] in CHAINS else WIDE_LIMIT
        if "failed" in r:
            rows.append([r["kind"], str(r["count"]), "", "", "", "", f"{limit:g}", r["failed"][:60]])
            within = False
            continue
        seconds = min(r["seconds"], r["cpu"])
        within &= seconds <= limit and (r["error"] is None or r["kind"] in REFUSED)
        verdict = judge(seconds, limit) + (", refused" if r["error"] else "")
        rows.append(
            [
                r["kind"],
                str(r["count"]),
                f"{r['seconds']:.2f}",
                f"{r['cpu']:.2f}",
                str(r["bytes"]),
                str(r["peak"]),
                f"{limit:g}",
                verdict,
            ]
        )
    print_table(
        f"Seconds to compile, {machine()['cpu']}",
        ["model", "size", "s", "cpu s", "bytes", "peak MiB", "limit s", ""],
        rows,
        right=(1, 2, 3, 4, 5, 6),
    )
    write_report(options, results=results)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
