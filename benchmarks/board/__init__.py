"""Exported C on microcontrollers that QEMU emulates: built by zig, run with instructions counted.

QEMU's boards mps2-an386 (Cortex-M4) and mps2-an500 (Cortex-M7) are `apt-get install qemu-system-arm`; the compiler is
that of PyPI's ziglang.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft_c.measure import MATH_H, STRING_H, section_bytes
from weft_c.toolchain import zig_environment

HERE = Path(__file__).parent
BOARDS = {"cortex_m4": "mps2-an386", "cortex_m7": "mps2-an500"}
TICK = 40
"""Instructions that the board's counter counts as one."""
_TICKS = 1 << 24


@dataclass(frozen=True)
class Run:
    """What a board gave: outputs of each sample by name, and the instructions of each call of each sample, with their
    names; bytes of code and of constants."""

    outputs: list[dict[str, np.ndarray[Any, Any]]]
    calls: list[tuple[str, ...]]
    instructions: list[tuple[int, ...]]
    code: int
    constants: int


def missing() -> str | None:
    """What a run lacks here; None: nothing."""
    import importlib.util

    if shutil.which("qemu-system-arm") is None:
        return "apt-get install qemu-system-arm"
    return None if importlib.util.find_spec("ziglang") else "pip install ziglang"


def compile_object(source: Path, processor: str, optimize: str = "-O2", *more: str) -> bytes:
    """The object of a C file, beside which it is written."""
    folder = source.parent
    (folder / "string.h").write_text(STRING_H)
    (folder / "math.h").write_text(MATH_H)
    made = source.with_suffix(".o")
    _zig(folder, processor, optimize, "-c", source.name, "-o", made.name, *more)
    return made.read_bytes()


def _zig(folder: Path, processor: str, *arguments: str) -> None:
    target = (
        "-target",
        "thumb-freestanding-eabi",
        f"-mcpu={processor}",
        "-std=c99",
        "-ffreestanding",
        "-fomit-frame-pointer",
        "-fno-sanitize=all",
    )
    command = [sys.executable, "-m", "ziglang", "cc", *target, "-I.", f"-I{HERE}", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **zig_environment()}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[:3000]}")


def run(
    model: Path,
    samples: Sequence[Mapping[str, np.ndarray[Any, Any]]],
    outputs: Mapping[str, np.ndarray[Any, Any]],
    processor: str = "cortex_m4",
    optimize: str = "-O2",
) -> Run:
    """Runs an exported model on samples.

    Args:
        model: its file of C; the header is beside it.
        samples: the inputs of each by the names of the header.
        outputs: an array like each output, by the names of the header.
    """
    folder, name = model.parent, model.stem
    plain = model.read_text()
    code, constants = section_bytes(compile_object(model, processor, optimize))
    head, _, body = plain.rpartition(f"int32_t {name}_run(")
    calls = tuple(re.findall(r"^  (\w+)\(.*\);$", body, re.MULTILINE))
    stamped = re.sub(r"^(  \w+\(.*\);)$", r"\1 stamp();", body, flags=re.MULTILINE)
    (folder / "stamped.c").write_text(f"extern void stamp(void);\n{head}int32_t {name}_run({stamped}")
    (folder / "main.c").write_text(_main(name, samples, outputs, len(calls)))
    files = ["main.c", "stamped.c", str(HERE / "board.c")]
    _zig(folder, processor, optimize, "-nostartfiles", "-T", str(HERE / "board.ld"), *files, "-o", "model.elf")
    command = ["qemu-system-arm", "-M", BOARDS[processor], "-nographic", "-icount", "shift=0", "-monitor", "none"]
    command += ["-serial", "none", "-semihosting-config", "enable=on,target=native", "-kernel", "model.elf"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    printed = (done.stdout + done.stderr).strip()
    found: list[dict[str, np.ndarray[Any, Any]]] = []
    counts = []
    for part in printed.split("sample\n")[1:]:
        values = dict(line.split(" ", 1) for line in part.splitlines() if " " in line)
        given = {}
        for key, like in outputs.items():
            given[key] = np.frombuffer(bytes.fromhex(values[key]), like.dtype).reshape(like.shape)
        marks = [int(x) for x in values["ticks"].split()]
        counts.append(tuple((a - b) % _TICKS * TICK for a, b in itertools.pairwise(marks)))
        found.append(given)
    if len(found) != len(samples):
        raise RuntimeError(f"the board stopped after {len(found)} of {len(samples)} samples: {printed[-500:]}")
    return Run(found, [calls] * len(found), counts, code, constants)


def _main(
    name: str,
    samples: Sequence[Mapping[str, np.ndarray[Any, Any]]],
    outputs: Mapping[str, np.ndarray[Any, Any]],
    calls: int,
) -> str:
    lines = [f'#include "{name}.h"', '#include "board.h"']
    for k, sample in enumerate(samples):
        for key, array in sample.items():
            words = ",".join(map(str, array.view(np.uint8).reshape(-1)))
            lines.append(f"static const unsigned char in{k}_{key}[] __attribute__((aligned(8))) = {{{words}}};")
    for key, array in outputs.items():
        lines.append(f"static unsigned char out_{key}[{max(1, array.nbytes)}] __attribute__((aligned(8)));")
    lines += [
        f"static unsigned char arena[{name.upper()}_ARENA_BYTES] __attribute__((aligned(8)));",
        f"static uint32_t marks[{calls + 1}];",
        "static int marked;",
        "void stamp(void) { marks[marked++] = ticks(); }",
        "int main(void) {",
    ]
    for k, sample in enumerate(samples):
        given = ", ".join(f".{key} = (const void *)in{k}_{key}" for key in sample)
        taken = ", ".join(f".{key} = (void *)out_{key}" for key in outputs)
        lines += [
            f"  {{ const {name}_in in = {{{given}}}; const {name}_out out = {{{taken}}};",
            f"  for (unsigned b = 0; b < sizeof arena; ++b) arena[b] = {(k * 37 + 165) % 256};",
            f'  marked = 0; stamp(); (void){name}_run(&in, &out, arena); print("sample\\n");',
        ]
        for key, array in outputs.items():
            lines.append(f'  print("{key} "); print_bytes(out_{key}, {array.nbytes}); print("\\n");')
        lines += [
            '  print("ticks"); for (int k = 0; k < marked; ++k) { print(" "); print_number(marks[k]); }',
            '  print("\\n"); }',
        ]
    return "\n".join([*lines, "  return 0;", "}", ""])


__all__ = ["BOARDS", "Run", "compile_object", "missing", "run"]
