"""Writes the models of the demo page: shapes in pictures, and the language of a text.

    python bindings/javascript/demo/make.py         writes shapes.wasm and languages.wasm beside this file
    python -m http.server -d bindings/javascript    then open http://localhost:8000/demo/

Both are fitted here in seconds: a convolution with random filters, of which a linear layer is fitted by least squares
(Rahimi and Recht, Weighted sums of random kitchen sinks, NIPS 2008), and counts of letter pairs, weighted by how likely
each is in a language (naive Bayes).
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import weft

Array = np.ndarray[Any, Any]
SIDE, FILTERS = 32, 24
SHAPES = ("circle", "square", "triangle", "cross")
LETTERS = " abcdefghijklmnopqrstuvwxyz"
# Of each language a sentence, and its commonest words.
TEXTS = {
    "English": (
        "the old man walked slowly down to the river because he wanted to see whether the boats had "
        "come back with the morning light and what they would bring to the people who were waiting "
        "there for something to eat this year the of and to in is you that it he was for on are as with "
        "his they at be this have from or what which when your said there use an each how their if will "
        "up other about out many then them these so some her would make like him into has look two more "
        "write go see no way could people than first been call who its now find long down day did get "
        "come made may part"
    ),
    "German": (
        "der alte mann ging langsam zum fluss hinunter weil er sehen wollte ob die boote mit dem licht "
        "des morgens wieder gekommen waren und was sie den menschen bringen die dort auf etwas zu essen "
        "warten und nicht mehr schlafen der die und in den von zu das mit sich des auf ist im dem nicht "
        "ein eine als auch es an werden aus er hat dass sie nach wird bei einer um am sind noch wie "
        "einem so zum war haben nur oder aber vor zur bis mehr durch man sein wurde sei wir ich uns "
        "dieser welche"
    ),
    "French": (
        "le vieil homme descendait lentement vers la riviere parce qu il voulait voir si les bateaux "
        "etaient revenus avec la lumiere du matin et ce qu ils apporteraient aux gens qui attendaient "
        "quelque chose pour manger dans la ville de la le et les des en un du une que est pour qui dans "
        "a par plus pas au sur ne se ce il sont avec ou mais comme on nous cette leur elle aux tout "
        "fait deux si aussi bien vous sans peut ces quelle etre"
    ),
    "Spanish": (
        "el viejo caminaba despacio hacia el rio porque queria ver si los barcos habian vuelto con la "
        "luz de la manana y lo que traerian para la gente que esperaba algo que comer en el pueblo "
        "donde no habia nada desde hace dias de la que el en y a los se del las un por con no una su "
        "para es al lo como mas pero sus le ya o este si porque esta entre cuando muy sin sobre tambien "
        "me hasta hay donde quien desde todo nos durante todos uno les ni contra otros ese eso ante "
        "ellos"
    ),
}


def drawn(shape: str, random: np.random.Generator) -> Array:
    """A picture of a shape, [SIDE, SIDE]: 1 is ink, 0 paper."""
    size, turn = random.uniform(7, 13), random.uniform(-0.3, 0.3)
    cy, cx = random.uniform(SIDE / 2 - 3, SIDE / 2 + 3, 2)
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    u = ((x - cx) * np.cos(turn) + (y - cy) * np.sin(turn)) / size
    v = ((y - cy) * np.cos(turn) - (x - cx) * np.sin(turn)) / size
    inside = {
        "circle": u * u + v * v < 1,
        "square": np.maximum(abs(u), abs(v)) < 0.85,
        "triangle": (v < 0.7) & (v > 2 * abs(u) - 1),
        "cross": (np.minimum(abs(u), abs(v)) < 0.28) & (np.maximum(abs(u), abs(v)) < 1),
    }[shape]
    return np.clip(inside + random.normal(0, 0.05, inside.shape), 0, 1).astype(np.float32)


def features() -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """From pictures [n, 1, SIDE, SIDE] to "f" [n, FILTERS·16]."""
    random = np.random.default_rng(0)
    filters = random.standard_normal((FILTERS, 1, 7, 7)).astype(np.float32)
    filters -= filters.mean(axis=(2, 3), keepdims=True)
    held = {"filters": filters, "flat": np.array([0, -1])}
    nodes = [
        helper.make_node("Conv", ["x", "filters"], ["c"], kernel_shape=[7, 7], pads=[3] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("AveragePool", ["r"], ["p"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Reshape", ["p", "flat"], ["f"]),
    ]
    return nodes, [numpy_helper.from_array(a, n) for n, a in held.items()]


def model(
    name: str, nodes: list[Any], held: list[Any], shape: list[Any], out: str, classes: int | str
) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, name, [value("x", TensorProto.FLOAT, shape)], [value(out, TensorProto.FLOAT, ["n", classes])], held
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def shapes() -> onnx.ModelProto:
    """Probabilities of SHAPES for one picture."""
    nodes, held = features()
    size = FILTERS * (SIDE // 8) ** 2
    seen = weft.compile(model("features", nodes, held, ["n", 1, SIDE, SIDE], "f", size), "llvm")
    random = np.random.default_rng(1)
    labels = np.tile(np.arange(len(SHAPES)), 300)
    f = seen.run({"x": np.stack([drawn(SHAPES[k], random) for k in labels])[:, None]})["f"]
    scale = f.std() or 1.0
    f = np.concatenate([f / scale, np.ones((len(f), 1))], axis=1)
    w = np.linalg.solve(f.T @ f + 1.0 * np.eye(f.shape[1]), f.T @ np.eye(len(SHAPES))[labels])
    more = {"w": w[:-1] / scale * 8, "b": w[-1] * 8}  # so that a margin of a half is a probability near 1
    held += [numpy_helper.from_array(a.astype(np.float32), n) for n, a in more.items()]
    nodes += [helper.make_node("Gemm", ["f", "w", "b"], ["s"]), helper.make_node("Softmax", ["s"], ["y"], axis=-1)]
    return model("shapes", nodes, held, [1, 1, SIDE, SIDE], "y", len(SHAPES))


def pairs(text: str) -> Array:
    """How often each pair of LETTERS stands in a text, [27·27]: other characters are spaces."""
    codes = [max(0, LETTERS.find(c)) for c in f" {text.lower()} "]
    return np.bincount([a * 27 + b for a, b in pairwise(codes) if a or b], minlength=27 * 27).astype(np.float32)


def languages() -> onnx.ModelProto:
    """Probabilities of the languages of TEXTS for one count of pairs."""
    counts = np.stack([pairs(text) for text in TEXTS.values()], axis=1) + 0.3
    w = np.log(counts / counts.sum(axis=0)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node("Softmax", ["s"], ["y"], axis=-1)]
    return model("languages", nodes, [numpy_helper.from_array(w, "w")], [1, 27 * 27], "y", len(TEXTS))


def main(folder: Path) -> None:
    for make in (shapes, languages):
        path = folder / f"{make.__name__}.wasm"
        weft.export(make(), path)
        print(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
