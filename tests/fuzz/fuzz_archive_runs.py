"""Saved models whose manifests or weights are others, with right hashes: they are refused, or load, run and give what
they gave before.

python -m tests.fuzz.fuzz_archive_runs --seconds 600

Code that was made for another manifest would read and write memory that is not its own. Beside crashes a finding is an
answer that is not that of the model as it was saved, of an archive with code. Models of steps on the host alone have
none; there a changed manifest is another model.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.fuzz_archives import MEMORY
from tests.fuzz.isolated import Target, main
from tests.fuzz.saved_models import changed, random_input, seeds


def target() -> Target:
    from tests.mixed import board

    from weft.errors import WeftError
    from weft.plugins import host
    from weft_runtime import Executable

    saved = seeds()
    handle, name = tempfile.mkstemp(suffix=".weft", dir=MEMORY)
    os.close(handle)
    path = Path(name)

    def run(executable: Executable) -> list[Any]:
        return list(executable.run({i.name: random_input(i) for i in executable.inputs}).values())

    answers = {}
    host().register(board, "board")  # what is open once stays open
    try:
        for name, data in saved.items():
            path.write_bytes(data)
            answers[name] = run(Executable.load(path, threads=1))
    finally:
        host().unregister("board")

    def one(data: bytes, name: str) -> str:
        path.write_bytes(data)
        try:
            executable = Executable.load(path)
        except WeftError as error:
            assert error.what.strip(), "an error without a text"
            return "refused"
        try:
            found = run(executable)
        except WeftError as error:
            assert error.what.strip(), "an error without a text"
            assert not executable.manifest.sections, f"an archive with code that was accepted does not run: {error}"
            return "failed"
        if not executable.manifest.sections:
            return "ran without code"
        assert same(found, answers[name]), f"another answer: {found}, expected {answers[name]}"
        return "ran"

    return Target(saved, changed, one)


def same(a: Any, b: Any) -> bool:
    """Whether results are equal, to the bit where they are tensors."""
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b)) if a.dtype == object else a.tobytes() == b.tobytes()


if __name__ == "__main__":
    main(target, sys.argv[1:])
