"""Training steps of Weft beside PyTorch's: eager, with checkpoints in every block, and compiled by Inductor.

    python -m benchmarks.training [--models resnet18,bert,lstm,deep50,…] [--engines weft,eager,inductor] [--batch N]
                                  [--threads N] [--memory cut] [--rounds N] [--losses N] [--json FILE]

Every engine is a process of its own, which does a step when it is its turn; the times are medians of turns that are
interleaved. "weft:sqrt" is Weft with that choice of `memory`. All start from the same weights and see the same
batches, gradient descent with momentum 0.9; the losses must follow those of eager mode. Memory is the peak of the
process less what it had before the model was made.

Limit: Weft is as fast as Inductor by geometric mean, and takes at most the memory of eager mode.
"""

from __future__ import annotations

import argparse
import gc
import math
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import judge, machine, write_report

ENGINES = ("weft", "eager", "checkpoints", "inductor")
RATE = 0.01


def resident() -> tuple[int, int]:
    """Bytes of this process now, and at most so far."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return tuple(int(fields[k].split()[0]) * 1024 for k in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def weft_step(name: str, options: argparse.Namespace) -> tuple[Callable[[int], float], int]:
    """A function that does the step of a number, and the bytes of states that its first call allocates."""
    import torch

    import weft
    from benchmarks.training_models import batch, made

    x = torch.from_numpy(batch(name, 0, options.batch)["x"])
    target = f"llvm -threads={options.threads}"
    memory = int(options.memory) if options.memory.isdecimal() else options.memory
    step = weft.compile_training(
        made(name), "cross_entropy", weft.SGD(momentum=0.9), target, memory=memory, inputs=(x,)
    )
    (given,) = [i.name for i in step.executable.inputs if i.name not in (*step.parameters, *step.states)][:1]

    def run(number: int) -> float:
        data = batch(name, number, options.batch)
        return float(step({given: data["x"], "targets": data["targets"]}, rate=RATE)["loss"])

    return run, 0


def torch_step(name: str, engine: str, options: argparse.Namespace) -> tuple[Callable[[int], float], int]:
    """As `weft_step`; gradients are results of a step."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from benchmarks.training_models import Block, batch, made

    torch.set_num_threads(options.threads)
    model = made(name)
    if engine == "checkpoints":
        for block in model.modules():
            if isinstance(block, (Block, torch.nn.TransformerEncoderLayer)):
                inner = block.forward
                block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    loss_of = torch.nn.functional.cross_entropy

    def whole(x: Any, targets: Any) -> Any:
        return loss_of(model(x), targets)

    function = torch.compile(whole) if engine == "inductor" else whole

    def run(number: int) -> float:
        data = batch(name, number, options.batch)
        optimizer.zero_grad(set_to_none=True)
        loss = function(torch.from_numpy(data["x"]), torch.from_numpy(data["targets"]))
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return run, sum(p.nbytes for p in model.parameters())


def child(options: argparse.Namespace) -> int:
    """Waits for numbers of steps on its input; answers each with loss, seconds and peak bytes."""
    name, engine = options.child.split(":")
    from benchmarks.training_models import batch

    if options.most:
        resource.setrlimit(resource.RLIMIT_DATA, (options.most, options.most))

    batch(name, 0, 1)
    if engine == "weft":  # the modules of Python that exporting and compiling load are no part of a step
        import torch

        import weft

        small = torch.nn.Linear(2, 2)
        weft.compile_training(small, "cross_entropy", weft.SGD(), f"llvm -threads={options.threads}",
                              inputs=(torch.zeros(2, 2),))  # fmt: skip
    before, _ = resident()
    begun = time.perf_counter()
    run, later = weft_step(name, options) if engine == "weft" else torch_step(name, engine, options)
    gc.collect()
    held = resident()[0] - before + later
    run(0)
    print("ready", time.perf_counter() - begun, held, flush=True)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: that of steps, not of compiling
    for line in sys.stdin:
        begun = time.perf_counter()
        loss = run(int(line))
        print(loss, time.perf_counter() - begun, resident()[1] - before, flush=True)
    return 0


