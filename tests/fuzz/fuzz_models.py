"""Model files that are not what they should be: ONNX's and Darknet's frontends and the graph passes on what they let
through.

python -m tests.fuzz.fuzz_models --seconds 600
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from tests.fuzz.harness import Target, main
from tests.fuzz.mutations import change_lines, change_message

LARGEST_SEED = 8192
CFG = b"[net"


def seeds(folder: Path) -> None:
    """The smallest model of each of ONNX's operators, with inputs and with constants; models of many parts; Darknet's
    layers."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from tests.onnx_backend.node_cases import cases

    smallest: dict[str, Any] = {}
    for case in cases().values():
        key = "+".join(sorted({n.op_type for n in case.model.graph.node}))
        if key not in smallest or case.model.ByteSize() < smallest[key].model.ByteSize():
            smallest[key] = case
    for key, case in smallest.items():
        name = key.lower()[:80]
        if case.model.ByteSize() <= LARGEST_SEED:
            (folder / f"{name}.onnx").write_bytes(case.model.SerializeToString())
        if case.data_sets:
            # The same with data for all inputs but the first, as exported models have it.
            model = onnx.ModelProto.FromString(case.model.SerializeToString())
            given = list(zip(list(model.graph.input), case.data_sets[0][0]))[1:]
            for info, data in given:
                if isinstance(data, (np.ndarray, np.generic)) and np.asarray(data).dtype.kind in "biuf":
                    model.graph.initializer.append(numpy_helper.from_array(np.asarray(data), info.name))
                    model.graph.input.remove(info)
            if given and model.ByteSize() <= LARGEST_SEED:
                (folder / f"{name}-constants.onnx").write_bytes(model.SerializeToString())
    node = helper.make_node
    w = numpy_helper.from_array(np.arange(2 * 3 * 3 * 3, dtype=np.float32).reshape(2, 3, 3, 3), "w")
    elsewhere = TensorProto(name="b", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    elsewhere.external_data.add(key="location", value="b.bin")
    many = helper.make_graph(
        [
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
            node("Shape", ["c"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Concat", ["n", "rest"], ["t"], axis=0),
            node("Reshape", ["c", "t"], ["r"]),
            node("Twice", ["r"], ["y"], domain="own"),
        ],
        "many",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [w, numpy_helper.from_array(np.array([0]), "zero"), numpy_helper.from_array(np.array([-1]), "rest")],
    )
    own = helper.make_function(
        "own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    whole = helper.make_model(many, opset_imports=imports, functions=[own], ir_version=10)
    (folder / "many.onnx").write_bytes(whole.SerializeToString())
    whole.graph.initializer.append(elsewhere)
    whole.graph.node[0].input.append("b")
    (folder / "external.onnx").write_bytes(whole.SerializeToString())
    layers = [
        "convolutional",
        "maxpool",
        "avgpool",
        "connected",
        "shortcut",
        "route",
        "upsample",
        "softmax",
        "yolo",
        "dropout",
        "local",
        "reorg",
        "region",
    ]
    for layer in layers:
        values = {"convolutional": "filters=2\nsize=3\nstride=1\npad=1\nactivation=leaky\nbatch_normalize=1",
        "maxpool": "size=2\nstride=2",
                  "connected": "output=4\nactivation=linear", "shortcut": "from=-2\nactivation=linear",
                  "route": "layers=-1,-2", "upsample": "stride=2",
                  "yolo": "mask=0\nanchors=1,2\nclasses=1\nnum=1", "reorg": "stride=2"}.get(layer, "")  # fmt: skip
        conv = "[convolutional]\nfilters=3\nsize=1\nstride=1\nactivation=linear\n"
        text = f"[net]\nwidth=8\nheight=8\nchannels=3\n{conv}{conv}[{layer}]\n{values}\n"
        (folder / f"{layer}.cfg").write_bytes(text.encode())


def target() -> Target:
    import onnx

    import weft
    from weft.errors import PluginError, WeftError
    from weft.graph.verify import verify
    from weft.passes.pipeline import run_passes
    from weft_darknet.layers import BYTES  # noqa: F401 - instrumented here
    from weft_onnx.importer import import_model  # noqa: F401

    def one(data: bytes) -> None:
        try:
            if data.lstrip()[:4] == CFG:
                graph = weft.load(data, frontend="darknet", weights=b"")
            else:
                graph = weft.load(data, frontend="onnx")
            verify(graph)
            run_passes(graph)
        except PluginError as error:
            raise error.__cause__ or error from None  # a plugin that failed is to be mended, however well it was said
        except WeftError as error:
            assert error.what.strip(), "an error without a text"

    def change(data: bytes, chance: random.Random) -> bytes | None:
        if data.lstrip()[:4] == CFG:
            return change_lines(data, chance)
        try:
            model = onnx.ModelProto.FromString(data)
        except Exception:  # noqa: BLE001 - the decoder's own class of error
            return None
        try:
            for _ in range(chance.choice((1, 1, 2, 3))):
                change_message(model, chance)
            return model.SerializeToString()
        except Exception:  # noqa: BLE001 - a text that is none
            return None

    return Target("tests.fuzz.fuzz_models", seeds, one, change)


if __name__ == "__main__":
    main(target, sys.argv[1:])
