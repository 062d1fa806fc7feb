"""The loop around a step: convergence, checkpoints that survive kills, losses that are not finite."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.training.loop import batch, classifier, trainer

import weft
from weft.errors import ArchiveError, ExecutionError, InputError


def test_a_training_converges() -> None:
    run = trainer(None)
    assert run.run(200) < 0.2 < run.losses[0]
    assert len(run.losses) == run.step.steps == 200


def test_a_training_that_was_killed_comes_to_the_same_bits(tmp_path: Path) -> None:
    want = trainer(None)
    want.run(60)
    checkpoint = tmp_path / "training.safetensors"
    chance = random.Random(7)
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.loop", str(checkpoint), "1000000"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        before, until = _steps(checkpoint), time.monotonic() + 120
        while _steps(checkpoint) <= before and time.monotonic() < until:
            assert process.poll() is None, "the training ended by itself"
            time.sleep(chance.random() / 50)
        process.kill()
        process.wait()
        process.stdout.close()
        if _steps(checkpoint) > 30:
            break
    at = _steps(checkpoint)
    assert at > 0 and at % 5 == 0
    target = max(60, at + 7)
    want.run(target)
    again = trainer(str(checkpoint))
    assert again.step.steps == at
    again.run(target)
    for mine, other in ((again.step.parameters, want.step.parameters), (again.step.states, want.step.states)):
        assert mine.keys() == other.keys() and all(mine[n].tobytes() == other[n].tobytes() for n in mine)
    assert again.losses == want.losses[at:]


def _steps(checkpoint: Path) -> int:
    """Of the checkpoint that lies there, which is whole at any time."""
    if not checkpoint.exists():
        return 0
    step = weft.compile_training(classifier(), optimizer=weft.AdamW())
    step.load(checkpoint)
    return step.steps


def test_a_loss_that_is_not_finite_names_the_node() -> None:
    step = weft.compile_training(classifier(), optimizer=weft.AdamW())
    broken = weft.Trainer(step, lambda k: {**batch(k), "x": batch(k)["x"] * (np.inf if k == 3 else 1)}, rate=0.01)
    with pytest.raises(ExecutionError, match="the loss of step 4 is nan") as caught:
        broken.run(10)
    assert "MatMul" in str(caught.value.where) and "first numbers that are not finite" in str(caught.value.why)
    assert step.steps == 3 and all(np.isfinite(a).all() for a in step.parameters.values())


def test_checkpoints_of_others_are_refused(tmp_path: Path) -> None:
    step = weft.compile_training(classifier(), optimizer=weft.AdamW())
    path = tmp_path / "c.safetensors"
    step.save(path)
    other = weft.compile_training(classifier(), optimizer=weft.SGD(momentum=0.9))
    before = {n: a.copy() for n, a in other.parameters.items()}
    with pytest.raises(InputError, match="one of another training") as caught:
        other.load(path)
    assert "velocity.w0" in str(caught.value.where)
    assert all(np.array_equal(before[n], a) for n, a in other.parameters.items())
    save_file({"x": np.zeros(3, np.float32)}, str(path))
    with pytest.raises(ArchiveError, match="no checkpoint of a training"):
        other.load(path)
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ArchiveError, match="damaged"):
        other.load(path)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        other.load(tmp_path / "none.safetensors")


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    """A folder that cannot take the file leaves the checkpoint that was there."""
    step = weft.compile_training(classifier())
    path = tmp_path / "c.safetensors"
    step.save(path)
    data = path.read_bytes()
    with pytest.raises(OSError):
        step.save(tmp_path / "none" / "c.safetensors")
    step.save(path)
    assert path.read_bytes() == data and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_checkpoint_interval_is_positive() -> None:
    with pytest.raises(InputError, match="every: expected at least 1 step"):
        weft.Trainer(weft.compile_training(classifier()), batch, rate=0.1, every=0)
