"""Every kernel of every operator's samples, and of small models, as CUDA's and Metal's text on a CPU: the reference's
result, by what a GPU may do.

`pytest --full` takes all samples, otherwise a few. Many kernels are compiled at once, which takes a tenth of the time
that one by one takes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gpu.shim import shims
from tests.gpu.shim.targets import ShimDevice, shimmed

from weft.codegen.base import Codegen
from weft.errors import WeftError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph
from weft.loop.nodes import Program
from weft.scheduling import Decline, Offer, Rule, Schedule
from weft_c_family import Dialect
from weft_cuda.dialect import CUDA
from weft_gpu.codegen import GpuCodegen
from weft_gpu.image import Kernel
from weft_gpu.machines import grid_machine
from weft_runtime.device import open_device
from weft_testing import models
from weft_testing.conform.cases import GRAPHS, MODELS
from weft_testing.conform.kit import Case, Compiled, Declined, Disagreement, Kit
from weft_testing.plugin import resolve_target

ROOT = Path(__file__).parents[2]
TARGETS = {"cuda": "cuda -arch=sm_90", "metal": "metal -family=apple7"}
AT_ONCE = 24
"""Samples whose kernels are compiled together."""
ALWAYS = (
    "Conv", "MatMul", "MaxPool", "AveragePool", "Softmax", "LayerNorm", "Pad", "Relu", "Gelu", "Clip", "Concat",
    "ReduceSum", "Resize", "Gather",
    "ScatterND", "CumSum", "TopK", "ScaledDotProductAttention", "LSTM", "Transpose",
)  # fmt: skip
"""Operators of which a sample is in every run."""


def codegen_of(language: str) -> Codegen | None:
    """Texts, where the target itself makes binaries of them."""
    return GpuCodegen(CUDA, machine=resolve_target(TARGETS["cuda"]).machine) if language == "cuda" else None


@pytest.fixture(scope="module")
def kits() -> Iterator[dict[str, Kit]]:
    with shimmed(TARGETS["cuda"], "cuda", codegen_of("cuda")) as cuda, shimmed(TARGETS["metal"], "metal") as metal:
        yield {"cuda": Kit.open(cuda, quick=False), "metal": Kit.open(metal, quick=False)}


def samples() -> dict[str, Case]:
    return Kit.cases(Kit("", None, None))  # type: ignore[arg-type]  # they are every target's


def stratified(found: dict[str, Case]) -> list[str]:
    order = sorted(found, key=lambda n: zlib.crc32(n.encode()))
    return sorted({*(next(n for n in order if found[n].op.__name__ == op) for op in ALWAYS), *order[:27]})


def pytest_generate_tests(metafunc: Any) -> None:
    if "names" in metafunc.fixturenames:
        found = samples()
        names = list(found) if metafunc.config.getoption("--full") else stratified(found)
        chunks = [names[k : k + AT_ONCE] for k in range(0, len(names), AT_ONCE)]
        metafunc.parametrize("names", chunks, ids=[f"{c[0]}…".replace(" ", "-") for c in chunks])


def device_of(kit: Kit) -> ShimDevice:
    found = open_device(kit.target.kind.device(kit.target.target))
    assert isinstance(found, ShimDevice)
    return found


def built(kit: Kit, compiled: dict[str, Compiled]) -> None:
    """All kernels in one library; where a text is refused, the samples say which one by themselves."""
    every = [
        Kernel.from_bytes(k.code.object, k.name)
        for c in compiled.values()
        for k in c.kernels.values()
        if k.code is not None
    ]
    try:
        device_of(kit).build(every)
    except Exception:  # noqa: BLE001 - each is built by itself then
        return


@pytest.mark.parametrize("language", TARGETS)
def test_samples(kits: dict[str, Kit], language: str, names: list[str]) -> None:
    kit, found = kits[language], samples()
    compiled, wrong = {}, []
    for name in names:
        try:
            compiled[name] = kit.compile_alone(found[name].graph())
        except Declined as error:
            if not is_a_reason(str(error), language):
                wrong.append(f"{name}: declined: {error}")
        except WeftError as error:
            wrong.append(f"{name}: {error}")
    built(kit, compiled)
    for k, (name, c) in enumerate(compiled.items()):
        case = found[name]
        try:
            device_of(kit).seed = k % 3  # threads forwards, backwards, by chance
            got = list(c.executable.run(case.inputs()).values())
            kit.compare(name, got, case.expected(), case.tolerance())
        except (WeftError, Disagreement) as error:
            wrong.append(f"{name} [{', '.join(dict.fromkeys(k.rule for k in c.kernels.values()))}]: {error}")
    assert not wrong, f"{len(wrong)} of {len(names)}:\n" + "\n".join(wrong)


HOST_ONLY = (
    "[operator]",
    "[strings]",
    "[string]",
    "[control_flow]",
    "[data]",
    "[sequence]",
    "[optional]",
    "[language]",
    "[host]",
    "[no_rule]",
)


def is_a_reason(text: str, language: str) -> bool:
    """Whether a sample may be declined for this."""
    return text.strip().endswith(HOST_ONLY) and ("float64" not in text or language == "metal")


# -- models


@pytest.mark.one_in(2)
@pytest.mark.parametrize("language", TARGETS)
@pytest.mark.parametrize("name", [*GRAPHS, *MODELS])
def test_models(kits: dict[str, Kit], language: str, name: str) -> None:
    """Whole, all on the target: fused groups, layouts, sizes of several runs, a saved copy."""
    kit, case = kits[language], {**GRAPHS, **MODELS}[name]
    device_of(kit).seed = 2
    kit.check_graph(case.build(), kit.compile_alone(case.build()), case.inputs(), case.ulps)


class Replayed(Rule):
    """What was decided for larger kernels, decided for smaller ones of the same structure. `replayed`: for how many."""

    name, priority = "replayed", 1000

    def __init__(self, kernels: Iterable[Any], rules: Iterable[Rule]) -> None:
        self.kernels = {structure(k.naive): k for k in kernels if k.trace is not None}
        self.rules = {r.name: r for r in rules}
        self.replayed = 0

    def offer(self, program: Program, machine: Any) -> Offer | Decline:
        if structure(program) not in self.kernels:
            return Decline("structure", "no larger kernel is like it")
        return Offer(0.0)

    def apply(self, schedule: Schedule) -> None:
        larger = self.kernels[structure(schedule.program)]
        # Into how many parts a sum is cut goes by its length: of a short one so many leave none for the tile.
        schedule.overrides.update({name: v for name, v in larger.trace.choices.items() if name != "parts"})
        self.rules[larger.rule].apply(schedule)
        self.replayed += 1


def structure(program: Program) -> str:
    """A program without its name and numbers."""
    return re.sub(r"\d+", "#", str(program).partition("(")[2])


TWINS: dict[str, tuple[Callable[[], Graph], Callable[[], Graph]]] = {
    "resnet18": (lambda: models.resnet18(), lambda: models.resnet18(size=64)),
    "mobilenet_v2": (lambda: models.mobilenet_v2(), lambda: models.mobilenet_v2(size=64)),
    "transformer": (
        lambda: models.transformer(features=768, heads=12, steps=128),
        lambda: models.transformer(features=256, heads=4, steps=128),
    ),
    "mlp": (
        lambda: models.mlp(features=(2048, 4096, 1024), batch=128),
        lambda: models.mlp(features=(128, 512, 256), batch=128),
    ),
}
"""Models as they are used, and at extents that a CPU computes thread by thread."""


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore::weft.errors.ScheduleWarning")  # of a tile that does not fit
@pytest.mark.parametrize("language", TARGETS)
@pytest.mark.parametrize(
    "name", ["mlp", "transformer", *(pytest.param(n, marks=pytest.mark.full) for n in ("resnet18", "mobilenet_v2"))]
)
def test_schedules_of_large_models_at_small_extents(language: str, name: str) -> None:
    """What is chosen for kernels as large as in use, on small twins: the tiles that GPUs will run, with ragged edges as
    well, run by the shim."""
    large, small = TWINS[name]
    with shimmed(TARGETS[language], language, codegen_of(language)) as called:
        rule = Replayed(
            Kit.open(called, quick=False).compile_alone(large()).kernels.values(),
            resolve_target(TARGETS[language]).rules,
        )
    with shimmed(TARGETS[language], language, codegen_of(language), [rule]) as called:
        kit, graph = Kit.open(called, quick=False), small()
        compiled = kit.compile_alone(graph)
        fed = {
            v.name: np.random.default_rng(0).standard_normal([int(str(d)) for d in v.shape]).astype(np.float32)
            for v in graph.inputs
        }
        got = [np.array(a) for a in compiled.executable.run(fed).values()]
        kit.compare(name, got, evaluate(graph, fed), 4096)
    assert 3 * rule.replayed >= len(compiled.kernels), (
        f"{rule.replayed} of {len(compiled.kernels)} kernels are scheduled as the large ones are"
    )


# -- languages


def made_up() -> Dialect:
    """Words that no compiler knows, until a header says what they mean: a table, and nothing else, is a language."""
    return Dialect(
        name="loom",
        header=('#include "loom.h"',),
        types={
            "bool": "truth",
            "int32": "whole",
            "int64": "long whole",
            "uint8": "crumb",
            "uint32": "natural",
            "uint64": "long natural",
            "float32": "real",
        },
        kernel="weave {name}({parameters})",
        buffer="{const}{type} *threads {name}",
        size="{type} {name}",
        function="static pure",
        scopes={
            "local": "{type} {name}[{size}];",
            "register": "{type} {name}[{size}];",
            "shared": "common {type} {name}[{size}];",
        },
        shared_scopes=frozenset({"shared"}),
        indices={
            f"{kind}.{axis}": f"{name}({k})"
            for kind, name in (("blockIdx", "loom"), ("threadIdx", "shuttle"))
            for k, axis in enumerate("xyz")
        },
        barrier="beat();",
        functions={"sqrt": "root({0})", "floor": "below({0})", "abs": "size({0})"},
        suffixes={"int64": "L", "uint64": "UL", "uint32": "U", "float32": "f"},
    )


LOOM = """
#define truth bool
#define whole int
#define crumb unsigned char
#define natural unsigned
#define real float
#define weave extern "C" __global__ void
#define threads
#define pure inline
#define common __shared__
#define loom(k) ((&blockIdx.x)[k])
#define shuttle(k) ((&threadIdx.x)[k])
#define beat() __syncthreads()
#define root sqrtf
#define below floorf
#define size fabsf
"""


def test_a_made_up_language_runs_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules, lowering, codegen and launches are everybody's: a new language is its table and a device."""
    monkeypatch.setitem(shims.WORDS, "cuda", LOOM)
    machine = grid_machine("loom", cores=2, shared=16 << 10, threads=128, warp=1)
    with shimmed("cuda -arch=sm_75", "cuda", GpuCodegen(made_up(), machine=machine)) as called:
        for name in ("mlp of any batch", "resnet18"):
            kit, case = Kit.open(called, quick=False), MODELS[name]
            kit.check_graph(case.build(), kit.compile_alone(case.build()), case.inputs(), case.ulps)


@pytest.mark.parametrize(
    "table",
    [
        "plugins/cuda/weft_cuda/dialect.py",
        "plugins/metal/weft_metal/dialect.py",
        "plugins/opencl/weft_opencl/dialect.py",
    ],
)
def test_a_language_is_a_table_of_fewer_than_200_lines(table: str) -> None:
    assert len((ROOT / table).read_text().splitlines()) < 200
