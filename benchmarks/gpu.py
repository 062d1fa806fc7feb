"""Weft on an NVIDIA GPU beside torch.compile and the vendor's libraries, whole models and matrix products, in one run.

    python -m benchmarks.gpu [--models resnet18:1,…] [--precisions fp32,tf32,fp16] [--products 512,…] [--dtypes
        fp16,bf16] [--seconds S] [--json FILE]

A model is written name:batch. Everything is in the GPU's memory: tensors of torch go in and come out where they lie.
Engines take turns, one call each, and wait for the GPU after it; figures are medians of wall times. torch: as it is
(cuDNN, cuBLAS), and compiled with max-autotune. tf32: torch may round factors of products to TF32; fp32: it may not. A
product is X [N, N] · W [N, N], neither known before; torch.matmul is cuBLAS.

Limits: models at most as long as torch.compile takes, products of 2048 and more 85 % of cuBLAS's rate. Where no GPU is,
the command says what is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import chosen, machine, write_report
from benchmarks.models import OPSET, TORCH_HINT, torch_model

MODELS = "resnet18:1,resnet18:64,mobilenet_v2:1,mobilenet_v2:64,bert_base_s128:1,gpt2_s128:1"
PRECISIONS = ("fp32", "tf32", "fp16")
PRODUCTS = "512,1024,2048,4096,8192"
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
ENGINES = ("weft", "torch", "torch.compile")
LARGE = 2048
MODEL_LIMIT, PRODUCT_LIMIT = 1.0, 0.85
MOST_CALLS = 10_000

Call = Callable[[], Any]


@dataclass(frozen=True)
class Place:
    """Where a run is: torch's name of the device, Weft's target, and what waits until all that was started is done."""

    device: str
    target: str
    wait: Callable[[], None]
    about: Mapping[str, Any]


def lacking() -> list[str]:
    """What is missing for a run, and what to do about it, a line each."""
    from weft_cuda.driver import missing

    lines = []
    why = missing(0)
    if why is not None:
        lines.append(f"an NVIDIA GPU with its driver: {why}")
    absent = [m for m in ("torch", "transformers", "onnxscript") if importlib.util.find_spec(m) is None]
    if absent:
        lines.append(f"{', '.join(absent)}: {TORCH_HINT}")
    if "torch" not in absent:
        import torch

        if not torch.cuda.is_available():
            build = "is built without CUDA" if torch.version.cuda is None else "finds no GPU"
            lines.append(
                f"torch with CUDA: torch {torch.__version__} {build}; pip install torch --index-url"
                " https://download.pytorch.org/whl/cu130"
            )
    if importlib.util.find_spec("triton") is None:
        lines.append("triton, which torch.compile makes its kernels with: it comes with torch for CUDA")
    return lines


def gpu() -> Place:
    """The GPU that is here.

    Raises:
        SystemExit: something is missing; says what, everything at once.
    """
    lines = lacking()
    if lines:
        print("this benchmark cannot run here; missing:", *(f"  - {line}" for line in lines), sep="\n", file=sys.stderr)
        raise SystemExit(2)
    import torch

    from weft_cuda.driver import driver

    found = torch.cuda.get_device_properties(0)
    about = {
        "gpu": found.name, "processors": found.multi_processor_count, "memory": found.total_memory,
        "capability": f"{found.major}.{found.minor}",
        "driver": driver()("cuDriverGetVersion"), "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip
    return Place("cuda", "cuda", torch.cuda.synchronize, about)


# -- measuring --------------------------------------------------------------------------------------------------------


def in_turns(calls: Mapping[str, Call], wait: Callable[[], None], seconds: float) -> dict[str, list[float]]:
    """Wall seconds of each call, until the GPU is done; all in turns, whose order rotates, after three rounds that do
    not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    end = math.inf
    for turn in range(MOST_CALLS):
        if turn == 3:
            end = time.perf_counter() + seconds
        for name in order:
            wait()
            started = time.perf_counter()
            calls[name]()
            wait()
            if turn >= 3:
                times[name].append(time.perf_counter() - started)
        order.append(order.pop(0))
        if time.perf_counter() >= end:
            break
    return times


