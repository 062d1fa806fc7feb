"""`weft export -f wasm`: one WebAssembly file with code, weights and plan.

The file is the module of the model's segment, which any engine can place (`weft_llvm.link_wasm`), and behind it custom
sections: `weft.weights`, as in the archive; `weft.code.NAME`, the modules of further segments; at last `weft.model`,
JSON that says how the model runs and where in the file everything lies, and its length in the file's last four bytes. A
model of several segments, or of none, has an empty module in front.

`weft.model` is what the JavaScript runtime reads (bindings/javascript), prepared so that little is left to do there:

    format     FORMAT
    end        where the section begins; it is HEAD bytes from there to the JSON
    name, inputs, outputs    of the model, for people
    plans      steps as in the manifest; the last plan is the model's own
    memory     of the modules, as WebAssembly.Memory takes it
    dtypes     by name: the 32 bits that stand for it in tensors, the class of arrays that hold its elements
    code       section, begin, end, bytes of data, their alignment, places in the table of functions
    constants  by name: dtype, shape, begin, end; those that only a device reads are not among them
    failures   by code: the text of errors that any segment may have
    gpu        of a model with steps of the device `webgpu`, see `weft_llvm.exports.webgpu`
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.dtypes import dtype
from weft.errors import TargetError, UnsupportedError
from weft_llvm.exports.webgpu import DEVICE, Gpu
from weft_llvm.link_wasm import MAGIC
from weft_llvm.wasm_bytes import text, unsigned
from weft_runtime.abi import ErrorCode, dlpack_type
from weft_runtime.plan import HOST, Copy, DeviceCall, HostCall
from weft_runtime.wasm import needed

if TYPE_CHECKING:
    from weft_runtime import Executable, Manifest
    from weft_runtime.plan import Step

FORMAT = 1
MODEL = "weft.model"
HEAD = 6 + 1 + len(MODEL)
"""Bytes of the section `weft.model` before its content."""
MAIN = "main"
PLAIN = frozenset({"Sizes", "WithSizes"})
"""Functions of the host that the JavaScript runtime has."""
PAGE, STACK = 65536, 131072
SHARED = {"maximum": (1 << 32) // PAGE, "shared": True}
FAILURES = {
    int(ErrorCode.INPUT_TYPE): ("input '{i}' has another rank or dtype",),
    int(ErrorCode.INPUT_SIZE): ("input '{i}' has size {3} on axis {1}, expected {2}",),
    int(ErrorCode.OUTPUT_SIZE): ("output '{o}' has size {2} on axis {1}, expected {3}",),
    int(ErrorCode.ARENA): ("no memory for {0} bytes",),
    int(ErrorCode.OUTPUT_ALLOCATION): ("no memory for output '{o}'",),
    int(ErrorCode.KERNEL): ("kernel '{k}' failed",),
    int(ErrorCode.DATA_SIZE): ("input '{i}' lacks element {1}",),
    int(ErrorCode.OVERFLOW): ("a size is beyond 64 bits",),
}
"""Texts by code: {i}, {o} and {k} are the input, output and kernel of the first argument, {0} … {7} arguments."""
_MOST = (1 << 32) - 1


def files(executable: Executable, name: str, options: Mapping[str, str]) -> dict[str, Iterator[bytes | memoryview]]:
    """The bytes of the file, in pieces.

    Raises:
        TargetError: the executable is for another machine.
        UnsupportedError: a step of its plan runs where Python is, or its weights are larger than WebAssembly's memory.
    """
    manifest = executable.manifest
    if manifest.machine not in ("wasm32", "any"):
        raise TargetError(
            f"'{manifest.name}' was compiled for {manifest.machine}, wasm is for wasm32",
            where=manifest.target,
            hint=f'compile it with -t "{f"{DEVICE}, " if DEVICE in manifest.devices else ""}llvm -mtriple=wasm32"',
        )
    every = [*manifest.steps, *(s for plan in manifest.plans for s in plan.steps)]
    steps = [s for s in every if not _runs(s)]
    if steps:
        raise UnsupportedError(
            f"'{manifest.name}' cannot be one WebAssembly file: {len(steps)} of its steps run where Python is",
            where="\n".join(map(str, steps[:20])),
            why="they handle strings, pictures, sequences or other devices",
            hint="cut the model before and behind them, or run it with weft_runtime",
        )
    stored = executable.stored()
    if stored.weights_bytes > _MOST:
        raise UnsupportedError(
            f"the weights of '{manifest.name}' take {stored.weights_bytes} bytes",
            why="a memory of WebAssembly has at most 4 GiB",
        )

    kernels = {s.section for s in every if isinstance(s, DeviceCall)}
    modules = {name: image for name, image in stored.code.items() if name not in kernels}
    code = {name: image for name, image in modules.items() if name != MAIN}
    gpu = Gpu(manifest, stored.code, _size) if kernels else None
    weights = iter(stored.weights)
    front = modules.get(MAIN, MAGIC)

    def pieces() -> Iterator[bytes | memoryview]:
        places = {MAIN: (0, len(front))} if MAIN in modules else {}
        yield front
        at, begin, header = len(front), 0, b""
        if stored.weights_bytes:
            head = _head("weft.weights", stored.weights_bytes)
            header, begin = bytes(next(weights)), at + len(head)
            yield head
            yield header
            yield from weights
            at = begin + stored.weights_bytes
        for name, image in code.items():
            head = _head(f"weft.code.{name}", len(image))
            yield head
            yield image
            places[name] = at + len(head), at + len(head) + len(image)
            at = places[name][1]
        lies = {name: [*place, *needed(modules[name])] for name, place in places.items()}
        yield _last(at, _description(manifest, json.loads(stored.manifest), lies, header, begin, gpu))

    return {".wasm": pieces()}


def _runs(step: Step) -> bool:
    """Whether the JavaScript runtime has such steps."""
    if isinstance(step, HostCall):
        return step.function in PLAIN
    if isinstance(step, Copy):
        return {step.source, step.target} == {HOST, DEVICE}
    return not isinstance(step, DeviceCall) or step.device == DEVICE


def _description(
    manifest: Manifest,
    said: dict[str, Any],
    code: Mapping[str, Sequence[int]],
    header: bytes,
    begin: int,
    gpu: Gpu | None,
) -> dict[str, Any]:
    """What `weft.model` holds, but for its place; `said` is the manifest as JSON, `header` that of the weights, which
    begin at `begin`."""
    names = said["names"]
    infos = [i for plan in (*said["plans"], said) for part in ("inputs", "outputs", "values") for i in plan[part]]
    tensors = json.loads(header[8:]) if header else {}
    constants = {
        c["name"]: {
            "dtype": c["dtype"], "shape": c["shape"],
            "at": [begin + len(header) + offset for offset in tensors[c["name"]]["data_offsets"]],
        }
        for c in said["constants"]
    }  # fmt: skip
    plans = [_plan(plan, names) for plan in (*said["plans"], said)]
    there: dict[str, Any] = {}
    if gpu is not None:
        for plan in plans:
            plan["steps"] = gpu.steps(plan["steps"])
        steps = [s for plan in plans for s in plan["steps"]]
        on_device = {p for s in steps for p in s.get("places", ()) if isinstance(p, str)}
        on_host = {n for s in steps for part in ("constants", "inputs") for n in s.get(part, ())}
        on_host.update(n for plan in plans for n in plan["outputs"])
        there["gpu"] = gpu.described({n: c["at"] for n, c in constants.items() if n in on_device})
        constants = {n: c for n, c in constants.items() if n in on_host}
    used = dict.fromkeys([*(i["dtype"] for i in infos), *(c["dtype"] for c in said["constants"]), "int64"])
    return {
        "name": manifest.name, "plans": plans,
        "memory": {"initial": STACK // PAGE + 1, **(SHARED if "atomics" in manifest.features else {})},
        "inputs": [_shown(i, names) for i in said["inputs"]], "outputs": [_shown(i, names) for i in said["outputs"]],
        "dtypes": {name: _array(name) for name in used}, "code": [[section, *lies] for section, lies in code.items()],
        "constants": constants, "failures": FAILURES, **there,
    }  # fmt: skip


def _plan(plan: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Inputs and outputs by name, what they and other values are by name; sizes that data say by number."""
    infos = [
        {**i, "shape": [_size(d) for d in i["shape"]]} for part in ("inputs", "values", "outputs") for i in plan[part]
    ]
    return {
        "inputs": [i["name"] for i in plan["inputs"]], "outputs": [o["name"] for o in plan["outputs"]],
        "infos": {i["name"]: i for i in infos},
        "steps": plan["steps"], "symbols": [[names.index(s["name"]), s["value"], s["index"]] for s in plan["symbols"]],
    }  # fmt: skip


