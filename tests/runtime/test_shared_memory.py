"""A device that works on the host's memory: nothing is copied, results are the caller's own, archives and errors are as
of any device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.test_steps import Board, expected, plan

from weft.errors import ExecutionError
from weft_runtime import device as devices
from weft_runtime.arrays import Array
from weft_runtime.device import HostDevice, Memory, Slice
from weft_runtime.executable import Executable


class Shared(Board):
    shares_memory = True

    def __init__(self) -> None:
        super().__init__()
        self.shared: list[Array] = []

    def share(self, data: Array) -> Memory:
        if self.fail == "share":
            raise OSError("the pages cannot be pinned")
        self.shared.append(data)
        return super().share(data)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    made = Shared()
    monkeypatch.setattr(devices, "_open", {"board": made})
    yield made


def test_nothing_is_copied(board: Shared) -> None:
    exe, x = plan(), np.arange(12, dtype=np.float32).reshape(3, 4)
    for _ in range(2):
        np.testing.assert_allclose(exe(x), expected(x))
    assert not {"write", "read"} & set(board.log) and board.log.count("wait") == 2
    # The constant once, and in each call what comes and what goes.
    assert [a.shape for a in board.shared] == [(3, 4), (3, 4), (1,), (3, 4), (3, 4)]


def test_a_result_is_the_memory_that_the_device_wrote(board: Shared) -> None:
    exe, x = plan(), np.ones((2, 4), np.float32)
    first, second = exe(x), exe(2 * x)
    assert np.shares_memory(first, board.shared[1]) and not np.shares_memory(first, second)
    np.testing.assert_allclose(first, expected(x))  # the second call has left it alone


def test_scratch_is_the_devices_own(board: Shared) -> None:
    exe = plan()
    exe(np.ones((3, 4), np.float32))
    assert board.used == 3 * 32
    del exe
    assert board.used == 0


def test_sizes_of_zero_and_storage_of_the_caller(board: Shared) -> None:
    exe = plan()
    assert exe(np.empty((0, 4), np.float32)).shape == (0, 4)
    x, out = np.ones((3, 4), np.float32), np.empty((3, 4), np.float32)
    assert exe.run({"x": x}, out={"y": out})["y"] is out
    np.testing.assert_allclose(out, expected(x))


def test_what_cannot_be_shared_is_an_error_that_says_what(board: Shared) -> None:
    exe, x = plan(), np.ones((3, 4), np.float32)
    board.fail = "share"
    with pytest.raises(
        ExecutionError, match="sharing 'v' failed on device 'board'\n  why: OSError: the pages cannot be pinned"
    ):
        exe(x)
    board.fail = ""
    np.testing.assert_allclose(exe(x), expected(x))


def test_an_archive_shares_its_mapped_weights(board: Shared, tmp_path: Path) -> None:
    x: Any = np.ones((3, 4), np.float32)
    plan().save(tmp_path / "m.weft")
    exe = Executable.load(tmp_path / "m.weft")
    np.testing.assert_allclose(exe(x), expected(x))
    assert not board.shared[2].flags.writeable and "write" not in board.log


class Doubles(HostDevice):
    """All that there is to say of a device on the host's memory."""

    def load(self, image: bytes, entries: Mapping[str, int]) -> Any:
        return {name: image[at : at + 1] for name, at in entries.items()}

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        views = [self.bytes(b).view(np.float32) for b in buffers]
        if module[kernel] == b"d":
            views[-1][...] = views[0] * 2
        else:
            views[2][...] = views[3][: views[0].size] = views[0] * views[1][0]


def test_a_device_on_the_hosts_memory_says_how_it_launches_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Doubles("board", capacity=1 << 12)
    monkeypatch.setattr(devices, "_open", {"board": device})
    exe, x = plan(), np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(exe(x), expected(x))
    assert device.capacity - device.free == 3 * 32  # the arena
    with pytest.raises(ExecutionError, match="device 'board' has too little memory\n  why: 32000 bytes are wanted"):
        device.reserve(32000)
    piece = Slice(device.reserve(64), 16, 8)
    device.write(piece, np.arange(2, dtype=np.float32))
    read = np.empty(2, np.float32)
    device.read(piece, read)
    assert read.tolist() == [0, 1]
    del exe, piece
    assert device.free == device.capacity
