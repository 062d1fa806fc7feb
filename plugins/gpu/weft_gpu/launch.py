"""The grid of a launch, checked against the limits of the device. This module is part of the runtime: it imports no
compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.errors import ExecutionError
from weft.machine import Grid
from weft_gpu.image import Launch

MOST_GROUPS = 2**31 - 1


def grid_of(launch: Launch, dims: Sequence[int], limits: Grid, kernel: str) -> tuple[int, int, int] | None:
    """Groups along x, y and z for these sizes; None if there is none, and nothing is to be launched.

    Args:
        dims: the kernel's, all of them.
        limits: what the device allows.
        kernel: the name that errors say.

    Raises:
        ExecutionError: the grid or its groups are larger than the device allows, or the grid asks for a dim that the
            kernel does not have.
    """
    env = {f"d{k}": int(n) for k, n in enumerate(dims)}
    try:
        x, y, z = (max(0, int(extent(env))) for extent in launch.extents)
    except (KeyError, ZeroDivisionError, OverflowError) as error:
        why = "a formula divides by 0" if isinstance(error, ZeroDivisionError) else f"of a formula {error}"
        if isinstance(error, KeyError):
            why = f"it uses {error}, the kernel has {len(dims)} dim(s)"
        raise ExecutionError(
            f"the grid of kernel '{kernel}' is damaged",
            where=", ".join(launch.grid),
            why=why,
            hint="compile the model again",
        ) from None
    if 0 in (x, y, z):
        return None
    threads = math.prod(launch.group)
    wrong = (
        [f"{threads} threads are wanted in a group, {limits.threads} are allowed"] if threads > limits.threads else []
    )
    for what, wanted, allowed in (
        ("threads", launch.group, limits.threads_per_axis),
        ("groups", (x, y, z), limits.groups_per_axis),
    ):
        # Kernels count groups in 32 bits.
        tests = [(axis, n, min(most, MOST_GROUPS)) for axis, n, most in zip("xyz", wanted, allowed)]
        wrong += [f"{n} {what} are wanted along {axis}, {most} are allowed" for axis, n, most in tests if n > most]
    if wrong:
        raise ExecutionError(
            f"kernel '{kernel}' cannot be launched on this device",
            where=f"grid {x} × {y} × {z} of groups of {' × '.join(map(str, launch.group))}",
            why="; ".join(wrong), hint="run smaller inputs, or compile for this device",
        )  # fmt: skip
    return x, y, z
