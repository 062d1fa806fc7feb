"""The README is true: its commands are what CI runs, its links lead somewhere, its commands and names exist."""

from __future__ import annotations

import re
from pathlib import Path

import weft
from weft.cli.main import build_app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_ci_runs_the_commands_of_the_readme() -> None:
    install, test = re.findall(r"^    (pip install .*)$", README, re.MULTILINE)
    assert install == "pip install . && weft demo"
    ci = (ROOT / ".ci" / "run").read_text()
    installing, testing = test.split(" && ")
    assert installing.removeprefix("pip install ") in ci
    last = [line for line in ci.splitlines() if line.split(" || ")[0] == testing]
    assert len(last) == 1 and ci.rstrip().endswith(
        f"{last[0]}\nexit $verdict"
    )  # what follows is the verdict of all checks


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_every_command_has_its_row() -> None:
    named = set(re.findall(r"`weft (\w+)", README))
    commands = {command.name for command in build_app().registered_commands} & {
        "run",
        "compile",
        "bench",
        "inspect",
        "plugins",
        "targets",
        "verify",
    }
    assert commands <= named


def test_public_names_exist() -> None:
    for name in re.findall(r"\bweft\.(\w+)", README):
        assert name in weft.__all__ or name == "weft", name


def test_the_root_installs_every_member_or_has_it_as_an_extra() -> None:
    import tomllib

    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    members = {
        tomllib.loads(p.read_text())["project"]["name"]
        for p in [p for part in ("*", "plugins/**", "bindings/*") for p in ROOT.glob(f"{part}/pyproject.toml")]
    }
    extras = root["project"]["optional-dependencies"]
    asked = [*root["project"]["dependencies"], *extras["gpu"], *extras["libweft"]]
    assert sorted(d.split(" @ ")[0] for d in asked if " @ " in d) == sorted(members)


def test_every_package_is_named() -> None:
    import tomllib

    found = {
        p.parent: tomllib.loads(p.read_text())["project"]["name"] for p in (ROOT / "plugins").rglob("pyproject.toml")
    }
    (folders,) = re.findall(r"^\| `plugins` \| (.*)$", README, re.MULTILINE)
    quickstart, frontends = ((ROOT / "docs" / page).read_text() for page in ("quickstart.md", "frontends.md"))
    assert [name for name in found.values() if f"`{name}`" not in folders] == []
    assert [name for name in found.values() if f"`{name}`" not in quickstart] == []
    read = [name for folder, name in found.items() if folder.parent.name == "frontends" and folder.name != "kit"]
    assert read and [n for n in read if f"\n| `{n}` |" not in frontends or f"(`{n}`)" not in README] == []
