"""A language of one's own: the emitter needs its table and nothing else of Weft but the core."""

from __future__ import annotations

import pytest
from tests.c.dialects import CUDA, METAL, OPENCL

from weft.errors import CodegenError
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft_c_family import Dialect, Emitted, Emitter


def emitted(dialect: Dialect, text: str) -> Emitted:
    emitter = Emitter(dialect)
    program = lower_program(parse_program(text), emitter.functions)
    assert emitter.check(program) == []
    return emitter.emit(program)


def test_a_made_up_language() -> None:
    """Another table is another language; nothing else is touched."""
    loom = Dialect(
        name="loom", types={"float32": "real", "int64": "whole", "uint32": "natural", "uint64": "long natural",
            "bool": "truth"},
        kernel="weave {name}({parameters})", buffer="{const}{type} threads {name}", size="{type} {name}",
        function="pure",
        scopes={"register": "{type} {name}<{size}>;"}, indices={"blockIdx.x": "shuttle()"}, suffixes={}, end="done;",
    )  # fmt: skip
    program = (
        "program p(x: float32[n, 4]) -> (y: float32[n, 4]) dims(n) { for b in n blockIdx.x { for k in 4 { y[b, k] ="
        " max(x[b, k], 1.5f32) } } }"
    )
    assert (
        emitted(loom, program).source
        == "// p\n\npure real weft_max_f32(real a, real b) { return a > b || a != a ? a : b; }\n\nweave p(const real"
        " threads x, real threads y, whole n) {\n  // y\n  const whole b = (whole)shuttle();\n  for (whole k = 0; k"
        " < 4; ++k) {\n    y[b * 4 + k] = weft_max_f32(x[b * 4 + k], 1.5);\n  }\n  done;\n}\n"
    )


def test_what_a_language_lacks_is_said() -> None:
    program = parse_program(
        "program p(x: float64[4]) -> (y: float64[4]) { for t in 4 threadIdx.x { atomic y[t] += x[t]*2.0f64"
        " @barrier() } }"
    )
    assert Emitter(METAL).check(program) == ["dtype float64", "atomic add of float64"]
    bare = Emitter(Dialect(name="bare", types={}, kernel="k")).check(program)
    assert bare == ["dtype float64", "threadIdx.x loop t", "dtype int64", "atomic add of float64", "intrinsic barrier"]


@pytest.mark.parametrize("dialect", [CUDA, OPENCL, METAL], ids=lambda d: str(d.name))
def test_the_grid_and_the_index_of_a_group(dialect: Dialect) -> None:
    text = (
        "program p(x: float32[n]) -> (y: float32[n]) dims(n) { for b in (n + 7)//8 blockIdx.x { for t in 8 threadIdx.x"
        " { if b*8 + t < n { y[b*8 + t] = x[b*8 + t] + 1.0f32 } } } }"
    )
    found = emitted(dialect, text)
    assert [(kind, str(n)) for kind, n in found.grid] == [("blockIdx.x", "(n + 7)//8"), ("threadIdx.x", "8")]
    for index in ("blockIdx.x", "threadIdx.x"):
        assert dialect.indices[index] in found.source


def test_what_is_lacking_is_an_error() -> None:
    program = parse_program("program p(x: float64[4]) -> (y: float64[4]) { for k in 4 { y[k] = x[k] } }")
    with pytest.raises(CodegenError, match="float64"):
        Emitter(METAL).emit(program)
