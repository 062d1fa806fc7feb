"""`weft export`: formats of plugins, their options, and what is refused."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx.parser
import pytest
from typer.testing import CliRunner

import weft
from weft.cli.main import build_app
from weft.cli.plugins import _describe
from weft.errors import ExecutionError, InputError, PluginError
from weft.exporting import exporter
from weft.hooks import Exporter, ExportOption, hookimpl
from weft_testing.models import mlp
from weft_testing.plugin import register, unregister


def _files(executable: weft.Executable, name: str, options: Mapping[str, str]) -> dict[str, Iterator[bytes]]:
    def text() -> Iterator[bytes]:
        yield f"{name} {options.get('style', 'plain')}".encode()
        if options.get("style") == "broken":
            raise ValueError("no such style after all")

    return {".txt": text(), ".h": iter([b"header"])}


@pytest.fixture(autouse=True)
def format_of_two_files() -> Iterator[None]:
    plugin = types.ModuleType("words")

    def exporters() -> list[Exporter]:
        style = ExportOption("style", "how it looks", ("plain", "bold", "broken"))
        text = Exporter(
            "words", ".txt", "words", lambda o: "llvm" if o.get("style") != "bold" else "llvm -threads=1", _files,
            (style, ExportOption("title", "any text")), lambda e, o: [("style", o["style"]), ("weights", "3 B")],
        )  # fmt: skip
        return [text]

    plugin.exporters = hookimpl(exporters)  # type: ignore[attr-defined]
    sys.modules["words"] = plugin
    register(plugin, "words")
    yield
    unregister("words")
    del sys.modules["words"]


def test_a_format_of_several_files_with_options(tmp_path: Path) -> None:
    done = weft.export(mlp(), tmp_path / "a.txt", options={"style": "bold"})
    assert (tmp_path / "a.txt").read_text() == "a bold" and (tmp_path / "a.h").read_text() == "header"
    assert "-threads=1" in done.manifest.target, "the target follows from the options"
    weft.export(done, tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_text() == "b plain"


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the format 'words' has no option 'styl'") as wrong:
        weft.export(mlp(), tmp_path / "a.txt", options={"styl": "bold"})
    assert wrong.value.hint == "did you mean 'style'?" and "style: how it looks" in str(wrong.value)
    with pytest.raises(InputError, match="the option 'style' of the format 'words' has no value 'thin'") as wrong:
        weft.export(mlp(), tmp_path / "a.txt", options={"style": "thin"})
    assert wrong.value.hint == "it is one of plain, bold, broken"
    with pytest.raises(InputError, match="the format 'wasm' has no option 'style'"):
        weft.export(mlp(), tmp_path / "a.wasm", options={"style": "thin"})
    assert list(tmp_path.iterdir()) == []


def test_a_failure_of_the_plugin_is_said_to_be_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("as it was")
    with pytest.raises(PluginError, match=r"words.* failed to write the format 'words'") as error:
        weft.export(mlp(), tmp_path / "a.txt", options={"style": "broken"})
    assert "no such style after all" in str(error.value)
    assert (tmp_path / "a.txt").read_text() == "as it was" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["target", "frontend", "input_shapes", "records", "on_stage"])
def test_an_executable_takes_no_options_of_compilation(tmp_path: Path, name: str) -> None:
    exe = weft.compile(mlp(), "llvm")
    with pytest.raises(InputError, match=f"an executable is compiled already, `{name}` does not apply"):
        weft.export(exe, tmp_path / "a.txt", **{name: "llvm"})  # type: ignore[arg-type]


def test_nothing_is_written_over_the_model_or_twice(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Neg (x) }"""
    (tmp_path / "m.txt").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    exe = weft.compile(tmp_path / "m.txt", "llvm", frontend="onnx")
    with pytest.raises(InputError, match=r"cannot write .*m\.txt"):
        weft.export(exe, tmp_path / "m.txt")
    with pytest.raises(InputError, match=r"cannot write .*m\.h") as error:
        weft.export(exe, tmp_path / "m.h", "words")
    assert error.value.hint == "give it the suffix .txt"
    with pytest.raises(ExecutionError, match="cannot write"):
        weft.export(exe, tmp_path / "nowhere" / "m.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["m.txt"]


def test_the_model_is_not_compiled_before_the_file_is_known_to_be_free(tmp_path: Path) -> None:
    stages: list[str] = []
    (tmp_path / "m.txt").write_bytes(b"no model at all")
    with pytest.raises(InputError, match="the model was read from it"):
        weft.export(tmp_path / "m.txt", tmp_path / "m.txt", on_stage=lambda s, *_: stages.append(str(s)))
    assert stages == []


def test_the_command_line(tmp_path: Path) -> None:
    run, app = CliRunner(), build_app()
    weft.compile(mlp(), "llvm").save(tmp_path / "m.weft")
    words = ["export", str(tmp_path / "m.weft"), "-f", "words", "-o", str(tmp_path / "o.txt")]
    done = run.invoke(app, [*words, "--style=bold", "--title", "x", "--report"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "o.txt").read_text() == "o bold"
    assert "style    bold" in done.output and "weights  3 B" in done.output
    for more, what in ((["--style"], "the option --style needs a value"), (["bold"], "unexpected argument 'bold'")):
        refused = run.invoke(app, [*words, *more])
        assert isinstance(refused.exception, InputError) and what in str(refused.exception)
    assert _describe("exporters", exporter("words", tmp_path / "o")) == (
        "words (.txt): words --style plain|bold|broken --title TEXT"
    )
