"""Level 2: a device's memory."""

from __future__ import annotations

import numpy as np

from weft.errors import ExecutionError
from weft_runtime.device import Device, Slice
from weft_testing.conform.kit import Kit, collect

PIECE = 1 << 16
MOST = 256 << 20
"""Bytes of one piece at most: devices that are simulated have the host's memory."""


def _data(size: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def _read(device: Device, s: Slice) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    device.synchronize()
    found = np.empty(s.bytes, np.uint8)
    device.read(s, found)
    return found


def test_opens(kit: Kit) -> None:
    device = kit.device()
    if not 0 <= device.free <= device.capacity or device.capacity <= 0:
        kit.fail(f"{device.free} of {device.capacity} bytes are free")
    if device.name != kit.target.kind.device(kit.target.target):
        kit.fail(f"the device calls itself '{device.name}', the target '{kit.target.kind.device(kit.target.target)}'")


def test_write_and_read(kit: Kit) -> None:
    device = kit.device()
    with device.lock:
        for size in (1, 3, 64, 100, 4097, 1 << 20):
            memory, data = device.reserve(size), _data(size)
            device.write(Slice(memory, 0, size), data)
            if not np.array_equal(_read(device, Slice(memory, 0, size)), data):
                kit.fail(f"{size} bytes that were written are read as others")
        for dtype in ("float32", "int64", "float16", "bool"):
            array = np.arange(24).reshape(2, 3, 4).astype(dtype)
            memory, back = device.reserve(array.nbytes), np.empty_like(array)
            device.write(Slice(memory, 0, array.nbytes), array)
            device.synchronize()
            device.read(Slice(memory, 0, array.nbytes), back)
            if not np.array_equal(array, back):
                kit.fail(f"an array of {dtype} that was written is read as another")


def test_slices(kit: Kit) -> None:
    """Copies to and from the middle touch what they name and nothing else."""
    device = kit.device()
    with device.lock:
        memory, data, piece = device.reserve(1024), _data(1024), _data(100, 1)
        device.write(Slice(memory, 0, 1024), data)
        device.write(Slice(memory, 192, 100), piece)
        data[192:292] = piece
        if not np.array_equal(_read(device, Slice(memory, 192, 100)), piece):
            kit.fail("100 bytes that were written at offset 192 are not read there")
        if not np.array_equal(_read(device, Slice(memory, 0, 1024)), data):
            at = int(np.flatnonzero(_read(device, Slice(memory, 0, 1024)) != data)[0])
            kit.fail(f"a copy of 100 bytes to offset 192 changes byte {at}")


def test_pieces_are_apart(kit: Kit) -> None:
    device = kit.device()
    with device.lock:
        pieces = [(device.reserve(PIECE), _data(PIECE, k)) for k in range(4)]
        for memory, data in pieces:
            device.write(Slice(memory, 0, PIECE), data)
        for k, (memory, data) in enumerate(pieces):
            if not np.array_equal(_read(device, Slice(memory, 0, PIECE)), data):
                kit.fail(f"piece {k} of {len(pieces)} holds what was written to another")


def test_memory_is_counted_and_given_back(kit: Kit) -> None:
    device = kit.device()
    collect()
    with device.lock:
        before = device.free
        held = [device.reserve(PIECE) for _ in range(8)]
        taken = before - device.free
        if taken < len(held) * PIECE:
            kit.fail(
                f"{len(held)} pieces of {PIECE} bytes are held, and only {taken} bytes fewer are free",
                "a request for all free memory would be too large",
            )
        held.clear()
        collect()
        if device.free < before:
            kit.fail(
                f"{before - device.free} bytes are not released when nothing refers to them",
                "after some calls the device is full",
            )
        for _ in range(64):
            device.reserve(PIECE)
        collect()
        if device.free < before:
            kit.fail(f"{before - device.free} bytes are lost after 64 pieces that were asked for and not held")


def test_capacity_is_there(kit: Kit) -> None:
    """As much as is said to be free can be had and keeps what is written, at its end too."""
    device = kit.device()
    collect()
    with device.lock:
        size = min(device.free, MOST)
        try:
            memory = device.reserve(size)
            # At every power of two: memory that is not there is often there twice.
            places = [0, *(1 << k for k in range(12, size.bit_length()) if (1 << k) + 8192 <= size), size - 4096]
            written = [(Slice(memory, at, 4096), _data(4096, k)) for k, at in enumerate(places)]
            for place, data in written:
                device.write(place, data)
        except Exception as error:  # noqa: BLE001 - foreign code
            kit.fail(
                f"{device.free} of {device.capacity} bytes are said to be free, and {size} cannot be had",
                f"{type(error).__name__}: {error}",
            )
        for place, data in written:
            if not np.array_equal(_read(device, place), data):
                kit.fail(
                    f"{size} bytes can be had, and what is written at {place.offset} is not kept: there is less than"
                    " the device says"
                )
        if device.free > device.capacity - size:
            kit.fail(f"{size} of {device.capacity} bytes are held and {device.free} are said to be free")


def test_out_of_memory(kit: Kit) -> None:
    """More than there is: an error with both numbers, after which the device takes the next request."""
    device = kit.device()
    collect()
    with device.lock:
        free = device.free
        wanted = free + 1
        try:
            device.reserve(wanted)
        except ExecutionError as error:
            missing = [n for n in (wanted, free) if str(n) not in str(error)]
            if missing:
                kit.fail(
                    f"{wanted} bytes are wanted, {free} are free, and the error does not say {missing[0]}", str(error)
                )
        except Exception as error:  # noqa: BLE001 - foreign code
            kit.fail(
                f"{wanted} bytes of {free} are wanted: {type(error).__name__} instead of an ExecutionError", str(error)
            )
        else:
            kit.fail(f"{wanted} bytes are wanted, {free} are free, and there is no error")
        memory = device.reserve(64)
        data = _data(64)
        device.write(Slice(memory, 0, 64), data)
        if not np.array_equal(_read(device, Slice(memory, 0, 64)), data):
            kit.fail("after a request that could not be met the device does not work any more")
