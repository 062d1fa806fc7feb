"""Steps of the device `webgpu` in files of `weft export -f wasm`, as bindings/javascript/webgpu.js reads them.

Kernels are taken out of their sections, launches are those of grids, and sizes are over the operations of the
JavaScript runtime. A step has

    kind, inputs, outputs, arena
    conditions    as in the manifest
    places        a number: a value, counted over inputs and outputs; a name: a constant; [offset, bytes] of the arena
    launches      kernel: its number in `kernels`; buffers: places; dims: of the plan's symbols; grid: three formulas
                  over the dims, $0 is the first; words: which of the dims the kernel reads

Copies that follow one another are one step, of the kind `upload` or `download`. `gpu` of the model has

    kernels      name, symbol, text; types: those that its buffers are declared with, null if they all lie in one;
                 sized: whether it reads sizes
    constants    by name: begin, end
    limits, features    what the kernels need of the device, as far as their texts say it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from weft.errors import ArchiveError, PluginError
from weft_runtime.formulas import to_postfix

if TYPE_CHECKING:
    from weft_gpu.image import Kernel
    from weft_runtime import Manifest

DEVICE = "webgpu"
_Size = Callable[[Any], Any]
_BUFFER = re.compile(r"^@group\(0\) @binding\((\d+)\) var<storage, read_write> weft_b\1: array<(.*)>;$", re.MULTILINE)
_ALL = re.compile(r"^@group\(0\) @binding\(0\) var<storage, read_write> weft_all: array<.*>;$", re.MULTILINE)
_SIZES = re.compile(r"^@group\(0\) @binding\(\d+\) var<uniform> weft_sizes:", re.MULTILINE)
_SHARED = re.compile(r"^\s*var<workgroup> \w+ ?: ?(.+);$", re.MULTILINE)
_ENABLED = re.compile(r"^\s*enable ([\w, ]+);", re.MULTILINE)
_FEATURES = {"f16": "shader-f16", "subgroups": "subgroups"}
"""By extension of the language: the feature of the device that allows it."""


class Gpu:
    """The steps, and the part `gpu` of the model, which grows with them."""

    def __init__(self, manifest: Manifest, code: Mapping[str, bytes], size: _Size) -> None:
        """`size`: a dimension in postfix code, over the operations of the runtime."""
        self._manifest, self._code, self._size = manifest, code, size
        self._sections: dict[str, dict[str, Kernel]] = {}
        self._numbers: dict[tuple[str, bytes], int] = {}
        self.kernels: list[dict[str, Any]] = []
        self.features: set[str] = set()
        self.limits = dict.fromkeys(
            ("maxStorageBuffersPerShaderStage", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupStorageSize",
             *(f"maxComputeWorkgroupSize{axis}" for axis in "XYZ"), "maxBufferSize", "maxStorageBufferBindingSize"),
            0,
        )  # fmt: skip

    def steps(self, steps: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The steps of a plan."""
        found: list[Any] = []
        for s in steps:
            if s["kind"] == "device":
                found.append(self._device(s))
            elif s["kind"] == "copy":
                kind = "upload" if s["target"] == DEVICE else "download"
                if not found or found[-1]["kind"] != kind:
                    found.append({"kind": kind, "inputs": [], "outputs": []})
                found[-1]["inputs"].append(s["value"])
                found[-1]["outputs"].append(s["value"])
            else:
                found.append(s)
        return found

    def described(self, constants: Mapping[str, list[int]]) -> dict[str, Any]:
        """The part `gpu`; of the constants where each begins and ends."""
        largest = max((end - begin for begin, end in constants.values()), default=0)
        for limit in ("maxBufferSize", "maxStorageBufferBindingSize"):
            self.limits[limit] = largest
        return {"kernels": self.kernels, "constants": constants, "limits": self.limits,
                "features": sorted(self.features)}  # fmt: skip

    def _device(self, s: Mapping[str, Any]) -> dict[str, Any]:
        values = [*s["inputs"], *s["outputs"]]
        places = [
            values.index(p["name"]) if p["where"] == "value"
            else p["name"] if p["where"] == "constant"
            else [self._size(p["offset"]), self._size(p["bytes"])]
            for p in s["places"]
        ]  # fmt: skip
        conditions = [
            {**c, "holds": self._size(c["holds"]), "args": [self._size(a) for a in c["args"]]} for c in s["conditions"]
        ]
        launches = []
        for launch in s["launches"]:
            dims = [self._size(d) for d in launch["dims"]]
            for number, buffers, grid, words in self._launches(s["section"], launch["kernel"]):
                bound = [launch["buffers"][b] for b in buffers]
                launches.append({"kernel": number, "buffers": bound, "dims": dims, "grid": grid, "words": words})
        return {"kind": "device", "inputs": s["inputs"], "outputs": s["outputs"], "arena": self._size(s["arena"]),
                "places": places, "conditions": conditions, "launches": launches}  # fmt: skip

    def _launches(self, section: str, name: str) -> list[tuple[int, list[int], list[Any], list[int]]]:
        """Of each launch of a kernel: its number in `kernels`, its buffers, its grid, its dims."""
        if section not in self._sections:
            try:
                from weft_gpu.image import unpack
            except ImportError:
                raise PluginError(
                    f"'{self._manifest.name}' has kernels for {DEVICE}, which only the package weft-gpu reads",
                    hint="pip install weft-gpu",
                ) from None
            self._sections[section] = unpack(self._code[section], self._manifest.sections[section].entries)
        found = []
        for x in self._sections[section][name].launches:
            grid = [self._size(to_postfix(extent, lambda dim: int(dim[1:]))) for extent in x.grid]
            number = self._kernel(name, x.symbol, x.code, x.group, len(x.buffers))
            found.append((number, list(x.buffers), grid, list(x.dims)))
        return found

    def _kernel(self, name: str, symbol: str, code: bytes, group: tuple[int, int, int], buffers: int) -> int:
        number = self._numbers.setdefault((symbol, code), len(self.kernels))
        if number < len(self.kernels):
            return number
        text = code.decode()
        declared, packed = _BUFFER.findall(text), _ALL.search(text) is not None
        if not packed and [int(k) for k, _ in declared] != list(range(buffers)):
            raise ArchiveError(
                f"kernel '{name}' does not declare its buffers",
                why=f"it takes {buffers}, {len(declared)} are declared",
                hint="compile the model again",
            )
        types = None if packed else [of for _, of in declared]
        sized = _SIZES.search(text) is not None
        self.kernels.append({"name": name, "symbol": symbol, "text": text, "types": types, "sized": sized})
        words = [w.strip() for names in _ENABLED.findall(text) for w in names.split(",")]
        self.features |= {_FEATURES[w] for w in words if w in _FEATURES}
        needed = (1 if packed else buffers, prod(group), _shared(text), *group)
        for limit, wanted in zip(self.limits, needed, strict=False):
            self.limits[limit] = max(self.limits[limit], wanted)
        return number


def _shared(text: str) -> int:
    """Bytes of memory that the threads of a group share; of variables of other types than these none are counted."""
    return sum(-(-(_bytes(of.replace(" ", "")) or 0) // 16) * 16 for of in _SHARED.findall(text))


_WORDS = {"f32": 4, "i32": 4, "u32": 4, "bool": 4, "f16": 2}


def _bytes(of: str) -> int | None:
    if of in _WORDS:
        return _WORDS[of]
    match = re.fullmatch(r"(array|vec[234]|atomic)<(.+?)(?:,(\d+)u?)?>", of)
    each = _bytes(match[2]) if match else None
    if match is None or each is None:
        return None
    if match[1] == "array":
        return each * int(match[3]) if match[3] else None
    return each * {"atomic": 1, "vec2": 2, "vec3": 4, "vec4": 4}[match[1]]
