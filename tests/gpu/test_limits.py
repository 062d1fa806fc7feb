"""What a schedule wants beyond the grids of a machine is said before anything is lowered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.loop.parser import parse_program
from weft.machine import Grid, Machine, Scope
from weft_gpu.limits import exceeds_grid

GPU = Machine(
    "gpu",
    128,
    255,
    scopes={"shared": Scope("shared", 1024, 16, "block")},
    grid=Grid(64, (64, 8, 4), (1 << 31, 100, 100)),
)
FITS = """for b in n blockIdx.x {
  allocate s: float32[64] in shared
  allocate a: float32[64] in register
  for t in 64 threadIdx.x { block A(i: 64 = t) { s[i] = x[i] a[i] = x[i] } }
  for u in 8 threadIdx.x { block B(j: 8 = u) { y[j] = s[63 - j] + a[j] } }
}"""


@pytest.mark.parametrize(
    ("body", "wants"),
    [
        (FITS, None),
        ("for i in 4 { y[i] = x[i] }", None),
        (
            FITS.replace("s: float32[64]", "s: float32[257]"),
            "needs 1040 bytes of scope 'shared' in a group, there are 1024",
        ),
        (
            FITS.replace("s: float32[64]", "s: float32[n]"),
            "needs buffer 's' in scope 'shared', of a size that is no constant",
        ),
        ("for t in 65 threadIdx.x { y[t] = x[t] }", "needs 65 threads along x, there are 64 at most"),
        (
            "for t in 8 threadIdx.x { for u in 9 threadIdx.y { y[t*9 + u] = x[t] } }",
            "needs 9 threads along y, there are 8 at most",
        ),
        (
            "for t in 16 threadIdx.x { for u in 8 threadIdx.y { y[t*9 + u] = x[t] } }",
            "needs 128 threads in a group, there are 64 at most",
        ),
        ("for t in 16 threadIdx.x { y[t] = x[t] } for u in 8 threadIdx.y { y[u] = x[u] }", None),
        ("for b in 101 blockIdx.y { y[b] = x[b] }", "needs 101 groups along y, there are 100 at most"),
        (
            "for i in 2 { for b in 9 blockIdx.y { y[b] = x[b] } }",
            "cannot be launched as grids: grids: program 'p' has loops over groups in another",
        ),
        (
            "for t in n threadIdx.x { y[t] = x[t] }",
            "cannot be launched as grids: grids: the loops over threads of program 'p' are no nest, the extent n",
        ),
        (
            FITS.replace("a[j]", "a[7 - j]"),
            (
                "cannot be launched as grids: private_buffers: threads share buffer 'a' of scope register, or it is not"
                " certain"
            ),
        ),
    ],
)
def test_limits(body: str, wants: str | None) -> None:
    found = exceeds_grid(parse_program(f"program p(x: float32[256]) -> (y: float32[256]) dims(n) {{ {body} }}"), GPU)
    assert found is None if wants is None else str(found).startswith(wants)


SHUFFLES = """allocate a: float32[64] in register
for t in 64 threadIdx.x { block A(i: 64 = t) { a[i] = x[i] } }
for u in 64 threadIdx.x { block B(j: 64 = u) { y[j] = a[j ^ 16] } }"""


@pytest.mark.parametrize(
    ("warp", "features", "wants"),
    [
        (32, {"shuffle"}, None),
        (16, {"shuffle"}, "needs values of threads 16 away, a warp has 16"),
        (32, set(), "needs values of other threads, which they do not hand over"),
    ],
)
def test_what_threads_hand_each_other(warp: int, features: set[str], wants: str | None) -> None:
    machine = replace(GPU, features=frozenset(features), grid=replace(GPU.grid, warp=warp))
    assert (
        exceeds_grid(parse_program(f"program p(x: float32[256]) -> (y: float32[256]) {{ {SHUFFLES} }}"), machine)
        == wants
    )


def test_a_machine_without_grids_has_no_such_limits() -> None:
    assert (
        exceeds_grid(
            parse_program(f"program p(x: float32[256]) -> (y: float32[256]) dims(n) {{ {FITS} }}"),
            Machine("cpu", 256, 16),
        )
        is None
    )
