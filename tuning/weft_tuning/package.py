"""A pip package of records: `weft-records-NAME`, whose plugin gives them to compilations by the hook `records`."""

from __future__ import annotations

import re
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
    """Writes the package into a new folder.

    Raises:
        InputError: the name is none of a package, the folder is there already, or nothing can be written.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise InputError(
            f"'{name}' is no name of a package", hint="use small letters, digits and single hyphens between them"
        )
    module = name.replace("-", "_")
    try:
        package = folder / f"weft_records_{module}"
        folder.mkdir(parents=True)
        package.mkdir()
        (folder / "pyproject.toml").write_text(PROJECT.format(name=name, kind=kind, module=module), encoding="utf-8")
        (package / "__init__.py").write_text(PLUGIN.format(kind=kind), encoding="utf-8")
        (package / "records.json").write_text(records.to_json(), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the package cannot be written to '{folder}'", why=error.strerror, hint="name a new folder"
        ) from None
