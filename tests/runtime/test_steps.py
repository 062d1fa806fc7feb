"""Plans of several steps: native code, a device with memory of its own, copies; and everything that can go wrong with a
device."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.models import affine

from weft.errors import ArchiveError, ExecutionError, InputError
from weft_runtime import device as devices
from weft_runtime.arrays import Array
from weft_runtime.device import Device, DeviceKind, Memory, Slice, Started
from weft_runtime.executable import Executable, NativeCode
from weft_runtime.plan import Condition, Copy, DataSymbol, DeviceCall, Launch, Place, TensorInfo


class Board(Device):
    """Memory and two kernels over float32: `double` (x → y) and `weigh` (x, w, scratch → y, dims n)."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        super().__init__("board")
        self.room, self.used, self.fail = capacity, 0, ""
        self.busy = threading.Lock()
        self.log: list[str] = []

    @property
    def capacity(self) -> int:
        return self.room

    @property
    def free(self) -> int:
        return self.room - self.used

    def allocate(self, size: int) -> Memory:
        self.used += size
        memory = Memory(size, np.empty(size, np.uint8))
        weakref.finalize(memory, self._give_back, size)
        return memory

    def _give_back(self, size: int) -> None:
        self.used -= size

    def _bytes(self, s: Slice) -> Array:
        return s.memory.handle[s.offset : s.offset + s.bytes]

    def write(self, target: Slice, data: Array) -> None:
        self.log.append("write")
        if self.fail == "write":
            raise OSError("the bus is down")
        self._bytes(target)[: data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, source: Slice, data: Array) -> None:
        self.log.append("read")
        data.reshape(-1).view(np.uint8)[...] = self._bytes(source)[: data.nbytes]

    def load(self, image: bytes, entries: Mapping[str, int]) -> Any:
        self.log.append("load")
        return {name: image[at : at + 1] for name, at in entries.items()}

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        assert self.busy.acquire(blocking=False), "two calls at once"
        try:
            if self.fail == "launch":
                raise RuntimeError("the board is on fire")
            views = [self._bytes(b).view(np.float32) for b in buffers]
            if module[kernel] == b"d":
                views[-1][...] = views[0] * 2
            else:
                x, w, y, scratch = views
                n = dims[0] * 4
                scratch[:n] = x[:n] * w[0]
                y[:n] = scratch[:n]
        finally:
            self.busy.release()

    def synchronize(self) -> None:
        self.log.append("wait")


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    made = Board()
    monkeypatch.setattr(devices, "_open", {"board": made})
    yield made


INFO = TensorInfo("x", "float32", ("n", 4))


def plan(**changes: Any) -> Executable:
    """x → native affine → v, on the board w·v → u and 2·u → y, back on the host."""
    native = affine()
    x, z = native.inputs[0], native.outputs[0]
    step = replace(native.manifest.steps[0], inputs=("x",), outputs=("v",))  # type: ignore[type-var]
    places = (
        Place("value", "v"),
        Place("constant", "w"),
        Place("arena", offset=0, bytes="n*16"),
        Place("arena", offset="n*16", bytes="n*16"),
        Place("value", "y"),
    )
    call = DeviceCall(
        "board", "kernels", ("v",), ("y",), places, (Launch("weigh", (0, 1, 2, 3), ("n",)), Launch("double", (2, 4))),
        (Condition("n < 1000", "{0} rows are too many", "take {0} - 1 at most", ("n",)),), "n*32",
    )  # fmt: skip
    code = {
        name: NativeCode(native._code[name], native.manifest.sections[name].entries, parallel=True)
        for name in native._code
    }
    options: dict[str, Any] = {
        "name": "mixed",
        "target": "board, llvm",
        "inputs": [x],
        "outputs": [TensorInfo("y", "float32", z.shape)],
        "values": [TensorInfo("v", "float32", z.shape)],
        "code": {**code, "kernels": NativeCode(b"dw", {"double": 0, "weigh": 1})},
        "steps": [step, Copy("v", "host", "board"), call, Copy("y", "board", "host")],
        "constants": {**native._constants, "w": np.array([3], np.float32)},
    }
    return Executable.build(**{**options, **changes})


def expected(x: Array) -> Array:
    return np.asarray(affine()(x)) * 6


