"""A pip package of records: `weft-records-NAME`, whose plugin gives them to compilations by the hook `records`."""

from __future__ import annotations

import errno
import re
import tempfile
from pathlib import Path

from weft.errors import InputError
from weft.records import Records

PROJECT = """[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "weft-records-{name}"
version = "0.1.0"
description = "Tuned records for the target {kind} of Weft"
requires-python = ">=3.11"
dependencies = ["weft-core>=0.1,<0.2"]

[project.entry-points."weft.plugins"]
records_{module} = "weft_records_{module}"

[tool.hatch.build.targets.wheel]
packages = ["weft_records_{module}"]
"""
PLUGIN = '''"""Records that were tuned for the target {kind}."""

from pathlib import Path

from weft.hooks import hookimpl


@hookimpl
def records(target):
    return [Path(__file__).parent / "records.json"] if target.kind == "{kind}" else []
'''


def write_package(folder: Path, name: str, kind: str, records: Records) -> None:
    """Writes the package into a new folder, whole or not at all.

    Raises:
        InputError: the name is none of a package, the folder is there already, or nothing can be written.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise InputError(
            f"'{name}' is no name of a package", hint="use small letters, digits and single hyphens between them"
        )
    module = name.replace("-", "_")
    files = {
        "pyproject.toml": PROJECT.format(name=name, kind=kind, module=module),
        f"weft_records_{module}/__init__.py": PLUGIN.format(kind=kind),
        f"weft_records_{module}/records.json": records.to_json(),
    }
    try:
        if folder.exists():
            raise FileExistsError(errno.EEXIST, "it is there already")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".weft-records-") as temporary:
            made = Path(temporary) / "package"
            (made / f"weft_records_{module}").mkdir(parents=True)
            for file, text in files.items():
                (made / file).write_text(text, encoding="utf-8")
            made.rename(folder)
    except OSError as error:
        raise InputError(
            f"the package cannot be written to '{folder}'", why=error.strerror, hint="name a new folder"
        ) from None
