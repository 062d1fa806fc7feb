"""The loop around a step: convergence, checkpoints that survive kills, losses that are not finite."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.training.loop import TRAININGS, Training, batch, classifier, digits_of, pictures, rate

import weft
from weft.errors import ArchiveError, ExecutionError, InputError
from weft_training.checkpoint import load


def test_a_training_converges() -> None:
    run = TRAININGS["classifier"].trainer()
    assert run.run(200) < 0.2 < run.losses[0]
    assert len(run.losses) == run.step.steps == 200


@pytest.mark.parametrize(
    "name, kills", [("classifier", 6), pytest.param("digits", 2, marks=pytest.mark.needs("sklearn")), ("characters", 2)]
)
def test_a_training_that_was_killed_comes_to_the_same_bits(name: str, kills: int, tmp_path: Path) -> None:
    training = TRAININGS[name]
    want = training.trainer()
    checkpoint = tmp_path / "training.safetensors"
    chance = random.Random(7)
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.loop", name, str(checkpoint), "1000000"], stdout=subprocess.PIPE
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
    again = training.trainer(str(checkpoint))
    assert again.step.steps == at
    again.run(target)
    for mine, other in ((again.step.parameters, want.step.parameters), (again.step.states, want.step.states)):
        assert mine.keys() == other.keys() and all(mine[n].tobytes() == other[n].tobytes() for n in mine)
    assert again.losses == want.losses[at:]


def _steps(checkpoint: Path) -> int:
    """Of the checkpoint that lies there, which is whole at any time."""
    return load(checkpoint)[1] if checkpoint.exists() else 0


@pytest.mark.needs("torch", "sklearn")
def test_digits_are_learned_as_by_pytorch() -> None:
    """The same start, batches and optimiser: the same losses within rounding, which grows with the steps, and in the
    end the same digits."""
    import torch
    from torch.nn import functional

    training = TRAININGS["digits"]
    run = training.trainer()
    p = {n: torch.tensor(a.copy(), requires_grad=True) for n, a in run.step.parameters.items()}

    def scores(x: Any) -> Any:
        h = torch.as_tensor(x)
        for k in range(2):
            h = functional.conv2d(h, p[f"w{k}"], padding=1) + p[f"b{k}"]
            h = functional.max_pool2d(functional.relu(h), 2)
        return h.flatten(1) @ p["w2"] + p["b2"]

    theirs = learned_by_pytorch(training, list(p.values()), scores, 300)
    run.run(300)
    np.testing.assert_allclose(run.losses[:50], theirs[:50], rtol=1e-3)
    assert np.mean(run.losses[-50:]) < 0.1 and abs(np.mean(run.losses[-50:]) - np.mean(theirs[-50:])) < 0.01
    x, targets = (a[1500:] for a in pictures())
    inference = digits_of(len(x))
    for value in inference.constants():
        value.constant = run.step.parameters[value.name]
    mine = weft.compile(inference)(x).argmax(1)
    with torch.no_grad():
        other = scores(x).argmax(1).numpy()
    assert np.mean(mine == targets) > 0.93 and np.mean(mine == other) > 0.98


@pytest.mark.needs("torch")
def test_characters_are_learned_as_by_pytorch() -> None:
    """The same start, batches and optimiser. In the end the loss is near to the entropy of the text: a sentence of some
    40 characters has five choices among three or four words, 6.6 nats, so a character 0.17; the first ones of a row,
    which nothing precedes, have more."""
    import torch

    training = TRAININGS["characters"]
    run = training.trainer()
    p = {n: torch.tensor(a.copy(), requires_grad=True) for n, a in run.step.parameters.items()}

    def gates(a: Any) -> Any:
        i, o, f, c = a.chunk(4)
        return torch.cat([i, f, c, o])

    def scores(x: Any) -> Any:
        h = p["words"][torch.as_tensor(x).T]
        biases = [gates(b) for b in p["b"][0].chunk(2)]
        zero = torch.zeros(1, h.shape[1], h.shape[2])
        h, _, _ = torch.lstm(
            h, (zero, zero), [gates(p["w"][0]), gates(p["r"][0]), *biases], True, 1, 0.0, True, False, False
        )
        return (h @ p["head"]).permute(1, 2, 0)

    theirs = learned_by_pytorch(training, list(p.values()), scores, 400)
    run.run(400)
    np.testing.assert_allclose(run.losses[:50], theirs[:50], rtol=1e-3)
    assert np.mean(run.losses[-50:]) < 0.5 and abs(np.mean(run.losses[-50:]) - np.mean(theirs[-50:])) < 0.02


def learned_by_pytorch(
    training: Training, parameters: list[Any], scores: Callable[[Any], Any], steps: int
) -> list[float]:
    """The losses of PyTorch's AdamW on the batches of a training."""
    import torch

    optimizer = torch.optim.AdamW(parameters, 0.01)
    losses = []
    for number in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(number)
        given = training.batches(number)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(scores(given["x"]), torch.as_tensor(given["targets"]))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


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
