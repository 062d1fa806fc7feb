"""Saved models that are not what was saved: reading them, showing them, and that no code is taken whose bytes are
others.

python -m tests.fuzz.fuzz_archives --seconds 600
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from tests.fuzz.harness import Target, main
from tests.fuzz.mutations import change_bytes, change_json
from tests.runtime.archives import SIGNATURE, forged

MANIFEST, WEIGHTS, CODE = "manifest.json", "weights.safetensors", "code/"
MEMORY = next((folder for folder in (Path("/dev/shm"),) if os.access(folder, os.W_OK | os.X_OK)), None)
"""Where files cost least; None: where temporary files are."""


def seeds(folder: Path) -> None:
    """Saved models: one step, several with copies to a device and back, sizes that data say, checks, weights of many
    types."""
    import numpy as np
    from tests.mixed import board

    import weft
    from weft import dtypes as dt
    from weft.expr.nodes import Var
    from weft.graph.nodes import GraphBuilder, tensor_type
    from weft.plugins import host
    from weft_ops import Add, Cast, Gather, MatMul, Relu, Reshape
    from weft_ops.composing import Composer

    def save(name: str, builder: GraphBuilder, target: str = "llvm -threads=1") -> None:
        weft.compile(builder.build(), target, cache=False).save(folder / f"{name}.weft")

    g = GraphBuilder("one")
    x = g.input("x", tensor_type("float32", (2, 4)))
    g.output(g.add(Add(), x, g.constant(np.arange(4, dtype=np.float32), "w")), "y")
    save("one", g)
    g = GraphBuilder("sized")
    x = g.input("x", tensor_type("float32", (Var("n", dt.int64), 4)))
    i, shape = g.input("i", tensor_type("int64", (3,))), g.input("shape", tensor_type("int64", (2,)))
    y = Composer(g).gather(x, Composer(g).within(i, -4, 3, "index", "Gather"), 1)
    g.output(g.add(Reshape((g.symbol(shape, 0), g.symbol(shape, 1))), y), "y")
    save("sized", g, "llvm -threads=2")
    g = GraphBuilder("types")
    x = g.input("x", tensor_type("float32", (3,)))
    for k, kind in enumerate(("float16", "bfloat16", "int8", "uint64", "bool", "int4", "float8_e4m3fn")):
        data = g.constant(np.ones(3).astype(dt.dtype(kind).numpy), f"w{k}")
        g.output(g.add(Add(), x, g.add(Cast(dt.float32), data)), f"y{k}")
    save("types", g)
    host().register(board, "board")
    g = GraphBuilder("mixed")
    x = g.input("x", tensor_type("float32", (Var("n", dt.int64), 8)))
    y = g.add(MatMul(), x, g.constant(np.ones((8, 6), np.float32), "w"))
    y = g.add(Relu(), g.add(Add(), y, g.constant(np.ones(6, np.float32), "b")))
    g.output(g.add(Gather(1), y, g.constant(np.array([0, 5]), "picked")), "y")
    save("mixed", g, "board -ops=MatMul,Relu, llvm -threads=1")
    host().unregister("board")


def known_code() -> frozenset[str]:
    """The hashes of all code that seeds hold."""
    with tempfile.TemporaryDirectory() as name:
        seeds(Path(name))
        found = set()
        for path in Path(name).iterdir():
            with zipfile.ZipFile(path) as archive:
                found |= {
                    hashlib.sha256(archive.read(n)[:-SIGNATURE]).hexdigest()
                    for n in archive.namelist()
                    if n.startswith(CODE)
                }
    return frozenset(found)


def target() -> Target:
    from weft.errors import WeftError
    from weft_runtime import Executable

    real = known_code()
    handle, name = tempfile.mkstemp(suffix=".weft", dir=MEMORY)
    os.close(handle)
    path = Path(name)

    def one(data: bytes) -> None:
        path.write_bytes(data)
        for way in (Executable.inspect, Executable.load):
            try:
                found: Any = way(path)
                (found.plan() if way is Executable.inspect else found.plan), repr(found)
                if way is Executable.load:
                    taken = {hashlib.sha256(code).hexdigest() for code in found._code.values()}
                    assert taken <= real, "code was taken whose bytes are not those that were saved"
                    if found.inputs:  # without them it would run
                        found.run({})
            except WeftError as error:
                assert error.what.strip(), "an error without a text"

    return Target("tests.fuzz.fuzz_archives", seeds, one, change)


def change(data: bytes, chance: random.Random) -> bytes | None:
    """Another manifest, other weights, other code, members that are renamed, missing or there twice; the zip itself is
    sound.

    Where the manifest and weights alone are changed, the code is mostly signed for it, so that what is behind the
    signature is reached.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(i.filename, archive.read(i)) for i in archive.infolist()]
    except Exception:  # noqa: BLE001 - whatever a damaged zip raises
        return None
    signs = chance.random() < 0.8
    for _ in range(chance.choice((1, 1, 2, 4))):
        if not members:
            break
        at, way = chance.randrange(len(members)), chance.random()
        name, content = members[at]
        if way < 0.7:
            at = next((k for k, (n, _) in enumerate(members) if n == MANIFEST), at)
            members[at] = members[at][0], _changed_manifest(members, at, chance)
            continue
        signs = signs and name == WEIGHTS and way < 0.9  # code that is another one would be signed as well
        if way < 0.9:
            members[at] = name, change_bytes(content, chance)
            _agree(members, name, chance)
        elif way < 0.93:
            del members[at]
        elif way < 0.96:
            members.append((name, content))
        else:
            members[at] = chance.choice((MANIFEST, WEIGHTS, CODE, CODE + "main", "../x", "")), content
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED if chance.random() < 0.02 else zipfile.ZIP_STORED) as archive:
        for name, content in members:
            try:
                archive.writestr(zipfile.ZipInfo(name), content)
            except Exception:  # noqa: BLE001 - a name that a zip cannot have
                continue
    return forged(made.getvalue()) if signs else made.getvalue()


def _changed_manifest(members: list[tuple[str, bytes]], at: int, chance: random.Random) -> bytes:
    try:
        tree = json.loads(members[at][1])
    except ValueError:
        return change_bytes(members[at][1], chance)
    change_json(tree, chance)
    return json.dumps(tree).encode()


def _agree(members: list[tuple[str, bytes]], name: str, chance: random.Random) -> None:
    """Mostly the manifest has the size and the hash of changed weights, so that what is behind the hash is reached;
    never that of code."""
    at = next((k for k, (n, _) in enumerate(members) if n == MANIFEST), None)
    if name != WEIGHTS or at is None or chance.random() < 0.1:
        return
    from weft_runtime.archive import hash_pieces

    try:
        tree = json.loads(members[at][1])
        content = dict(members)[WEIGHTS]
        tree["weights"]["bytes"], tree["weights"]["sha256"] = len(content), hash_pieces([memoryview(content)])[0]
        members[at] = MANIFEST, json.dumps(tree).encode()
    except (ValueError, TypeError, KeyError):
        return


if __name__ == "__main__":
    main(target, sys.argv[1:])