def figures(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    return {n: {"median": statistics.median(t), "best": min(t), "calls": len(t)} for n, t in times.items()}


def distance(got: Any, want: Any) -> float:
    """The largest difference over the largest magnitude."""
    got, want = got.double(), want.double()
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Whether torch may round factors of products to TF32."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def weft_call(executable: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Call:
    """A run of an executable on torch's tensors, and into them."""
    return lambda: executable.run(inputs, outputs)


# -- models -----------------------------------------------------------------------------------------------------------


def model(
    name: str, batch: int, precision: str, engines: Sequence[str], place: Place, seconds: float
) -> dict[str, Any]:
    """One model in one precision: times of every engine, and how far Weft's answer is from torch's in float32."""
    import torch

    import weft

    made = torch_model(name)
    args = tuple(a.repeat(batch, *[1] * (a.dim() - 1)) if batch > 1 else a for a in made.args)
    half = precision == "fp16"
    result: dict[str, Any] = {"kind": "model", "name": f"{name}:{batch}", "precision": precision}
    with torch.no_grad(), tf32(False):
        want = made.module.to(place.device)(*(a.to(place.device) for a in args)).float()
    module = made.module.cpu().half() if half else made.module.cpu()
    args = tuple(a.half() if half and a.is_floating_point() else a for a in args)
    calls: dict[str, Call] = {}
    if "weft" in engines:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            export(module, args, made.names, path)
            started = time.perf_counter()
            executable = weft.compile(path, target=place.target)
            result["compile"] = time.perf_counter() - started
        answer = torch.empty(tuple(want.shape), dtype=torch.float16 if half else torch.float32, device=place.device)
        inputs = dict(zip(made.names, (a.to(place.device) for a in args)))
        calls["weft"] = weft_call(executable, inputs, {executable.outputs[0].name: answer})
    module = module.to(place.device)
    there = tuple(a.to(place.device) for a in args)
    with torch.no_grad(), tf32(precision == "tf32"):
        if "torch" in engines:
            calls["torch"] = lambda: module(*there)
        if "torch.compile" in engines:
            compiled = torch.compile(module, mode="max-autotune")
            calls["torch.compile"] = lambda: compiled(*there)
        result["seconds"] = figures(in_turns(calls, place.wait, seconds))
        if "weft" in engines:
            calls["weft"]()
            place.wait()
            result["difference"] = distance(answer, want)
    return result


def export(module: Any, args: tuple[Any, ...], names: Sequence[str], path: Path) -> None:
    """Writes an ONNX file."""
    import warnings

    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            args,
            str(path),
            input_names=list(names),
            output_names=["out"],
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
        )


# -- products ---------------------------------------------------------------------------------------------------------


def product(size: int, dtype: str, engines: Sequence[str], place: Place, seconds: float) -> dict[str, Any]:
    """One square product: times of every engine, and how far Weft's answer is from the exact one."""
    import torch

    import weft
    from weft.graph.nodes import GraphBuilder, tensor_type
    from weft_ops import MatMul

    random = torch.Generator()
    random.manual_seed(size)
    kind = getattr(torch, DTYPES[dtype])
    x, w = (torch.randn(size, size, generator=random).to(kind).to(place.device) for _ in "xw")
    calls: dict[str, Call] = {}
    if "weft" in engines:
        builder = GraphBuilder("product")
        a, b = (builder.input(n, tensor_type(DTYPES[dtype], (size, size))) for n in "xw")
        builder.output(builder.add(MatMul(), a, b), "y")
        executable = weft.compile(builder.build(), target=place.target)
        answer = torch.empty_like(x)
        calls["weft"] = weft_call(executable, {"x": x, "w": w}, {"y": answer})
    if "torch" in engines:
        calls["torch"] = lambda: torch.matmul(x, w)
    if "torch.compile" in engines:
        compiled = torch.compile(torch.matmul, mode="max-autotune")
        calls["torch.compile"] = lambda: compiled(x, w)
    result: dict[str, Any] = {"kind": "product", "name": str(size), "precision": dtype, "operations": 2.0 * size**3}
    with torch.no_grad():
        result["seconds"] = figures(in_turns(calls, place.wait, seconds))
        if "weft" in engines:
            calls["weft"]()
            place.wait()
            result["difference"] = distance(answer, x.double() @ w.double() if size <= LARGE else x.float() @ w.float())
    return result


# -- what people see --------------------------------------------------------------------------------------------------


