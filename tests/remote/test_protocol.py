"""What the host makes of bytes that are no answers, and what it reads from URLs and from what boards say."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_remote import LinkError, frames
from weft_remote.connection import Connection, File
from weft_remote.errors import BusyError, said
from weft_remote.facts import facts_of
from weft_remote.frames import Answer, frame, pack, unpack
from weft_remote.streams import Stream
from weft_remote.transports import parse
from weft_runtime.errors import InputError, WeftError

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
    [
        {"count": 2},
        {"count": 5000},
        {"samples": 1 << 40},
        {"rank": 65},
        {"size": 3},
        {"size": -1},
        {"size": 1},
        {"bits": 7},
    ],
)
def test_an_answer_that_says_more_than_it_holds_is_none(changes: dict[str, int]) -> None:
    with pytest.raises(LinkError):
        unpack(answer_of(**changes))


@given(st.data())
def test_a_changed_answer_is_an_answer_or_an_error(data: st.DataObject) -> None:
    good = bytearray(answer_of())
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(LinkError):
        unpack(bytes(good[: data.draw(st.integers(0, len(good)))]))


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
    assert said(107, "a job ended\nwhy: signal 11; its limit", "a").why == "signal 11, SIGSEGV; its limit"
    assert said(107, "a job ended\nwhy: signal 64", "a").why in ("signal 64", "signal 64, SIGRTMAX")
    assert said(103, "no\nwhy: errno 28", "a").why == "No space left on device"


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
