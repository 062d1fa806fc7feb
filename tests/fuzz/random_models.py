"""Random valid models, compiled and run, agree with ONNX's reference.

python -m tests.fuzz.random_models --count 2000 --seed 0 [--source own|nnsmith] [--folder F] [--target T]

A seed names a model. Each has a line in the folder's results.jsonl, so a run that was cut off goes on where it was; of
a model that does not agree its seed is printed, and it lies in the folder with its inputs. Where the reference differs
and ONNX Runtime agrees with us, that is told apart ("reference").

Sources: `own` is tests.fuzz.random_graphs. `nnsmith` is NNSmith (Liu et al., ASPLOS 2023), whose PyTorch models are
exported by the exporter's older form.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.fuzz.random_graphs import NOISE, Array, Model, random_model

import weft
from weft.errors import UnsupportedError, WeftError

# Relative to the greatest element of a result, and to what noise in the last digits of every step does to it.
# Of float64 it is that of float32 nearly: attributes and constants of functions' bodies are float32 (Gelu's √2,
# LeakyRelu's 0.01), which the reference computes with as they are rounded, and we with what they are meant to be.
TOLERANCE = {"float16": 1e-2, "float32": 3e-5, "float64": 2e-7}
TIMES_NOISE = 30.0


class Vague(Exception):
    """A model whose result is not certain: not finite, or another one for inputs that differ in the last digit."""


def differs(got: Array, want: Array, slack: Array) -> str | None:
    """How a result differs from the reference's; None if it agrees."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"got {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if want.dtype.kind != "f":
        wrong = got != want
        return (
            f"{int(wrong.sum())} of {wrong.size} elements differ, such as {got[wrong][0]} for {want[wrong][0]}"
            if wrong.any()
            else None
        )
    if not want.size:
        return None
    wide, right = got.astype(np.float64), want.astype(np.float64)
    allowed = TOLERANCE[str(want.dtype)] * np.maximum(1.0, np.abs(right).max()) + TIMES_NOISE * float(
        slack.max(initial=0.0)
    )
    wrong = ~(np.abs(wide - right) <= allowed)
    if not wrong.any():
        return None
    at = np.unravel_index(
        int(np.argmax(np.where(wrong, np.nan_to_num(np.abs(wide - right), nan=np.inf), -1))), wrong.shape
    )
    return f"{int(wrong.sum())} of {wrong.size} elements differ, {wide[at]} for {right[at]}, allowed {allowed:.2g}"


def check(model: Model, target: str) -> tuple[str, str]:
    """(outcome, what happened): agrees, differs, reference (it alone differs), refused (a WeftError), crash (another
    exception)."""
    try:
        executable = weft.compile(model.proto.SerializeToString(), target, cache=False)
        for inputs, wanted, slack in zip(model.inputs, model.outputs, model.slack):
            results = executable.run(inputs)
            for name, want in wanted.items():
                wrong = differs(results[name], want, slack[name])
                if wrong is not None:
                    by_peer = peer_agrees(model.proto, inputs, name, results[name], slack[name])
                    return "reference" if by_peer else "differs", f"{name}: {wrong}"
    except UnsupportedError as error:
        return "unsupported", str(error)
    except WeftError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a crash is a finding, not the end
        return "crash", traceback.format_exc()
    return "agrees", ""