def test_a_mixed_plan_computes(board: Board) -> None:
    exe = plan()
    for rows in (3, 8, 2):
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        np.testing.assert_allclose(exe(x), expected(x), rtol=1e-6)
    assert exe.manifest.devices == ("board",)
    assert board.log.count("load") == 1
    assert board.log.count("write") == 1 + 3  # the constant once
    assert board.log.index("wait") < board.log.index("read")


def test_the_plan_is_shown() -> None:
    assert plan().plan.splitlines()[2:] == [
        "step 0: native cpu:run(x) -> (v)",
        *affine().plan.splitlines()[3:],
        "step 1: copy v from host to board",
        "step 2: board kernels(v) -> (y)",
        "     0 weigh(v, w, arena+0, arena+n*16)",
        "     1 double(arena+0, y)",
        "step 3: copy y from board to host",
    ]


def test_storage_for_outputs(board: Board) -> None:
    x, room = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    assert plan().run({"x": x}, {"y": room})["y"] is room
    np.testing.assert_allclose(room, expected(x))
    with pytest.raises(InputError, match=r"storage for output 'y' has shape \[2, 4\], the result has \[3, 4\]"):
        plan().run({"x": x}, {"y": room[:2]})
    with pytest.raises(InputError, match=r"storage for output 'y' does not fit\n.*\n  why: it is float64"):
        plan().run({"x": x}, {"y": room.astype(np.float64)})
    with pytest.raises(InputError, match=r"'mixed' has no output 'Y'\n  y: float32\[n, 4\]"):
        plan().run({"x": x}, {"Y": room})


def test_wrong_inputs(board: Board) -> None:
    exe = plan()
    with pytest.raises(InputError, match="input 'x' has dtype float64, expected float32"):
        exe(np.ones((3, 4)))
    with pytest.raises(InputError, match="input 'x' has 1 dimensions, expected 2"):
        exe(np.ones(3, np.float32))
    with pytest.raises(InputError, match="input 'x' has size 5 on axis 1, expected 4"):
        exe(np.ones((3, 5), np.float32))


def test_conditions_name_what_is_wrong(board: Board) -> None:
    with pytest.raises(ExecutionError, match="1000 rows are too many\n  mixed\n  hint: take 1000 - 1 at most"):
        plan()(np.ones((1000, 4), np.float32))


def test_too_little_memory_is_said_before_the_launch_and_the_next_call_works(board: Board) -> None:
    exe, x = plan(), np.ones((900, 4), np.float32)
    board.room = 20_000
    with pytest.raises(
        ExecutionError,
        match=(
            r"'board' has too little memory\n  why: 28800 bytes are wanted, \d+ of 20000 are free\n  hint: run smaller"
        ),
    ):
        exe(x)
    np.testing.assert_allclose(exe(x[:5]), expected(x[:5]))
    board.room = 1 << 20
    np.testing.assert_allclose(exe(x), expected(x))


@pytest.mark.parametrize(
    ("fail", "text"),
    [
        ("launch", "kernel 'weigh' failed on device 'board'\n  why: RuntimeError: the board is on fire"),
        ("write", "the copy of 'v' failed on device 'board'\n  why: OSError: the bus is down"),
    ],
)
def test_a_failing_device_is_named_and_the_next_call_works(board: Board, fail: str, text: str) -> None:
    exe, x = plan(), np.ones((3, 4), np.float32)
    board.fail = fail
    with pytest.raises(ExecutionError, match=text):
        exe(x)
    board.fail = ""
    np.testing.assert_allclose(exe(x), expected(x))


def test_memory_is_given_back(board: Board) -> None:
    exe = plan()
    exe(np.ones((3, 4), np.float32))
    assert board.used
    del exe
    assert board.used == 0


