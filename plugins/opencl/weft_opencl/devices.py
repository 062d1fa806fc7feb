"""The OpenCL devices of this machine: which there are, which one a user means, and what one says about itself.

Nothing of the compiler is imported here: a saved model finds its device by this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from weft.errors import ExecutionError, WeftError
from weft.machine import Grid, Transfer

INSTALL = (
    "install the OpenCL driver of your device; for this machine's processor `apt-get install pocl-opencl-icd`, or"
    " without root `apt-get download` and `dpkg -x` it and libpocl2, and let OCL_ICD_VENDORS name the folder of its"
    " .icd file"
)
BASES = 8
"""Buffers that a kernel takes which gets the others by a table of places in them; see `table`."""
SHARED_MEMORY, OWN_MEMORY = Transfer(20e-6, 10e9), Transfer(50e-6, 12e9)
"""To the host's memory, of a device that works in it, and of one with a memory of its own."""
_KINDS = ("GPU", "ACCELERATOR", "CUSTOM", "CPU")  # in the order in which they are chosen


@dataclass(frozen=True)
class Found:
    """One device.

    Args:
        name, platform: what the driver calls them, without commas; alike ones of a platform are numbered: "X", "X #2".
        device: pyopencl's.
    """

    name: str
    platform: str
    device: Any = field(compare=False, repr=False)

    @property
    def title(self) -> str:
        """Distinct among the devices of a machine."""
        return f"{self.name} on {self.platform}"

    @property
    def version(self) -> str:
        """Of platform, driver and device, in one text: what its compiler does depends on nothing else."""
        d = self.device
        return " / ".join(_words(v) for v in (d.platform.version, d.driver_version, d.version, d.opencl_c_version))


def _words(text: str) -> str:
    # A comma and a blank separate targets.
    return " ".join(text.replace(",", " ").split())


@cache
def found() -> tuple[Found, ...]:
    """Every device here, the best guess first.

    Raises:
        ExecutionError: there is none; says what to install.
    """
    try:
        import pyopencl as cl
    except ImportError as error:
        raise ExecutionError(
            "OpenCL cannot be used here", why=f"pyopencl cannot be imported: {error}", hint="pip install pyopencl"
        ) from None
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:  # the loader says so where no driver is registered
        raise ExecutionError("no OpenCL driver is here", why=_said(error), hint=INSTALL) from None
    devices = []
    for number, platform in enumerate(platforms):
        try:
            those = platform.get_devices()
        except cl.Error:  # a driver without its device
            continue
        name = _words(platform.name) + (
            f" #{number + 1}" if [p.name for p in platforms].count(platform.name) > 1 else ""
        )
        names = [_words(d.name) for d in those]
        for k, d in enumerate(those):
            alike = names[:k].count(names[k])
            devices.append(Found(names[k] + (f" #{alike + 1}" if alike else ""), name, d))
    if not devices:
        drivers = ", ".join(_words(p.name) for p in platforms) or "no driver"
        raise ExecutionError("no OpenCL device is here", why=f"{drivers} found none", hint=INSTALL)
    return tuple(sorted(devices, key=lambda f: _rank(cl, f.device)))


def _rank(cl: Any, device: Any) -> int:
    return next((k for k, kind in enumerate(_KINDS) if device.type & getattr(cl.device_type, kind)), len(_KINDS))


def _said(error: Exception) -> str:
    return " ".join(str(error).split())