def judged(result: dict[str, Any]) -> dict[str, Any]:
    """The result with its ratio and the limit that holds for it: `within` is None where none does."""
    medians = {n: f["median"] for n, f in result.get("seconds", {}).items()}
    result["over"] = {n: medians["weft"] / s for n, s in medians.items() if n != "weft"} if "weft" in medians else {}
    result["within"] = None
    if result["kind"] == "model" and "torch.compile" in result["over"]:
        result["within"] = result["over"]["torch.compile"] <= MODEL_LIMIT
    if result["kind"] == "product" and "torch" in result["over"] and int(result["name"]) >= LARGE:
        result["within"] = 1 / result["over"]["torch"] >= PRODUCT_LIMIT
    return result


def show(results: Sequence[Mapping[str, Any]], engines: Sequence[str], place: Place) -> None:
    from weft.cli.terminal import print_table

    verdicts = {None: "", True: "within", False: "over"}
    rows = []
    for r in results:
        if "error" in r:
            rows.append([r["kind"], r["name"], r["precision"], r["error"].splitlines()[0][:80]])
            continue
        medians = {n: f["median"] for n, f in r["seconds"].items()}
        cells = [_figure(r, medians[n]) if n in medians else "" for n in engines]
        over = [f"{r['over'][n]:.2f}" if n in r["over"] else "" for n in engines if n != "weft"]
        near = f"{r['difference']:.1e}" if "difference" in r else ""
        rows.append([r["kind"], r["name"], r["precision"], *cells, *over, near, verdicts[r["within"]]])
    heads = ["", "", "", *engines, *(f"weft/{n}" for n in engines if n != "weft"), "difference", "limit"]
    print_table(
        f"{place.about.get('gpu', place.device)}: medians; below 1 Weft is faster",
        heads,
        rows,
        right=tuple(range(3, len(heads))),
    )
    print(
        f"limits: a model's time at most {MODEL_LIMIT} of torch.compile's; a product of {LARGE} or more at least"
        f" {PRODUCT_LIMIT} of cuBLAS's rate"
    )


def _figure(result: Mapping[str, Any], seconds: float) -> str:
    """A product's rate, a model's time."""
    return (
        f"{result['operations'] / seconds / 1e12:.1f} TFLOP/s"
        if result["kind"] == "product"
        else f"{seconds * 1e3:.3f} ms"
    )


def attempted(kind: str, name: str, precision: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a measurement gives, or its error: the others go on."""
    print(f"{kind} {name} {precision} …", file=sys.stderr, flush=True)
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - whatever an engine raises is its result
        return {"kind": kind, "name": name, "precision": precision, "error": f"{type(error).__name__}: {error}"}


def parse_model(text: str) -> tuple[str, int]:
    name, _, batch = text.partition(":")
    if batch and not batch.isdecimal():
        raise SystemExit(f"'{text}' is no model: it is written as resnet18:64")
    return name, int(batch or 1)


def main(arguments: Sequence[str] | None = None, find: Callable[[], Place] = gpu) -> int:
    """`find`: where it runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=MODELS, help="name:batch, by commas; empty for none [%(default)s]")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="of models [%(default)s]")
    parser.add_argument("--products", default=PRODUCTS, help="sizes, by commas; empty for none [%(default)s]")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="of products [%(default)s]")
    parser.add_argument("--engines", default=",".join(ENGINES), help="[%(default)s]")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row [%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    precisions, dtypes = (
        chosen(options.precisions, PRECISIONS, "precision"),
        chosen(options.dtypes, list(DTYPES), "dtype"),
    )
    engines = chosen(options.engines, ENGINES, "engine")
    models = [parse_model(m) for m in options.models.split(",") if m]
    place = find()
    np.random.seed(0)
    results = []
    for name, batch in models:
        for precision in precisions:
            timed = partial(model, name, batch, precision, engines, place, options.seconds)
            results.append(attempted("model", f"{name}:{batch}", precision, timed))
    for size in (int(n) for n in options.products.split(",") if n):
        for dtype in dtypes:
            timed = partial(product, size, dtype, engines, place, options.seconds)
            results.append(attempted("product", str(size), dtype, timed))
    results = [judged(r) for r in results]
    show(results, engines, place)
    write_report(
        options,
        machine={**machine(), **place.about},
        limits={"model": MODEL_LIMIT, "product": PRODUCT_LIMIT},
        results=results,
    )
    return int(any("error" in r or r["within"] is False for r in results))


if __name__ == "__main__":
    sys.exit(main())