class EndedError(SystemExit):
    """An engine's process ended by itself, or was ended for the time that it took."""


class Engine:
    """A process that does steps when it is asked.

    Args:
        most: bytes of data that it may have. 0: any number.
        seconds: how long it may take until the first step is done.

    Attributes:
        held: bytes that there are beside the results of a step: parameters, the optimiser's states, modules of Python.

    Raises:
        EndedError: it ended before the first step was done.
    """

    def __init__(
        self, name: str, engine: str, options: argparse.Namespace, most: int = 0, seconds: float = math.inf
    ) -> None:
        kind, _, memory = engine.partition(":")
        command = [sys.executable, "-m", "benchmarks.training", "--child", f"{name}:{kind}", "--most", str(most)]
        command += ["--batch", str(options.batch), "--threads", str(options.threads)]
        command += ["--memory", memory or options.memory]
        self.engine, self.losses, self.times, self.peak = engine, [0.0][:0], [0.0][:0], 0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        late = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self.process.kill)
        late.daemon = True
        late.start()
        _, first, held = self._line("ready")
        late.cancel()
        self.first, self.held = float(first), int(held)

    def _line(self, what: str) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        if not line:
            raise EndedError(f"{self.engine} ended before it was {what}: {self.process.wait()}")
        return line

    def step(self, number: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        loss, seconds, peak = map(float, self._line("done"))
        self.losses.append(loss)
        self.times.append(seconds)
        self.peak = int(peak)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row of the report: of each engine the median, the peak, the first call and how far its losses are off."""
    engines = [Engine(name, e, options) for e in options.engines.split(",")]
    try:
        for number in range(1, 1 + options.rounds):
            for engine in engines:
                engine.step(number)
        for number in range(1 + options.rounds, 1 + options.losses):
            for engine in engines:
                engine.step(number)
    finally:
        for engine in engines:
            engine.close()
    wanted = next((e.losses for e in engines if e.engine == "eager"), engines[0].losses)
    return {
        e.engine: {
            "seconds": statistics.median(e.times[: options.rounds]),
            "peak": e.peak,
            "first": e.first,
            "off": max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(e.losses, wanted)),
            "losses": e.losses,
        }
        for e in engines
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="resnet18,bert,lstm")
    parser.add_argument("--engines", default="weft,eager,inductor")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="cut", help="what Weft keeps: cut, sqrt, min-time, or bytes [%(default)s]")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--losses", type=int, default=0, help="steps in all, whose losses are compared")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--most", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return child(options)
    print(machine())
    rows: dict[str, Any] = {}
    print(f"| {'model':10} | {'engine':11} | step s | × weft | peak MB | first s | losses off |")
    print("|---|---|---|---|---|---|---|")
    for name in options.models.split(","):
        rows[name] = row = measure(name, options)
        for engine, r in row.items():
            ratio = r["seconds"] / row["weft"]["seconds"] if "weft" in row else math.nan
            print(
                f"| {name:10} | {engine:11} | {r['seconds']:6.3f} | {ratio:6.2f} | {r['peak'] / 1e6:7.0f}"
                f" | {r['first']:7.1f} | {r['off']:10.1e} |",
                flush=True,
            )
    over = False
    pairs = [r["weft"]["seconds"] / r["inductor"]["seconds"] for r in rows.values() if {"weft", "inductor"} <= set(r)]
    if pairs:
        mean = float(np.exp(np.mean(np.log(pairs))))
        print(f"Weft takes {mean:.2f} of Inductor's time by geometric mean: {judge(mean, 1.0)} the limit")
        over |= mean > 1
    for name, r in rows.items():
        if {"weft", "eager"} <= set(r):
            part = r["weft"]["peak"] / r["eager"]["peak"]
            print(f"{name}: Weft takes {part:.2f} of eager's memory: {judge(part, 1.0)} the limit")
            over |= part > 1
    write_report(options, rows=rows)
    return int(over)


if __name__ == "__main__":
    raise SystemExit(main())
