"""What either side makes of bytes that are no protocol, and what is read from URLs and from what boards say."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote import agents

from weft_remote import LinkError, frames
from weft_remote.connection import Connection, File
from weft_remote.errors import BusyError, said
from weft_remote.facts import facts_of
from weft_remote.frames import Answer, frame, pack, unpack
from weft_remote.streams import Stream
from weft_remote.transports import parse
from weft_runtime.errors import InputError, WeftError

# -- the agent


def answers(store: Path, given: bytes) -> tuple[bytes, int]:
    """What an agent says to these bytes, after which its input ends, and its exit status."""
    command = [str(agents.double()), "--serve", "--store", str(store), "--lock", f"{store}.lock"]
    done = subprocess.run(command, input=given, capture_output=True, timeout=60)
    return done.stdout, done.returncode


def hello(version: int = frames.VERSION) -> bytes:
    return frame(frames.HELLO, 1, struct.pack("<II", version, 60_000))


@pytest.mark.needs("c")
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


@pytest.mark.needs("c")
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
    agent.stdin.write(hello() + put(2, program) + put(3, data) + frame(frames.RUN, 4, program.digest + data.digest + order))
    out = b""
    while frame(frames.RESULT, 4)[:12] not in out:
        piece = agent.stdout.read(4096)
        assert piece
        out += piece
    agent.stdin.close()
    assert agent.wait(20) == 0
    agent.stdout.close()
    assert b"the file of a job's inputs does not say what it holds" in out


@pytest.mark.needs("c")
@given(st.binary(max_size=300), st.integers(0, 8))
def test_the_agent_survives_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes, kind: int) -> None:
    store = tmp_path_factory.mktemp("any") / "store"
    _, status = answers(store, hello() + frame(kind, 2, content) + content)
    assert status in (0, 2)


# -- the host


class Played(Stream):
    """A board that says what it was given to say."""

    def __init__(self, *parts: bytes) -> None:
        self.parts, self.closed, self.wrote = list(parts), False, b""

    def read(self, timeout: float) -> bytes:
        if not self.parts:
            raise LinkError("the connection to the board is lost")
        return self.parts.pop(0)

    def write(self, data: bytes, timeout: float) -> None:
        self.wrote += data

    def close(self) -> None:
        self.closed = True


def played(*parts: bytes) -> tuple[Connection, Played]:
    stream = Played(frame(frames.RESULT, 1, b"protocol=1\n\n"), *parts)
    return Connection(stream, "played"), stream


PRESENT = [frame(frames.RESULT, 2, struct.pack("<QI", 1, 1)), frame(frames.RESULT, 3, struct.pack("<QI", 1, 1))]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "what the board sends is no frame"),
        (b"WEFT" + struct.pack("<III", frames.DATA, 4, 1 << 30), "what the board sends is no frame"),
        (frame(frames.RESULT, 9), "the board answers what it was not asked"),
        (frame(99, 4), "a frame of kind 99, which has no meaning here"),
        (frame(frames.RESULT, 4, bytes(40)), "the answer of a job was damaged on its way"),
        (frame(frames.DATA, 4, b"abcd") + frame(frames.RESULT, 4, bytes(40)), "has not come whole"),
        (frame(frames.DATA, 4, bytes(2000)), "the board sends more than was asked for"),
        (frame(frames.DATA, 4, b"abcd")[:-2], "the connection to the board is lost"),
    ],
)
def test_the_host_refuses_what_is_no_answer(answer: bytes, says: str) -> None:
    from weft_remote import Limits

    connection, stream = played(*PRESENT, answer)
    with pytest.raises(LinkError) as caught:
        connection.run(File.of(b"p"), File.of(b"i"), Limits(output=1000))
    assert says in str(caught.value) and "to played" in str(caught.value)
    assert connection.closed and stream.closed


def answer_of(**changes: int) -> bytes:
    values = {"code": 0, "count": 1, "samples": 1, "rank": 1, "size": 2, "bits": 32, **changes}
    head = struct.pack("<II3Q4q", values["code"], values["count"], values["samples"], 5, 6, 7, 8, 9, 10)
    tensor = struct.pack("<BBHIq", 2, values["bits"], 1, values["rank"], values["size"])
    return head + struct.pack("<Q", 1000) + tensor + np.array([1, 2], np.float32).tobytes()


def test_an_answer_is_read() -> None:
    found = unpack(answer_of())
    assert isinstance(found, Answer)
    assert found.arrays[0].tolist() == [1, 2] and found.seconds == pytest.approx((1e-6,)) and found.clock == (7.0, 8.0)
    assert unpack(struct.pack("<I", 6) + b"it is no archive") == (6, "it is no archive")


@pytest.mark.parametrize(
    "changes",
    [{"count": 2}, {"count": 5000}, {"samples": 1 << 40}, {"rank": 65}, {"size": 3}, {"size": -1}, {"size": 1}, {"bits": 7}],
)  # fmt: skip
def test_an_answer_that_says_more_than_it_holds_is_none(changes: dict[str, int]) -> None:
    with pytest.raises(LinkError):
        unpack(answer_of(**changes))


@given(st.data())
def test_a_changed_answer_is_an_answer_or_an_error(data: st.DataObject) -> None:
    good = bytearray(answer_of())
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpack(bytes(good[: data.draw(st.integers(0, len(good)))]))
    except LinkError:
        pass


@given(st.lists(st.sampled_from(["bool", "int8", "uint16", "float16", "float32", "float64", "complex64"]), max_size=4))
def test_every_tensor_of_a_file_begins_at_a_multiple_of_64(names: list[str]) -> None:
    arrays = [np.ones((3, k + 1), name) for k, name in enumerate(names)]
    data, at = pack(arrays), 4 + 24 * len(arrays)
    for array in arrays:
        at += -at % 64
        assert data[at : at + array.nbytes] == array.tobytes()
        at += array.nbytes
    assert at == len(data)


@pytest.mark.parametrize("name", ["int8", "uint16", "float32", "complex64", "bfloat16", "float8_e5m2", "bool"])
def test_boards_with_the_other_order_of_bytes(name: str) -> None:
    from weft_runtime.dtypes import dtype

    array = np.array([1, 0, 2], dtype(name).numpy)
    data = pack([array], "big")[64:]
    width = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1)
    assert data == b"".join(array.tobytes()[k : k + width][::-1] for k in range(0, array.nbytes, width))
    assert np.array_equal(frames.swapped(frames.swapped(array)), array)


# -- what is read


def test_errors_of_a_board_keep_their_parts() -> None:
    error = said(102, "another job runs\nwhere: user 7\nwhy: it was first\nhint: wait", "ssh://pi@a")
    assert isinstance(error, BusyError) and error.code == 102
    assert str(error) == "another job runs\n  user 7, on ssh://pi@a\n  why: it was first\n  hint: wait"
    assert isinstance(said(2, "an input", "a"), InputError)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://board", "is no board"),
        ("shh://board", "did you mean 'ssh:…'?"),
        ("ssh://", "it names no host"),
        ("ssh://-oProxyCommand=x", "it names no host"),
        ("ssh://-l@host", "it names no host"),
        ("ssh://pi:secret@host", "a password has no place in it"),
        ("ssh://host:99999", "is no board"),
        ("ssh://host?cert=x", "boards of 'ssh:' have no option 'cert'"),
        ("tls://host:1?ca=x", "is not complete"),
        ("tls://host?ca=a&cert=b&key=c", "is not complete"),
    ],
)
def test_what_is_no_url_of_a_board(url: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(url)
    assert says in str(caught.value)


def test_urls_of_boards() -> None:
    place = parse("ssh://pi@board:2222/opt/weft-run?lock=/run/lock/weft&store-bytes=5000")
    assert (place.host, place.port, place.path) == ("pi@board", 2222, "/opt/weft-run")
    assert place.serve() == ["--serve", "--lock", "/run/lock/weft", "--store-bytes", "5000"]


def test_targets_of_boards() -> None:
    base = "order=little\nbits=64\n"
    arm = facts_of(f"architecture=aarch64\n{base}hwcap={1 << 1 | 1 << 20}\nhwcap2={1 << 13}\n\n")
    assert arm.target == "llvm -mtriple=aarch64-linux-gnu -mcpu=generic -mattr=+dotprod,+i8mm"
    flags = "cx16 pni ssse3 sse4_1 sse4_2 popcnt lahf_lm avx avx2 bmi1 bmi2 f16c fma abm movbe"
    intel = facts_of(f"architecture=x86_64\n{base}\nmodel name\t: A Processor\nflags\t: {flags}\n")
    assert intel.target == "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3" and intel.model == "A Processor"
    old = facts_of(f"architecture=x86_64\n{base}temperature=51500\n\nflags\t: sse2\nflags\t: sse2 avx\n")
    assert old.target == "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64" and old.temperature == 51.5
    with pytest.raises(LinkError, match="does not say in which order its bytes are"):
        facts_of("architecture=s390x\n\n")
    with pytest.raises(LinkError, match="where a number belongs: cores"):
        facts_of(f"architecture=arm\n{base}cores=many\n\n")


def test_errors_survive_being_sent_between_processes() -> None:
    import pickle

    error = said(105, "a job was ended\nwhy: time", "a")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and type(again) is type(error) and isinstance(again, WeftError)
