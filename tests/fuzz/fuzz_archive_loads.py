"""Saved models whose code ends the process wherever it is entered, signed for whatever their manifests say: to load,
show and save them runs none of it.

python -m tests.fuzz.fuzz_archive_loads --seconds 600
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzz.fuzz_archives import MEMORY
from tests.fuzz.isolated import Target, main
from tests.fuzz.saved_models import changed, seeds
from tests.runtime.archives import SIGNATURE, forged, members_of, zipped

from weft_runtime import cpu_features
from weft_runtime.archive import CODE

TRAP = {"x86_64": b"\x0f\x0b", "aarch64": bytes(4)}
"""An instruction that no processor has."""


def trapped(data: bytes) -> bytes:
    """An archive with nothing but traps for code; every place that an entry may name is one."""
    trap = TRAP[cpu_features.machine()]
    members = members_of(data)
    for name, content in members.items():
        if name.startswith(CODE):
            size = len(content) - SIGNATURE
            members[name] = (trap * (size // len(trap) + 1))[:size] + bytes(SIGNATURE)
    return forged(zipped(members))


def change(data: bytes, chance: random.Random) -> bytes:
    return forged(changed(data, chance))


def target() -> Target:
    from weft.errors import WeftError
    from weft_runtime import Executable

    handle, name = tempfile.mkstemp(suffix=".weft", dir=MEMORY)
    os.close(handle)
    path = Path(name)

    def one(data: bytes, name: str) -> str:
        path.write_bytes(data)
        try:
            Executable.inspect(path).plan()
            for copy in (True, False):
                executable = Executable.load(path, threads=2, copy=copy)
                executable.plan, repr(executable)
            executable.save(path, durable=False)
            Executable.load(path)
        except WeftError as error:
            assert error.what.strip(), "an error without a text"
            return "refused"
        return "loaded"

    return Target({name: trapped(data) for name, data in seeds().items()}, change, one)


if __name__ == "__main__":
    main(target, sys.argv[1:])
