"""Saved models to begin with, of every kind of step, and changes of them whose hashes are right."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz import fuzz_archives
from tests.fuzz.mutations import change_bytes, change_json
from tests.runtime.archives import members_of, zipped

import weft
import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import Var
from weft.graph.nodes import GraphBuilder, TensorType, tensor_type
from weft_runtime.archive import MANIFEST, WEIGHTS, hash_pieces
from weft_runtime.plan import ObjectInfo, TensorInfo

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "bool",
    "int4",
    "complex64",
    "string",
    "float8_e4m3fn",
)
SIZE = 3
"""Of every open size of random inputs."""


def seeds() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fuzz_archives.seeds(folder)

        def save(builder: GraphBuilder) -> None:
            graph = builder.build()
            weft.compile(graph, "llvm -threads=2", cache=False).save(folder / f"{graph.name}.weft")

        vector = tensor_type("float32", (Var("n", dt.int64),))
        index = TensorType(dt.int64, ())
        inner = GraphBuilder("body")
        inner.input("k", index)
        v, w = inner.input("v", vector), inner.input("w", vector)
        total = inner.add(ops.Add(), v, w)
        inner.output(total, "total")
        inner.output(inner.add(ops.Negative(), total), "each")
        g = GraphBuilder("looping")
        x, trips = g.input("x", vector), g.input("trips", index)
        last, every = g.add_all(ops.Loop(inner.build(), 1, False, None, (), (), (0,), (False,)), trips, None, x, x)
        g.output(last, "last")
        g.output(every, "every")
        save(g)

        sides = []
        for op in (ops.Negative(), ops.Relu()):
            b = GraphBuilder(type(op).__name__)
            b.output(b.add(op, b.input("v", vector)), "y")
            sides.append(b.build())
        g = GraphBuilder("branching")
        test, x = g.input("test", TensorType(dt.bool_, ())), g.input("x", vector)
        g.output(g.add(ops.If(*sides), test, x, x), "y")
        save(g)

        g = GraphBuilder("words")  # steps on the host alone: no code
        a, b_ = (g.input(k, tensor_type("string", (Var("n", dt.int64),))) for k in "ab")
        g.output(g.add(ops.SequenceConstruct(), g.add(ops.StringConcat(), a, b_), a), "y")
        save(g)

        g = GraphBuilder("looking_up")  # indices that were checked when it was compiled
        x = g.input("x", tensor_type("float32", (2, 5)))
        g.output(g.add(ops.Gather(1), x, g.constant(np.array([4, 0, 2, 2]), "picked")), "y")
        save(g)
        return {path.stem: path.read_bytes() for path in sorted(folder.iterdir())}


def changed(data: bytes, chance: random.Random) -> bytes:
    """Another manifest, of right form or not, or other weights with their hash; the hashes of code are right, as the
    code is what it was."""
    members = members_of(data)
    tree = json.loads(members[MANIFEST])
    way = chance.random()
    if way < 0.1:
        return zipped({**members, MANIFEST: _same(tree, chance)})
    if way < 0.2 and WEIGHTS in members:
        weights = change_bytes(members[WEIGHTS], chance)
        tree["weights"].update(bytes=len(weights), sha256=hash_pieces([memoryview(weights)])[0])
        return zipped({**members, MANIFEST: json.dumps(tree).encode(), WEIGHTS: weights})
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if chance.random() < 0.5:
            _change_plan(tree, chance)
        else:
            change_json(tree, chance)
    return zipped({**members, MANIFEST: json.dumps(tree).encode()})


def _same(tree: dict[str, Any], chance: random.Random) -> bytes:
    """Another text of the same manifest."""
    keys = list(tree)
    chance.shuffle(keys)
    more = {f"x{chance.randrange(99)}": chance.choice((1, None, "text", [], {"y": 2}))}
    return json.dumps(
        {**more, **{k: tree[k] for k in keys}}, indent=chance.choice((None, 0, 3)), ensure_ascii=chance.random() < 0.5
    ).encode()


def _change_plan(tree: dict[str, Any], chance: random.Random) -> None:
    """A change that leaves a manifest of right form, and makes it one for other code: counts, types, sizes, inputs,
    constants, steps."""
    way = chance.randrange(7)
    try:
        values = [
            v
            for p in (tree, *tree.get("plans", ()))
            for k in ("inputs", "outputs", "values")
            for v in p.get(k, ())
            if isinstance(v, dict)
        ]
        values += [c for c in tree.get("constants", ()) if isinstance(c, dict)]
        steps = [s for p in (tree, *tree.get("plans", ())) for s in p.get("steps", ()) if isinstance(s, dict)]
        if way == 0:
            chance.choice(values)["dtype"] = chance.choice(DTYPES)
        elif way == 1:
            shape = chance.choice(values)["shape"]
            at = chance.randrange(len(shape))
            shape[at] = chance.choice(
                (0, 1, 2, 7, 100, 1 << 20, "$0", "$0 2 *", "$0 0 //", "$0 neg", "$0 2 min", "$1", "$0 +", {"text": "n"})
            )
        elif way == 2:
            shape = chance.choice(values)["shape"]
            shape.append(1) if chance.random() < 0.5 else shape.pop()
        elif way == 3:
            a, b = chance.choice(values), chance.choice(values)
            a["name"], b["name"] = b["name"], a["name"]
        elif way == 4:
            names = chance.choice(steps)[chance.choice(("inputs", "outputs", "constants"))]
            (
                chance.shuffle(names)
                if chance.random() < 0.5
                else names.pop()
                if chance.random() < 0.5
                else names.append(chance.choice(values)["name"])
            )
        elif way == 5:
            entries = chance.choice(list(tree["sections"].values()))["entries"]
            key = chance.choice(list(entries))
            entries[key] = max(0, entries[key] + chance.choice((-16, -1, 1, 7, 64)))
        else:
            key = chance.choice(
                ("carried", "then", "orelse", "body", "arena", "parallel", "tests", "loops", "features", "machine")
            )
            where = chance.choice([t for t in (tree, *steps) if key in t])
            where[key] = chance.choice((0, 1, 2, True, False, "n", None, [], "any"))
    except (IndexError, KeyError, TypeError, AttributeError, ValueError):
        return


def random_input(info: TensorInfo) -> Any:
    """An input of this type, always the same; numbers that may be sizes, iterations or indices are SIZE."""
    if isinstance(info, ObjectInfo):
        return [np.zeros(SIZE, np.float32)]
    shape = tuple(d if isinstance(d, int) and d <= 100 else SIZE for d in info.shape)
    count = int(np.prod(shape)) if len(shape) < 32 else 1
    if info.dtype == "string":
        return np.array([f"word {k}" for k in range(count)], object).reshape(shape)
    of = dt.dtype(info.dtype)
    return (np.full(count, SIZE) if of.is_integer else np.arange(count) + 1).astype(of.numpy).reshape(shape)