def _size(d: Any) -> Any:
    """A dimension over +, *, /, <, = and >: its words in the same order of operands and operations.

    a / b rounds down and is 0 where b is 0; a > b is the larger; truths are 1 and 0. A size that only native code can
    compute stays as it is.

    Raises:
        UnsupportedError: it would be long.
    """
    if not isinstance(d, str):
        return d
    stack: list[str] = []
    for word in d.split():
        form = _OPERATIONS.get(word)
        if form is None:
            stack.append(word)
            continue
        parts = stack[-form.count :]
        stack[-form.count :] = [form.text.format(*parts)]
        if len(stack[-1]) > _LONGEST:
            raise UnsupportedError("a size of the model is too long a formula for WebAssembly files", where=d[:200])
    return stack[0]


@dataclass(frozen=True)
class _Operation:
    count: int
    text: str  # of its operands


_QUOTIENT = "{0} {1} /"
_REST = f"{{0}} {{1}} {_QUOTIENT} * -1 * +"
_TRUNCATED = f"{_QUOTIENT} {_QUOTIENT} 0 < {_REST} 0 = 0 = * +"
_OPERATIONS = {
    "-": _Operation(2, "{0} {1} -1 * +"), "//": _Operation(2, _QUOTIENT), "%": _Operation(2, _REST),
    "truncdiv": _Operation(2, _TRUNCATED), "truncmod": _Operation(2, f"{{0}} {{1}} {_TRUNCATED} * -1 * +"),
    "min": _Operation(2, "{0} -1 * {1} -1 * > -1 *"), "max": _Operation(2, "{0} {1} >"),
    "<=": _Operation(2, "{0} {1} 1 + <"), "==": _Operation(2, "{0} {1} ="), "!=": _Operation(2, "{0} {1} = 0 ="),
    "and": _Operation(2, "{0} 0 = 0 = {1} 0 = 0 = *"), "or": _Operation(2, "{0} 0 = {1} 0 = * 0 ="),
    "not": _Operation(1, "{0} 0 ="), "neg": _Operation(1, "{0} -1 *"),
    "select": _Operation(3, "{0} 0 = 0 = {1} * {0} 0 = {2} * +"),
    "+": _Operation(2, "{0} {1} +"), "*": _Operation(2, "{0} {1} *"), "<": _Operation(2, "{0} {1} <"),
}  # fmt: skip
_LONGEST = 1 << 16