def choose(
    device: str | None,
    platform: str | None,
    devices: Sequence[Found] | None = None,
    error: Callable[..., WeftError] = ExecutionError,
    where: str | None = None,
) -> Found:
    """The device that a user means.

    Args:
        device, platform: a number in the order of `found`, a name, or a part of one, however written; None: the first
            there is.

    Raises:
        WeftError: of type `error`: there is no such device, or there are several.
    """
    every = tuple(devices) if devices is not None else found()
    known = "; ".join(f"{k}: {f.name} (-platform='{f.platform}')" for k, f in enumerate(every))
    left = every
    if platform is not None:
        names = list(dict.fromkeys(f.platform for f in every))
        wanted = _named(platform, names)
        if not wanted:
            raise error(
                f"no OpenCL platform is called '{platform}'",
                where=where,
                hint="platforms: " + "; ".join(f"{k}: {n}" for k, n in enumerate(names)),
            )
        if len(wanted) > 1:
            raise error(
                f"several OpenCL platforms match '{platform}'",
                where=where,
                why="; ".join(wanted),
                hint="give the whole name, or a number",
            )
        left = tuple(f for f in every if f.platform == wanted[0])
    if device is None:
        return left[0]
    matching = (
        [left[int(device)]]
        if device.isdigit() and int(device) < len(left)
        else [f for f in left if f.name in _named(device, [f.name for f in left])]
    )
    if not matching:
        raise error(f"no OpenCL device is called '{device}'", where=where, hint="devices: " + known)
    if len(matching) > 1:
        raise error(
            f"several OpenCL devices match '{device}'",
            where=where,
            why=known,
            hint="give -platform as well, the whole name, or a number",
        )
    return matching[0]


def _named(text: str, names: Sequence[str]) -> list[str]:
    """Which of `names` a user means by `text`."""
    if text.isdigit() and int(text) < len(names):
        return [names[int(text)]]
    for fits in (lambda n: n == text, lambda n: n.lower() == text.lower(), lambda n: text.lower() in n.lower()):
        some = list(dict.fromkeys(n for n in names if fits(n)))
        if some:
            return some
    return []


def titled(title: str) -> Found:
    """The device of this title. Raises ExecutionError if it is not here."""
    every = found()
    for f in every:
        if f.title == title:
            return f
    raise ExecutionError(
        f"no OpenCL device '{title}' is here",
        why="devices: " + ", ".join(f.title for f in every),
        hint="compile the model again for one of these",
    )


# -- what a device says about itself


def extensions(device: Any) -> frozenset[str]:
    return frozenset(device.extensions.split())


def has_float64(device: Any) -> bool:
    return "cl_khr_fp64" in extensions(device)


def has_float16(device: Any) -> bool:
    return "cl_khr_fp16" in extensions(device)


def has_int64_atomics(device: Any) -> bool:
    return {"cl_khr_int64_base_atomics", "cl_khr_int64_extended_atomics"} <= extensions(device)


def keeps_programs(device: Any) -> bool:
    """Whether the driver keeps what it has compiled from source. Asking it for binaries may cost as much again: PoCL
    compiles them for groups of any size."""
    from pyopencl.characterize import has_src_build_cache

    return bool(has_src_build_cache(device))


def build_options(device: Any) -> tuple[str, ...]:
    """What programs are compiled with: division and square root as IEEE 754 has them, where the device can; nothing
    that makes arithmetic inexact."""
    import pyopencl as cl

    correct = device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    return ("-cl-fp32-correctly-rounded-divide-sqrt",) if correct else ()


def grid(device: Any) -> Grid:
    """What a device allows of grids, and how its threads are run, as far as drivers tell."""
    x, y, z = (*(int(n) for n in device.max_work_item_sizes), 1, 1)[:3]
    known = extensions(device)
    warp, registers, across = 1, 65536, 2**31 - 1
    if "cl_nv_device_attribute_query" in known:
        warp, registers, across = int(device.warp_size_nv), int(device.registers_per_block_nv), 65535
    elif "cl_amd_device_attribute_query" in known and hasattr(device, "wavefront_width_amd"):
        warp = int(device.wavefront_width_amd)
    threads = int(device.max_work_group_size)
    return Grid(
        threads=threads, threads_per_axis=(x, y, z), groups_per_axis=(2**31 - 1, across, across), warp=warp,
        registers=registers,
        resident=max(threads, 1024),
    )  # fmt: skip


def features(device: Any) -> frozenset[str]:
    """What schedule rules and the dialect may ask for: float64, float16, int64_atomics."""
    has = {"float64": has_float64(device), "float16": has_float16(device), "int64_atomics": has_int64_atomics(device)}
    return frozenset(name for name, there in has.items() if there)
