"""The benchmarks' own architectures: what they stress is in them, and what Weft makes of them is right."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.arguments import chosen_models
from benchmarks.models import EVERY, NAMES, export, twin
from benchmarks.own_models import OWN

import weft
from weft.graph.evaluate import evaluate


def attributes(node: Any) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


@pytest.fixture(scope="module")
def twins() -> dict[str, Any]:
    """Two blocks of everything, so that shifted windows and blocks of stride one are there."""
    return {name: twin(name, layers=2)[0] for name in OWN}


@pytest.mark.parametrize("name", OWN)
def test_a_twin_is_a_sound_model(name: str, twins: dict[str, Any]) -> None:
    onnx.checker.check_model(twins[name], full_check=True)


def test_what_each_stresses(twins: dict[str, Any]) -> None:
    kinds = {name: Counter(n.op_type for n in m.graph.node) for name, m in twins.items()}
    convolutions = {name: [attributes(n) for n in m.graph.node if n.op_type == "Conv"] for name, m in twins.items()}
    assert kinds["efficientnet_b0"]["ReduceMean"] == 12 + 1 and {5} <= {
        a["kernel_shape"][0] for a in convolutions["efficientnet_b0"] if a["group"] > 1
    }
    assert {a["group"] for a in convolutions["resnext_deeplab"]} == {1, 32}
    assert {a["dilations"][0] for a in convolutions["resnext_deeplab"]} == {1, 2, 6, 12} and kinds["resnext_deeplab"][
        "Resize"
    ] == 1
    assert [a["kernel_shape"][0] for a in convolutions["convnext_tiny"] if a["group"] > 1] == [7] * 8
    assert kinds["swin_tiny"]["Softmax"] == 8
    assert (
        kinds["swin_tiny"]["Concat"] == 3 * 4 + 3
    )  # four rolls in each of the three stages that shift, and three mergers of patches
    assert (
        kinds["whisper_encoder"]["Softmax"] == 2
        and twins["whisper_encoder"].graph.output[0].type.tensor_type.shape.dim[1].dim_value == 1500
    )
    assert kinds["llama_prefill"]["Expand"] == 2 * 2 and kinds["llama_prefill"]["Sigmoid"] == 2


def test_a_window_sees_only_its_old_neighbours() -> None:
    from benchmarks.own_models import _window_mask

    mask = _window_mask(8, 4, 2)
    assert mask.shape == (4, 16, 16)
    assert not mask[0].any()  # the first window holds what was one window
    assert (mask == mask.transpose(0, 2, 1)).all() and (mask[:, range(16), range(16)] == 0).all()
    # The last one holds four quarters of four windows: every place sees the four of its own quarter.
    assert ((mask[3] == 0).sum(1) == 4).all()


def check(model: Any, inputs: dict[str, Any]) -> None:
    graph = weft.load(model)
    (got,) = weft.compile(graph, "llvm").run(inputs).values()
    (want,) = evaluate(graph, inputs)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * float(np.abs(want).max()))


def test_compiled_means_what_the_graph_means() -> None:
    check(*twin("llama_prefill", layers=1))


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in OWN if n != "llama_prefill"])
def test_compiled_means_what_the_graph_means_in_full(name: str) -> None:
    check(*twin(name, layers=2))


@pytest.mark.full
@pytest.mark.parametrize("name", OWN)
def test_framework(name: str, tmp_path: Path) -> None:
    path, inputs, want = export(name, tmp_path)
    (got,) = weft.compile(path, "llvm", cache=False).run(inputs).values()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * float(np.abs(want).max()))


def test_sets_of_models() -> None:
    assert (
        chosen_models("own") == list(OWN)
        and chosen_models("zoo") == list(NAMES)
        and chosen_models("all") == list(EVERY)
    )
    assert chosen_models("mlp,own,mlp") == ["mlp", *OWN]
    with pytest.raises(SystemExit, match="no model 'owl': there are resnet18, "):
        chosen_models("owl")
