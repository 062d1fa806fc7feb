"""The host's side of the protocol: requests and their answers over a stream."""

from __future__ import annotations

import hashlib
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weft_remote import frames
from weft_remote.errors import DAMAGED, MISSING, BusyError, LinkError, RemoteError, StoreError, said
from weft_remote.frames import CHUNK, Answer
from weft_remote.streams import Stream, stalled
from weft_runtime.errors import InputError

NOISE = 64 << 10
"""Bytes that a login may say before the agent's first word."""
WINDOW = 8
"""Parts of a file that are on their way at once."""
PATIENCE = 30.0
"""Seconds to wait while another connection sends the same file."""
ATTEMPTS = 3
"""How often files are sent again that the store has lost or that arrived damaged."""


@dataclass(frozen=True)
class File:
    """Bytes, and what they are called where they are stored."""

    content: bytes
    digest: bytes

    @classmethod
    def of(cls, content: bytes) -> File:
        if not content:
            raise InputError("an empty file is not sent to a board")
        return cls(content, hashlib.sha256(content).digest())


@dataclass(frozen=True)
class Limits:
    """Of one job; beyond them it is ended, with an error.

    Attributes:
        time: seconds on the board, from the start of its process to its end.
        memory: bytes of its address space; 0: seven eighths of the board's memory. Under qemu's user mode it does
            nothing.
        output: bytes of its answer.
        wait: seconds to wait while the board runs somebody else's job.
    """

    time: float = 60.0
    memory: int = 0
    output: int = 1 << 30
    wait: float = 0.0


