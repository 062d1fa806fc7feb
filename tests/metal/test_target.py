"""The target "metal": families, options, texts, and what it declines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.c.test_dialects import STAGED
from tests.metal.fake import Gpu

import weft
from weft.errors import TargetError, UnsupportedError
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft_gpu.codegen import GpuCodegen
from weft_gpu.passes import grid_passes
from weft_metal.dialect import dialect
from weft_metal.families import FAMILIES
from weft_ops.activation import Relu
from weft_testing.models import mlp
from weft_testing.plugin import resolve_target


def test_without_a_gpu_code_is_for_the_oldest_family() -> None:
    found = resolve_target("metal")
    assert str(found.target) == "metal -family=apple7 -cores=8"
    assert (
        found.machine.grid is not None
        and found.machine.grid.warp == 32
        and found.machine.scopes["shared"].size == 32 << 10
    )
    assert {"simdgroup_matrix", "shuffle", "bfloat"} <= found.machine.features


@pytest.mark.parametrize(
    "gpu", [{"families": (5001, 2002, 1007, 1008, 1009)}, {"families": (5001, 2002)}], indirect=True
)
def test_with_a_gpu_it_is_for_that(gpu: Gpu) -> None:
    assert resolve_target("metal").target.options.family == ("apple9" if 1009 in gpu.families else "mac2")


@pytest.mark.parametrize("family", [f.name for f in FAMILIES])
def test_every_family_compiles(family: str) -> None:
    exe = weft.compile(mlp(batch=2), target=f"metal -family={family} -cores=4", cache=False)
    assert [step.kind for step in exe.manifest.steps].count("device") == 1


@pytest.mark.parametrize(
    "text, says",
    [("metal -family=apple3", "'apple3' is no GPU family that Weft supports"), ("metal -cores=0", "1 to 256, got 0")],
)
def test_options_that_are_none(text: str, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        resolve_target(text)


def test_what_metal_lacks_is_declined_with_a_reason() -> None:
    g = GraphBuilder("wide")
    g.output(g.add(Relu(), g.input("x", tensor_type("float64", (4,)))), "y")
    with pytest.raises(UnsupportedError, match=r"metal has no float64 \[language\]"):
        weft.compile(g.build(), target="metal", cache=False)
    assert [s.kind for s in weft.compile(g.build(), target="metal, llvm", cache=False).manifest.steps] == ["native"]


def test_text(golden: Callable[[str, str], None]) -> None:
    codegen = GpuCodegen(dialect())
    program = lower_program(parse_program(STAGED), codegen.functions, extra=grid_passes())
    assert codegen.check(program) == []
    golden("scale", codegen.source(program))


def test_the_same_code_every_time() -> None:
    first, second = (weft.compile(mlp(batch=2), target="metal", cache=False) for _ in range(2))
    assert [s.sha256 for s in first.manifest.sections.values()] == [s.sha256 for s in second.manifest.sections.values()]
    assert np.all([s.sha256 for s in first.manifest.sections.values()])
