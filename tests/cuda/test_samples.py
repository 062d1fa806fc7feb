"""Every kernel of every operator's samples is taken by NVRTC. CI: one sample of each operator and some more, for sm_90;
`pytest --full`: all, for sm_80 too."""

from __future__ import annotations

import zlib

import pytest

from weft import dtypes as dt
from weft.errors import UnsupportedError
from weft.mixed import MixedCompilation
from weft.resolve import resolve_targets
from weft_gpu.image import unpack
from weft_ops import ALL_OPERATORS
from weft_testing.conform.kit import Case

CASES = {
    f"{op.__name__}-{s.name or k}": Case(op, s, "", s.name or str(k))
    for op in ALL_OPERATORS
    for k, s in enumerate(op.samples())
}


ALWAYS = frozenset(
    {"Add", "Conv", "MatMul", "MaxPool", "Softmax", "LayerNorm", "ReduceSum", "Transpose", "Gelu", "Resize", "CumSum"}
)
"""Never declined."""


def stratum(name: str) -> tuple[str, str]:
    case = CASES[name]
    found = [dt.dtype(x.dtype).name for x in case.sample.inputs if x is not None]
    return case.op.__name__, found[0] if found else ""


def stratified() -> list[str]:
    """A sixth of the strata, one sample each, the same every time, and all operators."""
    chosen: dict[tuple[str, str], str] = {}
    for name in sorted(CASES, key=lambda n: zlib.crc32(n.encode())):
        chosen.setdefault(stratum(name), name)
    first: dict[str, str] = {}
    for (op, _), name in chosen.items():
        first.setdefault(op, name)
    return sorted({*first.values(), *(n for n in chosen.values() if zlib.crc32(n.encode()) % 6 == 0)})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full")
        metafunc.parametrize("arch", ["sm_80", "sm_90"] if full else ["sm_90"])
        metafunc.parametrize("name", list(CASES) if full else stratified())


@pytest.mark.one_in(2)
def test_kernels_of_a_sample_compile(name: str, arch: str) -> None:
    try:
        exe = MixedCompilation(resolve_targets(f"cuda -arch={arch}"), cache=False).run(CASES[name].graph())
    except UnsupportedError as error:  # what only a host computes is declined, with a reason and its code
        assert "cuda: " in str(error) and "[" in str(error)
        assert CASES[name].op.__name__ not in ALWAYS
        return
    for step in exe.manifest.steps:
        if step.kind == "device":
            kernels = unpack(exe._code[step.section], exe.manifest.sections[step.section].entries, tensors=True)  # type: ignore[union-attr]
            assert all(launch.code[:4] == b"\x7fELF" for k in kernels.values() for launch in k.launches)
