"""What the agent makes of bytes that are no requests."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote import agents

from weft_remote import frames
from weft_remote.connection import File
from weft_remote.frames import frame

pytestmark = pytest.mark.needs("c")


def answers(store: Path, given: bytes) -> tuple[bytes, int]:
    """What an agent says to these bytes, after which its input ends, and its exit status."""
    command = [str(agents.double()), "--serve", "--store", str(store), "--lock", f"{store}.lock"]
    done = subprocess.run(command, input=given, capture_output=True, timeout=60)
    return done.stdout, done.returncode


def hello(version: int = frames.VERSION) -> bytes:
    return frame(frames.HELLO, 1, struct.pack("<II", version, 60_000))


@pytest.mark.parametrize(
    ("given", "says", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: board\r\n\r\n", b"what was sent is no frame", 2),
        (b"WEFT" + struct.pack("<III", 1, 1, 1 << 31), b"what was sent is no frame", 2),
        (hello(99), b"this agent speaks version 1 of the protocol, the other side version 99", 0),
        (frame(frames.HAVE, 1, bytes(32)), b"the first request is no HELLO", 2),
        (hello() + frame(77, 2), b"there is no request of this kind", 0),
        (hello() + frame(frames.HAVE, 2, bytes(31)), b"a HAVE has another size", 0),
        (hello() + frame(frames.PUT, 2, bytes(47)), b"a PUT has another size than its content", 0),
        (hello() + frame(frames.PUT, 2, bytes(32) + struct.pack("<QQ", 5, 9)), b"a PUT has another size", 0),
        (hello() + frame(frames.PUT, 2, bytes(32) + struct.pack("<QQ", 5, 0) + bytes(6)), b"a PUT has another size", 0),
        (hello() + frame(frames.PUT, 2, bytes(32) + struct.pack("<QQ", 5, 2) + bytes(3)), b"does not follow", 0),
        (hello() + frame(frames.PUT, 2, bytes(32) + struct.pack("<QQ", 3, 0) + b"abc"), b"its SHA-256 is another", 0),
        (hello() + frame(frames.RUN, 2, bytes(119)), b"a RUN has another size", 0),
        (hello() + frame(frames.RUN, 2, bytes(120)), b"a RUN asks for numbers that are not allowed", 0),
    ],
)
def test_the_agent_refuses_what_is_no_request(tmp_path: Path, given: bytes, says: bytes, status: int) -> None:
    out, code = answers(tmp_path / "store", given)
    assert says in out and code == status


@pytest.mark.parametrize(
    "inputs",
    [
        b"\xff" * 64,
        struct.pack("<I", 1),
        struct.pack("<IBBHI", 1, 2, 32, 1, 65),
        struct.pack("<IBBHIq", 1, 2, 32, 1, 1, -5),
        struct.pack("<IBBHIq", 1, 2, 32, 1, 1, 1 << 60),
        struct.pack("<IBBHIqq", 1, 2, 32, 1, 2, 1 << 40, 1 << 40),
        struct.pack("<IBBHIq", 1, 2, 32, 1, 1, 1000) + bytes(200),
        struct.pack("<IBBHI", 1, 2, 32, 1, 1),
    ],
)
def test_the_job_refuses_inputs_that_are_none(tmp_path: Path, inputs: bytes) -> None:
    program, data = File.of(b"double 0"), File.of(inputs)
    order = struct.pack("<4I5Q", 0, 0, 1, 1, 0, 5000, 0, 0, 1 << 20)

    def put(tag: int, file: File) -> bytes:
        return frame(frames.PUT, tag, file.digest + struct.pack("<QQ", len(file.content), 0) + file.content)

    command = [str(agents.double()), "--serve", "--store", str(tmp_path / "s"), "--lock", str(tmp_path / "s.lock")]
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert agent.stdin is not None and agent.stdout is not None
    agent.stdin.write(
        hello() + put(2, program) + put(3, data) + frame(frames.RUN, 4, program.digest + data.digest + order)
    )
    out = b""
    while frame(frames.RESULT, 4)[:12] not in out:
        piece = agent.stdout.read(4096)
        assert piece
        out += piece
    agent.stdin.close()
    assert agent.wait(20) == 0
    agent.stdout.close()
    assert b"the file of a job's inputs does not say what it holds" in out


@given(st.binary(max_size=300), st.integers(0, 8))
def test_the_agent_survives_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes, kind: int) -> None:
    store = tmp_path_factory.mktemp("any") / "store"
    _, status = answers(store, hello() + frame(kind, 2, content) + content)
    assert status in (0, 2)
