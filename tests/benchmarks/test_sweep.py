"""`benchmarks.sweep` draws the same cases for the same seed, of every kind; its models are valid, and wrong answers and
exceeded limits are told. No test asserts a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import sweep
from benchmarks.sweep_cases import (
    BYTES_PER_SECOND,
    FLOP_PER_SECOND,
    KINDS,
    LONGEST,
    Case,
    draw,
    is_clear,
    model_of,
    work,
)
from tests.needs import require


@pytest.mark.parametrize("kind", KINDS)
def test_cases_are_those_of_the_seed_and_within_the_bounds(kind: str) -> None:
    cases = draw(40, 7, [kind])
    assert cases == draw(40, 7, [kind]) and cases != draw(40, 8, [kind])
    assert len({c.text for c in cases}) == 40
    for case in cases:
        flop, size = work(case)
        assert KINDS[kind].shortest <= max(flop / FLOP_PER_SECOND, size / BYTES_PER_SECOND) <= LONGEST


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_valid_and_have_the_same_inputs_each_time(kind: str) -> None:
    import onnx

    for case in draw(12, 3, [kind]):
        model, inputs = model_of(case)
        context = onnx.checker.C.CheckerContext()
        context.ir_version, context.opset_imports = model.ir_version, {"": model.opset_import[0].version}
        for node in model.graph.node:
            onnx.checker.check_node(node, context)
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
        again = model_of(case)[1]
        assert inputs.keys() == again.keys() and all(np.array_equal(inputs[n], again[n]) for n in inputs)
        assert {i.name for i in model.graph.input} == inputs.keys()


def test_kinds_take_turns_and_every_kind_has_its_forms() -> None:
    assert [c.kind for c in draw(18, 1, list(KINDS))] == [*KINDS, *KINDS]
    drawn = {(c.kind, c.form) for c in draw(600, 1, list(KINDS))}
    for form in ("operator", "written", "decode", "cache"):
        assert ("attention", form) in drawn
    for form in ("nearest", "linear", "cubic"):
        assert ("resize", form) in drawn
    masks = {c.of["mask"] for c in draw(200, 1, ["attention"])}
    assert masks == {"none", "qk", "11qk", "b1qk", "1hqk", "bhqk", "b11k", "111k"}


def test_places_beside_a_tie_are_not_drawn() -> None:
    assert is_clear(8, 16, "half_pixel", "floor") and is_clear(16, 4, "asymmetric", "floor")
    assert not is_clear(10, 15, "asymmetric", "floor")  # every third place is a whole number
    assert not is_clear(10, 4, "asymmetric", "round_prefer_floor")


def timed(case: Case, own: float, peer: float) -> sweep.Measured:
    return sweep.Measured(1, times={"weft": [own], "other": [peer]}, opened={"weft": 0.1, "other": 0.1}, case=case)


def test_limits_are_those_of_the_kind_and_of_the_worst_case(capsys: pytest.CaptureFixture[str]) -> None:
    conv, pool = draw(2, 1, ["conv", "pooling"])
    assert sweep.percentiles([timed(conv, 1.2, 1.0), timed(pool, 1.4, 1.0)], "min")
    assert not sweep.percentiles([timed(conv, 1.4, 1.0), timed(pool, 1.4, 1.0)], "min")
    assert "p95 1.3: over; largest 3.0: within" in capsys.readouterr().out
    many = [timed(pool, 1.0, 1.0)] * 40
    assert not sweep.percentiles([*many, timed(pool, 3.5, 1.0)], "min")
    assert "p95 1.5: within; largest 3.0: over" in capsys.readouterr().out


def test_an_answer_that_differs_from_a_peer_is_a_failure() -> None:
    (case,) = draw(1, 1, ["transpose"])
    right, wrong = np.arange(4.0), np.array([0, 1, 2, 3.1])
    result = timed(case, 1.0, 1.0)
    sweep.compare_answers(result, {"weft": right, "other": right})
    assert result.error is None and result.difference == 0
    sweep.compare_answers(result, {"weft": right, "other": right, "third": wrong})
    assert result.error is not None and "is off by 3.2e-02 from that of third" in result.error
    result = timed(case, 1.0, 1.0)
    sweep.compare_answers(result, {"weft": right, "other": right[:3]})
    assert result.error == "Weft's answer has the shape (4,), that of other (3,)"
    result = timed(case, 1.0, 1.0)
    sweep.compare_answers(result, {"weft": np.array([np.nan]), "other": np.array([1.0])})
    assert result.error is not None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("onnxruntime")
    words = ["--count", "4", "--seed", "1", "--kinds", "reduction,transpose", "--threads", "1"]
    quick = ["--repeat", "1", "--calls", "1", "--json", str(tmp_path / "s.json"), "--engines", "onnxruntime"]
    assert sweep.main([*words, *quick]) in (0, 1)  # 1 where a limit is exceeded
    results = json.loads((tmp_path / "s.json").read_text())["results"]
    assert [r["case"]["kind"] for r in results] == ["reduction", "transpose", "reduction", "transpose"]
    assert all(r["error"] is None and r["ratio"] > 0 and r["difference"] <= sweep.LARGEST_ERROR for r in results)
    out = capsys.readouterr().out
    assert "Weft over the best peer" in out and "p95 1.5" in out
    with pytest.raises(SystemExit, match="no 'pool': there are matmul, conv"):
        sweep.main(["--kinds", "pool"])


def test_a_peer_that_cannot_run_a_case_is_left_out(tmp_path: Path) -> None:
    class Peer:
        def __init__(self, answer: np.ndarray | None) -> None:
            self.answer = answer

        def ask(self, **request: object) -> dict[str, object]:
            if "open" not in request:
                return {"times": [1.0]}
            if self.answer is None:
                raise RuntimeError("other: no such operator")
            np.save(str(request["out"]), self.answer)
            return {"open": 0.1}

    (case,) = draw(1, 1, ["transpose"])
    engines = {"weft": Peer(np.ones(3)), "other": Peer(None), "third": Peer(np.ones(3))}
    result = sweep.measure(case, 1, engines, tmp_path, 1, 1, 0.0)  # type: ignore[arg-type]
    assert result.compared and result.lacking == {"other": "other: no such operator"} and "other" not in result.times
    alone = sweep.measure(case, 1, {"weft": Peer(np.ones(3)), "other": Peer(None)}, tmp_path, 1, 1, 0.0)  # type: ignore[dict-item]
    assert alone.error is None and not alone.compared
    failed = sweep.measure(case, 1, {"weft": Peer(None), "third": Peer(np.ones(3))}, tmp_path, 1, 1, 0.0)  # type: ignore[dict-item]
    assert failed.error == "other: no such operator"