def peer_agrees(proto: onnx.ModelProto, inputs: dict[str, Array], name: str, got: Array, slack: Array) -> bool:
    """Whether ONNX Runtime gives what we do."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        (theirs,) = session.run([name], inputs)
    except Exception:  # noqa: BLE001 - it is not installed, or lacks an operator
        return False
    return differs(got, np.asarray(theirs), slack) is None


# -- NNSmith ----------------------------------------------------------------------------------------------------------


def nnsmith_model(seed: int) -> Model:
    """A model of NNSmith's, exported, with what the reference makes of random inputs, and of inputs with noise in their
    last digits.

    Raises:
        Vague: see there.
    """
    import torch
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model as Materials
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = Materials.init("torch", None)
        nodes = 5 + seed % 16
        ir = model_gen(opset=kind.operators(), seed=seed, max_nodes=nodes, timeout_ms=10_000).make_concrete()
        torch.manual_seed(seed)
        made = kind.from_gir(ir)
        net = made.torch_model
        rng = np.random.default_rng(seed)
        given = {k: _random(rng, v.detach().numpy()) for k, v in net.get_random_inps().items()}
        file = io.BytesIO()
        arguments = ({k: torch.from_numpy(np.array(v)) for k, v in given.items()},)
        with torch.no_grad():
            torch.onnx.export(
                net.eval(), tuple(arguments[0].values()), file, input_names=list(given), dynamo=False, opset_version=17
            )
    proto = onnx.ModelProto.FromString(file.getvalue())
    kept = {i.name for i in proto.graph.input}
    inputs = {k: v for k, v in given.items() if k in kept}
    near = {
        k: (
            (v * (1 + NOISE.get(str(v.dtype), 0) * rng.uniform(-1, 1, v.shape))).astype(v.dtype)
            if v.dtype.kind == "f"
            else v
        )
        for k, v in inputs.items()
    }
    names = [o.name for o in proto.graph.output]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = ReferenceEvaluator(proto)
        results, others = (dict(zip(names, map(np.asarray, reference.run(None, x)))) for x in (inputs, near))
    slack = {}
    for name, a in results.items():
        b = others[name]
        if a.dtype.kind == "f":
            if not np.isfinite(a).all() or a.shape != b.shape:
                raise Vague
            slack[name] = np.full(a.shape, float(np.abs(a.astype(np.float64) - b).max()) if a.size else 0.0)
            if a.size and slack[name].max() > 1e-3 * max(1.0, float(np.abs(a).max())):
                raise Vague
        elif a.shape != b.shape or (a != b).any():
            raise Vague
        else:
            slack[name] = np.zeros(a.shape)
    return Model(seed, proto, [inputs], [results], [slack])


def _random(rng: np.random.Generator, like: Array) -> Any:
    if like.dtype.kind == "f":
        return np.asarray(rng.uniform(-1, 1, like.shape)).astype(like.dtype)
    return (
        rng.random(like.shape) < 0.5
        if like.dtype == bool
        else np.asarray(rng.integers(-5, 6, like.shape)).astype(like.dtype)
    )


SOURCES = {"own": random_model, "nnsmith": nnsmith_model}


# -- the run ----------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Raises SystemExit: 1 if a model does not agree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--source", choices=sorted(SOURCES), default="own")
    parser.add_argument("--target", default="llvm -threads=1")
    parser.add_argument("--folder", type=Path, default=Path("random-models"))
    parser.add_argument("--again", action="store_true", help="run those once more that did not agree")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    log = options.folder / f"results-{options.source}.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {line["seed"]: line for line in lines}
    if options.again:
        done = {seed: line for seed, line in done.items() if line["outcome"] in ("agrees", "vague")}
    for seed in range(options.seed, options.seed + options.count):
        if seed in done:
            continue
        started = time.perf_counter()
        model = None
        try:
            model = SOURCES[options.source](seed)
        except Vague:
            outcome, what = "vague", ""
        except Exception as error:  # noqa: BLE001 - a generator that fails makes no model
            outcome, what = "vague", f"no model: {type(error).__name__}: {error}"[:300]
        if model is not None:
            outcome, what = check(model, options.target)
            if outcome != "agrees":
                stem = options.folder / f"{options.source}-{seed}"
                stem.with_suffix(".onnx").write_bytes(model.proto.SerializeToString())
                np.savez(
                    stem.with_suffix(".npz"),
                    **{f"{k}/{n}": a for k, run in enumerate(model.inputs) for n, a in run.items()},
                )  # type: ignore[arg-type]
                print(f"seed {seed}: {outcome}: {what.strip()[-600:]}\n  {stem}.onnx", flush=True)
        done[seed] = {
            "seed": seed,
            "outcome": outcome,
            "what": what[-2000:],
            "seconds": round(time.perf_counter() - started, 2),
        }
        with log.open("a") as file:
            file.write(json.dumps(done[seed]) + "\n")
    wanted = [done[s]["outcome"] for s in range(options.seed, options.seed + options.count)]
    counts = collections.Counter(wanted)
    print(f"{len(wanted)} models: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()))
    raise SystemExit(0 if set(counts) <= {"agrees", "reference", "vague"} else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