class Connection:
    """One agent. Requests may come from several threads, one is worked on at a time; any error of the link closes it.

    Attributes:
        silence: seconds without a word after which each side takes the other for lost.
    """

    def __init__(self, stream: Stream, name: str, silence: float = 20.0) -> None:
        """
        Raises:
            LinkError: what answers is no agent, or speaks another version.
        """
        self.stream, self.name, self.silence = stream, name, silence
        self.sent: set[bytes] = set()
        self._tag, self._held, self._closed = 0, bytearray(), threading.Event()
        self._noise = 0
        self._lock, self._writing = threading.RLock(), threading.Lock()
        self._current = 0
        self._heard = time.monotonic()
        self._alive = threading.Thread(target=self._say_alive, name=f"weft-alive-{name}", daemon=True)
        with self._request():
            tag = self._send(frames.HELLO, struct.pack("<II", frames.VERSION, int(silence * 1000)))
            self.hello = self._answer(tag).decode(errors="replace")
        self._alive.start()

    # -- requests
    def upload(self, file: File) -> int:
        """Sends a file unless it is there; what an earlier connection has sent of it is not sent again. Returns the
        bytes that were sent.

        Raises:
            StoreError: it does not fit, or arrives damaged again and again.
            BusyError: another connection is sending the same file.
            LinkError: the connection is lost.
        """
        with self._request():
            attempt, ends = 1, time.monotonic() + PATIENCE
            while True:
                try:
                    return self._upload(file)
                except StoreError as error:
                    if error.code != DAMAGED or attempt == ATTEMPTS:
                        raise
                    attempt += 1
                except BusyError:
                    if time.monotonic() > ends:
                        raise
                    time.sleep(0.02)

    def _upload(self, file: File) -> int:
        start, complete = self._held_of(self._answer(self._send(frames.HAVE, file.digest)))
        total = len(file.content)
        if complete:
            start = total
        elif start > total:
            start = 0  # it is no part of this file
        failure: RemoteError | None = None
        waiting: list[int] = []
        for at in [] if complete else range(start, total, CHUNK) or [total]:  # a whole part wants to be checked
            part = file.content[at : at + CHUNK]
            waiting.append(self._send(frames.PUT, file.digest + struct.pack("<QQ", total, at) + part))
            while waiting and (len(waiting) == WINDOW or at + CHUNK >= total):
                try:
                    _, complete = self._held_of(self._answer(waiting.pop(0)))
                except LinkError:
                    raise
                except RemoteError as error:  # the parts behind it are refused as well, and their answers come
                    failure = failure or error
            if failure is not None and not waiting:
                break
        if failure is not None:
            raise failure
        if not complete:
            raise LinkError("the board does not say that a file is whole")
        self.sent.add(file.digest)
        return total - start

    @staticmethod
    def _held_of(answer: bytes) -> tuple[int, bool]:
        if len(answer) != 12:
            raise LinkError("the board's answer has another size")
        held, complete = struct.unpack("<QI", answer)
        return held, bool(complete)

    def run(
        self,
        program: File,
        inputs: File,
        limits: Limits,
        *,
        threads: int = 0,
        warmups: int = 0,
        repeats: int = 1,
        budget: float = 0.0,
        outputs: bool = True,
        byte_order: str = "little",
    ) -> Answer:
        """A job: the files are sent if they are not there; the program is run `warmups` times, then `repeats` times,
        which are timed, or until these runs have taken `budget` seconds, if it is not 0. `byte_order` is the board's.

        Raises:
            InputError: the inputs do not fit the program.
            JobError: a limit was reached, or the program crashed.
            BusyError: the board runs another job, also after `limits.wait`.
            RemoteError: the program's own error, as weft.h says it, or the store's.
            LinkError: the connection is lost; the board has ended the job.
        """
        order = (
            program.digest
            + inputs.digest
            + struct.pack(
                "<4I5Q",
                threads,
                warmups,
                repeats,
                int(outputs),
                int(budget * 1e9),
                max(1, int(limits.time * 1000)),
                int(limits.wait * 1000),
                limits.memory,
                limits.output,
            )
        )
        with self._request():
            for attempt in range(ATTEMPTS):
                for file in (program, inputs):
                    if file.digest not in self.sent:
                        self.upload(file)
                data = bytearray()
                end = self._answer(self._send(frames.RUN, order), data, limits.output, limits.time + limits.wait + 5)
                if len(end) != 40 or struct.unpack("<Q", end[32:])[0] != len(data):
                    raise LinkError("the answer of a job has not come whole")
                if hashlib.sha256(data).digest() != end[:32]:
                    raise LinkError("the answer of a job was damaged on its way")
                found = frames.unpack(bytes(data), byte_order)
                if isinstance(found, Answer):
                    return found
                code, message = found
                if code not in (MISSING, DAMAGED) or attempt + 1 == ATTEMPTS:
                    raise said(code, message, self.name)
                self.sent -= {program.digest, inputs.digest}
        raise AssertionError("every way through the loop returns or raises")

    def cancel(self) -> None:
        """Ends the job that another thread waits for, which gets a JobError."""
        if self._current:
            self._write(frames.frame(frames.CANCEL, self._current))

    # -- frames
    @contextmanager
    def _request(self) -> Iterator[None]:
        """Whatever ends a request but an answer ends the connection, and with it the job."""
        with self._lock:
            if self._closed.is_set():
                raise LinkError("the connection is closed", where=f"to {self.name}", hint="connect again")
            try:
                yield
            except LinkError as error:
                self.close()
                if error.where is None:
                    error.where = f"to {self.name}"
                raise
            except (RemoteError, InputError):
                raise
            except BaseException:
                self.close()
                raise

    def _send(self, kind: int, content: bytes) -> int:
        self._tag = self._tag % 0x7FFFFFFF + 1
        self._current = self._tag
        self._write(frames.frame(kind, self._tag, content))
        return self._tag

    def _write(self, data: bytes) -> None:
        with self._writing:
            self.stream.write(data, self.silence)

    def _say_alive(self) -> None:
        while not self._closed.wait(self.silence / 4):
            try:
                self._write(frames.frame(frames.ALIVE, 0))
            except LinkError:
                return  # the next request says so

    def _answer(self, tag: int, data: bytearray | None = None, most: int = 0, limit: float | None = None) -> bytes:
        """The content of the frame that ends a request's answer; that of DATA frames goes to `data`."""
        self._heard = started = time.monotonic()
        while True:
            kind, about, content = self._next(started, limit)
            if about != tag and not (about == 0 and kind == frames.ERROR):
                raise LinkError("the board answers what it was not asked")
            if kind == frames.RESULT:
                return content
            if kind == frames.ERROR and len(content) >= 4:
                (code,) = struct.unpack("<I", content[:4])
                raise said(code, content[4:].decode(errors="replace"), self.name)
            if kind == frames.DATA and data is not None:
                if len(data) + len(content) > most:
                    raise LinkError("the board sends more than was asked for")
                data += content
            elif kind != frames.STILL:
                raise LinkError(f"the board sends a frame of kind {kind}, which has no meaning here")

    def _next(self, started: float, limit: float | None) -> tuple[int, int, bytes]:
        while True:
            found = self._whole()
            if found is not None:
                return found
            data = self.stream.read(min(1.0, self.silence / 4))
            now = time.monotonic()
            if data:
                self._held += data
                self._heard = now
            elif now - self._heard > self.silence:
                raise stalled(self.silence)
            if limit is not None and now - started > limit + self.silence:
                raise LinkError("a job has no answer", why=f"it should have ended {now - started - limit:.0f} s ago")

    def _whole(self) -> tuple[int, int, bytes] | None:
        held = self._held
        if self._tag == 1:  # a login may have said something before the first frame
            at = held.find(b"WEFT")
            skip = at if at >= 0 else max(0, len(held) - 3)
            self._noise += skip
            del held[:skip]
            if self._noise > NOISE:
                raise LinkError("what answers is no agent", why=f"{NOISE} bytes came, and no frame")
        if len(held) < frames.HEADER:
            return None
        kind, tag, length = struct.unpack("<III", held[4 : frames.HEADER])
        if held[:4] != b"WEFT" or length > frames.LARGEST:
            raise LinkError("what the board sends is no frame", why=f"it begins with {bytes(held[:16])!r}")
        if len(held) < frames.HEADER + length:
            return None
        content = bytes(held[frames.HEADER : frames.HEADER + length])
        del held[: frames.HEADER + length]
        return kind, tag, content

    # -- the end
    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Ends the connection; the board ends its job. May be called again."""
        self._closed.set()
        self.stream.close()