def _shown(info: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """An input or output for people: sizes by name."""
    texts = [d["text"] if isinstance(d, dict) else d for d in info["shape"]]
    shape = [re.sub(r"\$(\d+)", lambda m: names[int(m[1])], d) if isinstance(d, str) else d for d in texts]
    return {"name": info["name"], "dtype": info["dtype"], "shape": shape}


def _array(name: str) -> tuple[int, str]:
    """DLPack's code, bits and lanes of a dtype in a word, and the class of arrays in JavaScript that hold its elements,
    or words of their size."""
    code, bits = dlpack_type(name)
    kind = {"int": "Int", "float": "Float" if bits > 16 else "Uint"}.get(dtype(name).kind, "Uint")
    return code | bits << 8 | 1 << 16, f"{'Big' if bits > 32 and kind != 'Float' else ''}{kind}{max(8, bits)}Array"


def _last(at: int, description: dict[str, Any]) -> bytes:
    """The section `weft.model`, which begins at `at`."""
    content = json.dumps({"format": FORMAT, "end": at, **description}, separators=(",", ":")).encode()
    title = text(MODEL)
    size = len(title) + len(content) + 4
    length = bytes([*(size >> 7 * k & 0x7F | 0x80 for k in range(4)), size >> 28])  # five bytes, whatever its size
    return b"\0" + length + title + content + len(content).to_bytes(4, "little")


def _head(name: str, size: int) -> bytes:
    """The head of a custom section whose content follows."""
    title = text(name)
    return b"\0" + unsigned(len(title) + size) + title
