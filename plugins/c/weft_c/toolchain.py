"""The C compiler: found, asked for its version, called."""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weft.errors import CodegenError, TargetError
from weft.forks import of_this_process, temporary_folder
from weft_runtime.support import architectures

ZIG = "zig"

CODE = (
    # One rounding for every operation, and nothing of the compiler's libraries: an image has no undefined symbol.
    "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-ffunction-sections", "-U_FORTIFY_SOURCE", "-pipe",
)  # fmt: skip
IMAGE = ("-shared", "-nostdlib", "-Wl,-z,defs", "-Wl,-Bsymbolic", "-Wl,--gc-sections", "-Wl,--build-id=none")
COMPACT = "-Wl,-z,noseparate-code"  # a flat image has no use for pages of its own; zig's linker does not know it


def default_command() -> str:
    """The system's C compiler, or ziglang's; "cc" if there is none."""
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return name
    return ZIG if importlib.util.find_spec("ziglang") else "cc"


def zig_environment() -> dict[str, str]:
    """What zig must be told besides this process's environment: a folder for its cache, which lives as long as the
    process, where its own cannot be written or is none, as in a home that is read-only or without a home."""
    return _zig_environment(os.getpid())


@cache
def _zig_environment(process: int) -> dict[str, str]:
    if os.environ.get("ZIG_GLOBAL_CACHE_DIR"):
        return {}
    home = os.environ.get("HOME")  # zig asks nobody else for it
    there = Path(os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")) / ZIG
    while not there.exists() and there != there.parent:
        there = there.parent
    if there.is_absolute() and there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return {}
    folder = tempfile.mkdtemp(prefix="weft-zig-")
    atexit.register(of_this_process(shutil.rmtree), folder, ignore_errors=True)
    return {"ZIG_GLOBAL_CACHE_DIR": folder}


def _call(
    command: tuple[str, ...], arguments: tuple[str, ...], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **zig_environment()} if "ziglang" in command else None
    return subprocess.run(
        [*command, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, errors="replace", check=False
    )


@dataclass(frozen=True)
class Compiler:
    """A command with its options; `version` is its own first line about itself."""

    command: tuple[str, ...]
    options: tuple[str, ...]
    version: str

    @property
    def fingerprint(self) -> str:
        return "/".join((self.version, *self.options))

    def object(self, source: str, name: str, *more: str) -> bytes:
        """A relocatable object of a text.

        Raises:
            CodegenError: with what the compiler says, and the line that it says it of.
        """
        return self._object("kernel", source, name, more)

    def _object(self, file: str, source: str, name: str, more: tuple[str, ...] = ()) -> bytes:
        # Files have the same names every time, since they are in the result.
        return self._run(
            {f"{file}.c": source.encode()}, [*self.options, *CODE, *more, "-c", f"{file}.c"], f"{file}.o", name
        )

    def shared(self, source: str, objects: dict[str, bytes], name: str) -> bytes:
        """A text and objects as one shared library that needs no other."""
        compact = () if "ziglang" in self.command else (COMPACT,)
        # In two steps: zig has no headers of the C library where it is told to link without it.
        files = {"segment.o": self._object("segment", source, name), **objects}
        return self._run(files, [*self.options, *CODE, *IMAGE, *compact, *files], "image.so", name)

    def _run(self, files: dict[str, bytes], arguments: list[str], result: str, name: str) -> bytes:
        try:
            with temporary_folder("weft-c-") as folder:
                for file, data in files.items():
                    (folder / file).write_bytes(data)
                done = _call(self.command, (*arguments, "-o", result), folder)
                made = (folder / result).read_bytes() if done.returncode == 0 and (folder / result).is_file() else None
        except OSError as error:
            hint = "it needs a folder for its files, which TMPDIR names, and a process"
            raise CodegenError(
                f"the C compiler could not be asked for '{name}'",
                where=error.filename,
                why=error.strerror or str(error),
                hint=hint,
            ) from None
        if made is None:
            said = done.stderr.strip() or f"it ended with {done.returncode}"
            raise CodegenError(
                f"the C compiler does not take '{name}'",
                where="\n".join([" ".join(self.command), *said.splitlines()[:12]]),
                hint="-cc=… names another compiler; weft inspect --stage source shows the text",
            )
        return made


@cache
def compiler(command: str, std: str, opt: str, march: str | None) -> Compiler:
    """The compiler that a target names.

    Raises:
        TargetError: it is not there, or does not run.
    """
    words = (sys.executable, "-m", "ziglang", "cc") if command == ZIG else tuple(shlex.split(command))
    where = f"c -cc={shlex.quote(command)}"
    hint = "install one (gcc, clang), or `pip install ziglang` and take -cc=zig"
    if not words or (command == ZIG and importlib.util.find_spec("ziglang") is None) or shutil.which(words[0]) is None:
        raise TargetError(f"there is no C compiler '{command}'", where=where, hint=hint)
    try:
        done = _call(words, ("--version",))
    except OSError as error:
        raise TargetError(
            f"'{command}' does not run", where=where, why=error.strerror or str(error), hint=hint
        ) from None
    if done.returncode or not done.stdout.strip():
        raise TargetError(
            f"'{command}' does not say what it is",
            where=where,
            why=done.stderr.strip()[:200] or "it says nothing to --version",
            hint=hint,
        )
    if command == ZIG:
        # Of its own accord it adds the sanitizer and compiles for the processor that it runs on; its names of
        # processors have no hyphens.
        more: tuple[str, ...] = ("-fno-sanitize=undefined", f"-mcpu={march.replace('-', '_') if march else 'baseline'}")
        if sys.platform == "linux":
            # For a named system it brings the C library's headers itself; for "this one" it looks for those that are
            # installed, and there may be none.
            more = ("-target", f"{platform.machine()}-linux-gnu", *more)
    else:
        more = (f"-march={march}",) if march else ()
    told = _call(words, (*more, "-dumpmachine")).stdout.partition("-")[0].strip()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(told, told)
    if machine and machine not in architectures():
        why = (
            f"what is run is code for {' and '.join(architectures())}: memory for results is native code that Weft"
            " brings, and it has it for these"
        )
        raise TargetError(
            f"no code is made for {machine}, which '{command}' compiles for",
            where=where,
            why=why,
            hint="name a compiler for one of them: -cc=…",
        )
    if machine == "aarch64":
        # Some systems keep x18 for themselves, and an image runs on all. zig undoes -ffixed-x18 by its own list of
        # features.
        more = (
            *more,
            *(("-Xclang", "-target-feature", "-Xclang", "+reserve-x18") if "ziglang" in words else ("-ffixed-x18",)),
        )
    return Compiler(words, (f"-std={std}", f"-O{opt}", *more), done.stdout.splitlines()[0])