def test_calls_from_threads_take_turns(board: Board) -> None:
    exe = plan()
    wrong: list[int] = []

    def call(rows: int) -> None:
        x = np.full((rows, 4), rows, np.float32)
        for _ in range(20):
            if not np.allclose(exe(x), expected(x)):
                wrong.append(rows)

    threads = [threading.Thread(target=call, args=(rows,)) for rows in (1, 2, 3, 4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_an_archive_holds_the_plan(board: Board, tmp_path: Path) -> None:
    exe, x = plan(), np.ones((3, 4), np.float32)
    exe.save(tmp_path / "mixed.weft")
    again = Executable.load(tmp_path / "mixed.weft")
    assert again.manifest.steps == exe.manifest.steps
    np.testing.assert_allclose(again(x), expected(x))


def test_devices_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    exe, x = plan(), np.ones((3, 4), np.float32)
    monkeypatch.setattr(devices, "_open", {})
    monkeypatch.setattr(devices, "_find", dict)
    with pytest.raises(
        ExecutionError,
        match="no plugin offers the device 'board'\n  why: devices: none but the host\n  hint: install the plugin",
    ):
        exe(x)
    monkeypatch.setattr(devices, "_find", lambda: {"bord": DeviceKind("bord", lambda: None, Board)})
    with pytest.raises(ExecutionError, match="hint: did you mean 'bord'"):
        exe(x)
    monkeypatch.setattr(
        devices, "_find", lambda: {"board": DeviceKind("board", lambda: "nothing answers on the bus", Board)}
    )
    with pytest.raises(ExecutionError, match="the device 'board' is not here\n  why: nothing answers on the bus"):
        exe(x)
    monkeypatch.setattr(devices, "_find", lambda: {"board": DeviceKind("board", lambda: None, Board)})
    np.testing.assert_allclose(exe(x), expected(x))


def broken(step: int, **changes: Any) -> str | None:
    manifest = plan().manifest
    steps = list(manifest.steps)
    steps[step] = replace(steps[step], **changes)
    return manifest.with_(steps=tuple(steps)).trouble()


def test_a_malformed_plan_says_what_is_wrong() -> None:
    assert plan().manifest.trouble() is None
    assert broken(0, outputs=("nothing",)) == "step 0 names 'nothing', which is no value of the plan"
    assert broken(0, section="gone") == "step 0 names gone:run, which no section has"
    assert broken(0, constants=("v",)) == "step 0 names 'v', which is no constant of the plan"
    assert broken(1, value="nothing") == "step 1 copies 'nothing', which is no value of the plan"
    assert broken(1, source="board") == "step 1 copies 'v' from board, where nothing has put it"
    assert broken(2, inputs=("x",)) == "step 2 needs 'x' on board, where nothing has put it"
    assert broken(2, places=(Place("value", "x"),)) == "step 2 uses 'x', which is neither its input nor its output"
    assert broken(2, launches=(Launch("halve", ()),)) == "step 2 names kernels:halve, which no section has"
    manifest = plan().manifest
    assert manifest.with_(steps=manifest.steps[:3]).trouble() == "no step gives the output 'y'"


def test_a_formula_in_an_archive_is_checked(board: Board, tmp_path: Path) -> None:
    manifest = plan().manifest
    bad = replace(manifest.steps[2], arena="open('/etc/passwd')")
    with pytest.raises(ArchiveError, match="is no formula over sizes"):
        plan(steps=[*manifest.steps[:2], bad, manifest.steps[3]])


LAUNCHES = plan().manifest.steps[2].launches


def sized(board: Board, **changes: Any) -> Executable:
    manifest = plan().manifest
    return plan(steps=[*manifest.steps[:2], replace(manifest.steps[2], **changes), manifest.steps[3]])


def test_sizes_that_cannot_be_are_errors(board: Board) -> None:
    x = np.ones((3, 4), np.float32)
    with pytest.raises(
        ExecutionError,
        match=r"a size that the plan of 'mixed' needs cannot be computed\n  why: 'k' is not known\n  hint: compile",
    ):
        sized(board, arena="k*16")(x)
    with pytest.raises(
        ExecutionError,
        match=(
            r"cannot be computed\n  why: integer division or modulo by zero|cannot be computed\n  why: division by zero"
        ),
    ):
        sized(board, arena="16//(n - 3)")(x)
    with pytest.raises(
        ExecutionError, match=r"a size that the plan of 'mixed' needs cannot be computed\n  why: (integer )?division"
    ):
        plan(inputs=[TensorInfo("x", "float32", ("n", "4//(n - 3)"))])(x)
    huge = plan(outputs=[TensorInfo("y", "float32", ("n*4000000000000000000", "n*4000000000000000000"))])
    with pytest.raises(ExecutionError, match=r"'y' would be larger than memory can be\n  y: float32"):
        huge(x)
    for size, why in (
        ("n*1000000000000000000", "it is 3000000000000000000, at most"),
        ("n*4000000000000000000", "a number leaves 64 bits"),
    ):
        for change in ({"arena": size}, {"launches": tuple(replace(s, dims=(size,)) for s in LAUNCHES)}):
            with pytest.raises(
                ExecutionError, match=rf"a size that 'mixed' needs on 'board' is out of range\n  why: {why}"
            ):
                sized(board, **change)(x)
    negative = plan(outputs=[TensorInfo("y", "float32", ("n - 4", 4))])
    with pytest.raises(
        ExecutionError, match=r"'y' would have a negative size\n  y: float32\[n - 4, 4\]\n  why: its shape is \[-1, 4\]"
    ):
        negative(x)


def test_a_buffer_outside_the_arena_is_refused(board: Board) -> None:
    manifest = plan().manifest
    bad = replace(manifest.steps[2], arena="n*16")
    with pytest.raises(
        ExecutionError, match=r"a buffer of 'mixed' lies outside the arena of 'board'\n  why: 48 bytes at 48"
    ):
        plan(steps=[*manifest.steps[:2], bad, manifest.steps[3]])(np.ones((3, 4), np.float32))


def test_copies_go_between_the_host_and_devices_that_steps_run_on() -> None:
    between = "copies are between the host and a device that a step runs on"
    assert broken(1, target="other") == f"step 1 copies 'v' from host to other: {between}"
    assert broken(1, target="host") == f"step 1 copies 'v' from host to host: {between}"
    assert broken(3, target="board") == f"step 3 copies 'y' from board to board: {between}"


def test_values_of_a_plan_have_names_of_their_own_and_sizes_come_from_integers() -> None:
    manifest = plan().manifest
    assert (
        manifest.with_(values=(*manifest.values, TensorInfo("y", "float32", (9,)))).trouble()
        == "two values are called 'y'"
    )
    assert (
        manifest.with_(symbols=(DataSymbol("k", "v", 0),)).trouble()
        == "a size is read from 'v', which is no value of integers"
    )
    assert (
        manifest.with_(symbols=(DataSymbol("k", "gone", 0),)).trouble()
        == "a size is read from 'gone', which is no value of the plan"
    )


def with_inputs(*more: TensorInfo, **changes: Any) -> Executable:
    """`plan` with inputs that no step uses."""
    manifest = plan().manifest
    return plan(inputs=[*more, *manifest.inputs], steps=manifest.steps, **changes)


def test_a_size_that_is_a_formula_is_checked_wherever_its_symbols_are_bound(board: Board) -> None:
    x, exe = np.ones((3, 4), np.float32), with_inputs(TensorInfo("twice", "float32", ("n*2",)))
    np.testing.assert_allclose(exe(np.ones(6, np.float32), x), expected(x))
    with pytest.raises(
        InputError,
        match=(
            r"input 'twice' has size 7 on axis 0, expected 6 \(n\*2\)\n  twice: float32\[n\*2\]\n  why: its shape is"
            r" \[7\]"
        ),
    ):
        exe(np.ones(7, np.float32), x)


def test_a_size_that_data_say_agrees_with_the_arrays_of_that_size(board: Board) -> None:
    x = np.ones((3, 4), np.float32)
    for inputs in ("ks", "sk"):
        infos = {"k": TensorInfo("k", "float32", ("k.0",)), "s": TensorInfo("s", "int64", (1,))}
        exe = with_inputs(*(infos[i] for i in inputs), symbols=[DataSymbol("k.0", "s", 0)])
        given = {"k": np.ones(5, np.float32), "s": np.array([5]), "x": x}
        np.testing.assert_allclose(exe.run(given)["y"], expected(x))
        with pytest.raises(
            InputError,
            match=(
                r"input 's' says in element 0 that k\.0 is 6, expected 5|input 'k' has size 5 on axis 0, expected 6"
                r" \(k\.0\)"
            ),
        ):
            exe.run({**given, "s": np.array([6])})


def test_a_device_that_was_opened_anew_is_given_everything_again(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    exe, x = plan(), np.ones((3, 4), np.float32)
    exe(x)
    again = Board()
    monkeypatch.setattr(devices, "_open", {"board": again})
    np.testing.assert_allclose(exe(x), expected(x))
    assert again.log.count("load") == 1 and again.used and not board.used


def test_what_is_under_way_is_waited_for(board: Board) -> None:
    """Before an arena is given up for a larger one, and after an error: the next call writes where kernels may still
    read."""
    manifest = plan().manifest
    places = (Place("value", "y"), Place("value", "z"), Place("arena", bytes="n*64"))
    larger = replace(
        manifest.steps[2],
        inputs=("y",),
        outputs=("z",),
        launches=(Launch("double", (0, 1)),),
        arena="n*64",
        places=places,
    )
    infos = {
        "outputs": [TensorInfo("z", "float32", ("n", 4))],
        "values": [*manifest.values, TensorInfo("y", "float32", ("n", 4))],
    }
    exe = plan(steps=[*manifest.steps[:3], larger, Copy("z", "board", "host")], **infos)
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(exe(x), expected(x) * 2)
    assert board.log == ["write", "load", "write", "wait", "wait", "read"]
    board.fail, board.log = "launch", []
    with pytest.raises(ExecutionError, match="the board is on fire"):
        exe(x)
    assert board.log == ["write", "wait"]


def test_memory_that_fails_is_an_error_of_the_device(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(size: int) -> Memory:
        raise KeyError("heap")

    exe, x = plan(), np.ones((3, 4), np.float32)
    monkeypatch.setattr(board, "allocate", lost)
    with pytest.raises(ExecutionError, match=r"reserving 48 bytes failed on device 'board'\n  why: KeyError: 'heap'"):
        exe(x)
    monkeypatch.undo()
    monkeypatch.setattr(devices, "_open", {"board": board})
    np.testing.assert_allclose(exe(x), expected(x))


def test_storage_has_to_be_as_it_is_for_one_native_step(board: Board) -> None:
    with pytest.raises(InputError, match="storage for output 'y' must be contiguous, aligned and writable"):
        plan().run({"x": np.ones((3, 4), np.float32)}, {"y": np.zeros((4, 3), np.float32).T})


def test_a_device_may_be_made_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def both() -> Board:
        devices.open_device("inner")
        return Board()

    monkeypatch.setattr(devices, "_open", {})
    kinds = {"board": DeviceKind("board", lambda: None, both), "inner": DeviceKind("inner", lambda: None, Board)}
    monkeypatch.setattr(devices, "_find", lambda: kinds)
    x = np.ones((3, 4), np.float32)
    done = threading.Thread(target=lambda: np.testing.assert_allclose(plan()(x), expected(x)), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive(), "it waits for itself"
    assert list(devices._open) == ["inner", "board"]


def test_launches_are_prepared_once_for_the_same_sizes_and_places(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[tuple[str, ...]] = []
    usual = Board.prepare

    def prepare(self: Board, module: Any, launches: Sequence[Started]) -> Callable[[], None]:
        prepared.append(tuple(each.kernel for each in launches))
        return usual(self, module, launches)

    monkeypatch.setattr(Board, "prepare", prepare)
    exe = plan()

    def run(rows: int) -> int:
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        before = len(prepared)
        np.testing.assert_allclose(exe(x), expected(x), rtol=1e-6)
        return len(prepared) - before

    assert run(8) == 1
    assert prepared == [("weigh", "double")]
    assert [run(8), run(3), run(3), run(8)] == [0, 1, 0, 0]
    assert run(20) == 1  # the arena grows: nothing lies where it was
    assert run(8) == 1
    board.fail = "launch"
    with pytest.raises(ExecutionError, match="kernel 'weigh' failed on device 'board'"):
        run(8)
    board.fail = ""
    assert run(8) == 1  # what failed is made anew


def test_many_sizes_are_not_kept_for_ever(board: Board) -> None:
    exe = plan()
    for rows in (40, *range(1, 40)):
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        np.testing.assert_allclose(exe(x), expected(x), rtol=1e-6)
    (held,) = exe._execute.__self__._held.values()  # type: ignore[attr-defined]
    assert len(held.ready) == 16
