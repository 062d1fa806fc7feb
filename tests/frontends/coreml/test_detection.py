"""Non-maximum suppression, of programs, of networks and as a model, against a loop over the boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.coreml.models import network, one

import weft
from weft.errors import FrontendError
from weft.graph.evaluate import evaluate

F, I32 = np.float32, np.int32


def overlap(a: Any, b: Any) -> float:
    """Intersection over union of boxes (centre x, y, width, height)."""
    sides = [
        min(a[k] + a[k + 2] / 2, b[k] + b[k + 2] / 2) - max(a[k] - a[k + 2] / 2, b[k] - b[k + 2] / 2) for k in (0, 1)
    ]
    inner = max(sides[0], 0) * max(sides[1], 0)
    return float(inner / (a[2] * a[3] + b[2] * b[3] - inner))


def chosen(boxes: Any, scores: Any, most: float, least: float, limit: int, by_class: bool) -> list[int]:
    """Which boxes Core ML chooses, of one image."""
    best, own = scores.max(1), scores.argmax(1)
    kept: list[int] = []
    for k in np.argsort(-best, kind="stable"):
        rivals = [j for j in kept if not by_class or own[j] == own[k]]
        if best[k] > least and all(overlap(boxes[k], boxes[j]) <= most for j in rivals):
            kept.append(int(k))
    return kept[:limit] or [int(best.argmax())]


def expected(boxes: Any, scores: Any, most: float, least: float, limit: int, by_class: bool) -> list[Any]:
    """The four results."""
    batch, _, classes = scores.shape
    found = [
        np.zeros((batch, limit, 4), F),
        np.zeros((batch, limit, classes), F),
        np.full((batch, limit), -1, I32),
        np.zeros(batch, I32),
    ]
    for b in range(batch):
        places = chosen(boxes[b], scores[b], most, least, limit, by_class)
        n = len(places)
        found[0][b, :n], found[1][b, :n], found[2][b, :n], found[3][b] = boxes[b, places], scores[b, places], places, n
    return found


def picture(seed: int, batch: int = 1, count: int = 20, classes: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    boxes = np.concatenate([rng.uniform(0, 1, (batch, count, 2)), rng.uniform(0.2, 0.7, (batch, count, 2))], 2)
    return boxes.astype(F), rng.permutation(batch * count * classes).reshape(batch, count, classes).astype(F) / 7


CASES = [(most, least, limit, by_class) for most in (0.0, 0.3, 0.8) for least in (-1.0, 5.0, 99.0)
         for limit in (3, 30) for by_class in (False, True)]  # fmt: skip


def same(found: Any, wanted: list[Any]) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape and np.array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize("most, least, limit, by_class", CASES)
def test_a_program_chooses_boxes(most: float, least: float, limit: int, by_class: bool) -> None:
    boxes, scores = picture(7, batch=2)
    wanted = expected(boxes, scores, most, least, limit, by_class)
    given = {"iou_threshold": most, "score_threshold": least, "max_boxes": limit, "per_class_suppression": by_class}
    graph = weft.load(
        one("non_maximum_suppression", {"boxes": boxes, "scores": scores}, given, wanted), frontend="coreml"
    )
    same(evaluate(graph, {"boxes": boxes, "scores": scores}), wanted)


def test_newer_programs_have_the_boxes_last_and_no_score_threshold() -> None:
    boxes, scores = picture(8)
    first, second, third, _ = expected(boxes, scores, 0.3, -np.inf, 6, True)
    boxes, scores = (v.transpose(0, 2, 1).copy() for v in (boxes, scores))
    wanted = [first.transpose(0, 2, 1), second.transpose(0, 2, 1), third]
    given = {"iou_threshold": 0.3, "max_boxes": 6, "per_class_suppression": True}
    graph = weft.load(
        one("non_maximum_suppression", {"boxes": boxes, "scores": scores}, given, wanted), frontend="coreml"
    )
    same(evaluate(graph, {"boxes": boxes, "scores": scores}), wanted)
    with pytest.raises(FrontendError, match="at most 0 boxes"):
        weft.load(
            one("non_maximum_suppression", {"boxes": boxes, "scores": scores}, {**given, "max_boxes": 0}, wanted),
            frontend="coreml",
        )


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_layer_chooses_boxes(dynamic: bool) -> None:
    boxes, scores = picture(9)
    wanted = expected(boxes, scores, 0.3, 3.0, 5, False)
    parameters = {"iouThreshold": 0.3, "scoreThreshold": 3.0, "maxBoxes": 5} if not dynamic else {"maxBoxes": 1}
    inputs = {"boxes": boxes, "scores": scores}
    if dynamic:
        inputs |= {"most": F([0.3]), "least": F([3]), "limit": F([5])}
    graph = weft.load(network("NonMaximumSuppression", parameters, inputs, 4), frontend="coreml")
    same(evaluate(graph, inputs), wanted)
    compiled = weft.compile(graph, target="llvm", cache=False).run(inputs)
    same([compiled[name] for name in graph.output_names], wanted)
