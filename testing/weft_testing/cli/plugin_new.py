"""`weft plugin new NAME`: a plugin package that installs, passes the first level of `weft conform`, compiles and
runs."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from weft.cli.terminal import say
from weft.errors import PluginError, nearest
from weft_runtime.files import obstacle_of_folder

KINDS = ("target", "frontend", "operator")
Kind = Literal["target", "frontend", "operator"]
TEMPLATES = Path(__file__).parent / "templates"
"""Files `*.template`; in their text and names, acme stands for the new plugin's name."""

plugin = typer.Typer(name="plugin", help="Creates plugin packages.", no_args_is_help=True, rich_markup_mode=None)


@plugin.callback()
def _group() -> None:
    """Creates plugin packages."""


@plugin.command("new")
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the plugin, e.g. npu: the package will be weft-npu.")
    ],
    kind: Annotated[str, typer.Option("--kind", help="What it contributes: target, frontend or operator.")] = "target",
    into: Annotated[
        Path | None, typer.Option("--into", help="The directory to create it in [default: the current one].")
    ] = None,
) -> None:
    """Creates a plugin package that installs, has tests and works.

    The device of a new target interprets loop programs; the package's README says what to replace.
    """
    if kind not in KINDS:
        close = nearest(kind, KINDS)
        raise PluginError(
            f"there is no kind '{kind}' of plugin",
            hint=f"did you mean '{close}'?" if close else "kinds: " + ", ".join(KINDS),
        )
    names = Names.of(name)
    _check_free(names, kind)
    root = (into or Path()) / names.distribution
    files = rendered(kind, names)
    write(root, files)
    for file in files:
        say(f"wrote {root / file}")
    tests = [f"weft conform --target {names.key}"] if kind == "target" else []
    say(
        "\nnext:\n"
        + "\n".join(
            "  " + line for line in (f"cd {root}", 'pip install -e ".[test]"', "weft plugins", "pytest", *tests)
        )
    )


@dataclass(frozen=True)
class Names:
    """What a plugin called "my-npu" is called in the places where it has a name."""

    key: str  # my-npu: the entry point, the target, the frontend
    distribution: str  # weft-my-npu
    module: str  # weft_my_npu
    prefix: str  # MyNpu, of classes

    @classmethod
    def of(cls, name: str) -> Names:
        """Of a name as the user gives it, with or without "weft-".

        Raises:
            PluginError: it is no name of a package.
        """
        key = re.sub(r"^weft[-_]", "", name)
        proper = "-".join(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", key).lower())).lstrip(
            "0123456789-"
        )
        if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", key) or key == "weft" or len(key) > 30:
            usable = f"for example '{proper}'" if proper and proper != "weft" else "for example 'npu'"
            raise PluginError(
                f"'{name}' is no name for a plugin",
                why="a name is up to 30 small letters, digits and single '-', and begins with a letter",
                hint=usable,
            )
        words = key.split("-")
        return cls(key, f"weft-{key}", "_".join(["weft", *words]), "".join(w.capitalize() for w in words))

    def rename(self, text: str) -> str:
        """A template's text, or a file's name, for this plugin."""
        for word, own in (
            ("weft-acme", self.distribution),
            ("weft_acme", self.module),
            ("test_acme", "test_" + self.module[5:]),
        ):
            text = text.replace(word, own)
        return text.replace("Acme", self.prefix).replace("acme", self.key)


def _check_free(names: Names, kind: str) -> None:
    """Raises PluginError where an installed plugin has this name, or offers a target or frontend of it."""
    from weft.plugins import KNOWN_FRONTENDS, KNOWN_TARGETS, host

    plugins = host()
    taken = {p.name: p.distribution for p in plugins.plugins}
    if kind in ("target", "frontend"):
        taken |= {c.value.name: c.plugin.distribution for c in plugins.items(f"{kind}s")}
    taken |= {
        package.removeprefix("weft-"): package for package in (*KNOWN_TARGETS.values(), *KNOWN_FRONTENDS.values())
    }
    if names.key in taken:
        raise PluginError(
            f"the name '{names.key}' is taken",
            why=f"{taken[names.key]} has it",
            hint="take another: two plugins of one name are both out of use",
        )


def rendered(kind: str, names: Names) -> dict[str, str]:
    """The files of a new plugin: path in its folder → text."""
    from weft.plugins import host

    folder = TEMPLATES / kind
    found = {}
    for file in sorted(folder.rglob("*.template")):
        path = names.rename(file.relative_to(folder).as_posix().removesuffix(".template"))
        found[path] = names.rename(file.read_text(encoding="utf-8")).replace(
            "ACME_RANGE", version_range(host().api_version)
        )
    return found


def version_range(version: str) -> str:
    """The range of Weft versions for a plugin made with this one: up to the next that may change public names."""
    major, minor = (int(n) for n in re.findall(r"\d+", version)[:2])
    return f">={major}.{minor},<0.{minor + 1}" if major == 0 else f">={major}.{minor},<{major + 1}"


def write(root: Path, files: dict[str, str]) -> None:
    """Writes the files into a new folder.

    Raises:
        PluginError: there is something of this name already, or it cannot be made.
    """
    if root.exists():
        raise PluginError(
            f"'{root}' is there already",
            hint="nothing is overwritten: take another name, another folder (--into), or remove it",
        )
    try:
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(root, ignore_errors=True)  # nothing was there before
        raise PluginError(
            f"'{root}' cannot be written",
            why=obstacle_of_folder(root) or error.strerror or str(error),
            hint="give another --into",
        ) from error
