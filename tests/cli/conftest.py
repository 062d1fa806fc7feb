"""A frontend, an engine and a command registered by hand, so that the command line is tested without any framework."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from weft.cli.main import main
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph
from weft.hooks import EngineKind, Frontend, hookimpl
from weft.plugins import host
from weft_testing import models


def read_model(source: Any) -> Graph:
    facts = json.loads(Path(source).read_text())
    build: Callable[..., Graph] = getattr(models, facts.pop("model"))
    return build(**{k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()})


def open_numpy(path: str, threads: int) -> Callable[[Mapping[str, Any]], list[Any]]:
    graph = read_model(path)
    return lambda inputs: evaluate(graph, inputs)


class TestPlugin:
    """Contributes what the tests below need."""

    __test__ = False

    @hookimpl
    def frontends(self) -> list[Frontend]:
        def load(source: Any, options: object) -> Graph:
            return read_model(source)

        return [Frontend("recipe", (".recipe",), lambda head: False, lambda model: False, load)]

    @hookimpl
    def engines(self) -> list[EngineKind]:
        return [EngineKind("numpy", lambda: np.__version__, open_numpy), EngineKind("absent", lambda: None, open_numpy)]

    @hookimpl
    def commands(self, cli: typer.Typer) -> None:
        @cli.command("hello")
        def hello() -> None:
            """Greets."""
            typer.echo("hello from a plugin")


@pytest.fixture(autouse=True)
def plugin() -> Iterator[None]:
    host().register(TestPlugin(), "test-plugin")
    yield
    host().unregister("test-plugin")


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def weft(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`weft("run", path)`: the command in this process, as the console script calls it."""

    def call(*words: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(w) for w in words])
        streams = capsys.readouterr()
        return Result(int(stop.value.code or 0), streams.out, streams.err)

    return call


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A small model: x float32[batch, 64] → y float32[batch, 32]."""
    path = tmp_path / "model.recipe"
    path.write_text(json.dumps({"model": "mlp"}))
    return path


@pytest.fixture
def archive(recipe: Path, weft: Callable[..., Result]) -> Path:
    path = recipe.with_suffix(".weft")
    assert weft("compile", recipe, "-o", path).code == 0
    return path
