"""What an import costs and drags in: each case in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HEAVY = {
    "llvmlite",
    "onnx",
    "onnxruntime",
    "openvino",
    "pyopencl",
    "torch",
    "tensorflow",
    "jax",
    "scipy",
    "rich",
    "typer",
    "pluggy",
}
LAYERS = (
    "pipeline", "kernel", "expr", "tensor", "loop", "graph", "ops", "passes", "lower", "schedule", "codegen", "plugins",
    "hooks",
)  # fmt: skip
COMPILER = {"weft_ops.library", *(f"weft.{m}" for m in LAYERS)}


def modules_after(code: str, *arguments: str) -> set[str]:
    """Names of the modules, and of the packages they are in, that `code` leaves imported."""
    script = code + "\nimport sys, json; sys.stderr.write('MODULES' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.split("MODULES")[-1]))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import weft
    from weft_testing.models import mlp

    path = tmp_path_factory.mktemp("archive") / "mlp.weft"
    weft.compile(mlp()).save(path)
    return path


def test_import_weft_brings_nothing() -> None:
    found = modules_after("import weft")
    assert not found & (HEAVY | COMPILER | {"numpy"})


def test_import_weft_is_fast() -> None:
    def seconds(code: str) -> float:
        """Of the process's own: what else is at work does not count."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Beside an empty Python in the same minute: a slow machine slows both.
    assert min(seconds("import weft") for _ in range(5)) < min(seconds("pass") for _ in range(5)) + 0.1


def test_help_answers_at_once() -> None:
    """The command line knows its plugins' commands, and neither the compiler nor a framework or driver."""
    found = modules_after("from weft.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass")
    assert "weft_llvm.plugin" in found
    assert not found & (
        (HEAVY | COMPILER | {"cuda", "numba"}) - {"pluggy", "typer", "rich", "weft.plugins", "weft.hooks"}
    )


def test_the_public_names_are_listed_and_resolve() -> None:
    import weft

    assert set(weft.__all__) <= set(dir(weft))
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'compil'"):
        weft.compil  # noqa: B018


def test_running_an_archive_imports_no_compiler(archive: Path) -> None:
    code = (
        "import sys, numpy, weft; e = weft.Executable.load(sys.argv[1]); e.run({'x': numpy.ones((3, 64), 'float32')})"
    )
    found = modules_after(code, str(archive))
    assert not found & (HEAVY | COMPILER)


def test_the_command_runs_an_archive_without_the_compiler_or_frameworks(archive: Path) -> None:
    code = (
        "import sys; from weft.cli.main import main\ntry: main(['run', sys.argv[1]])\nexcept SystemExit as e: assert"
        " not e.code"
    )
    found = modules_after(code, str(archive))
    # Plugins are asked for commands, so their modules are there; what they drive is not.
    assert not found & (HEAVY | COMPILER - {"rich", "typer", "pluggy", "weft.plugins", "weft.hooks"}) - {
        "rich",
        "typer",
        "pluggy",
    }


def test_plugins_import_nothing_heavy() -> None:
    found = modules_after("from weft.plugins import host; assert host().plugins")
    assert not found & (HEAVY - {"pluggy"})
    assert not found & (COMPILER - {"weft.plugins", "weft.hooks"})


def test_a_loaded_archive_computes_what_was_compiled(archive: Path) -> None:
    import weft
    from weft.graph.evaluate import evaluate
    from weft_testing.models import mlp

    x = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    (expected,) = evaluate(mlp(), {"x": x})
    np.testing.assert_allclose(weft.Executable.load(archive).run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


OPERATORS = sorted(
    p.stem for p in (Path(__file__).parents[1] / "ops" / "weft_ops").glob("*.py") if p.stem != "__init__"
)


@pytest.mark.parametrize("module", OPERATORS)
def test_a_module_of_operators_can_be_the_first_that_is_imported(module: str) -> None:
    code = f"import weft_ops.{module}; from weft_ops import MatMul, {module}; assert MatMul.operator_name == 'MatMul'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_operator_library_has_no_other_names() -> None:
    import weft_ops

    with pytest.raises(AttributeError, match="module 'weft_ops' has no attribute 'Nothing'"):
        _ = weft_ops.Nothing
