"""Archives with other contents, signed as whoever writes an archive can do."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from weft.errors import ArchiveError
from weft_runtime import archive
from weft_runtime.archive import CODE, MANIFEST
from weft_runtime.plan import Manifest

SIGNATURE = 32


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        return {i.filename: z.read(i) for i in z.infolist()}


def zipped(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as z:
        for name, content in members.items():
            z.writestr(zipfile.ZipInfo(name), content)
    return made.getvalue()


def forged(data: bytes) -> bytes:
    """An archive whose code is signed for its manifest, whatever that says; the same if it cannot be read."""
    try:
        members = members_of(data)
        manifest = Manifest.from_json(members[MANIFEST], "")
        manifest, code = archive.sign(manifest, {n: members[CODE + n][:-SIGNATURE] for n in manifest.sections})
    except (ArchiveError, KeyError, zipfile.BadZipFile):
        return data
    return zipped({**members, MANIFEST: manifest.to_json(), **{CODE + n: c for n, c in code.items()}})
