"""What an agent says of its board, and the target string that fits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft_remote.errors import LinkError
from weft_runtime.cpu_features import parse_cpuinfo

# linux/arch/arm64/include/uapi/asm/hwcap.h: bit → LLVM's name of a feature that code may use.
_AARCH64 = {
    0: "fp-armv8", 1: "neon", 3: "aes", 6: "sha2", 7: "crc", 8: "lse", 10: "fullfp16", 12: "rdm", 13: "jsconv",
    14: "complxnum", 15: "rcpc", 17: "sha3", 20: "dotprod", 22: "sve", 23: "fp16fml",
}  # fmt: skip
_AARCH64_2 = {1: "sve2", 13: "i8mm", 14: "bf16"}
_ARM = {12: "neon", 16: "vfp4", 17: "hwdiv"}

_LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}),
    ("x86-64-v2", {"cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3", "sahf"}),
)
"""The levels of the x86-64 psABI that LLVM knows, the highest first: each includes those after it."""
_USEFUL = ("dotprod", "fullfp16", "i8mm", "bf16", "fp16fml", "lse", "rdm")
"""What a target string for Arm names beside what all processors of the architecture have."""


@dataclass(frozen=True)
class Facts:
    """A board. Sizes are bytes, clocks Hz, temperatures degrees Celsius; None is what it does not tell."""

    architecture: str
    bits: int
    order: str
    """Of bytes: little or big."""
    system: str
    model: str
    cores: int
    memory: int | None
    fastest: float | None
    clock: float | None
    temperature: float | None
    governor: str | None
    features: tuple[str, ...]
    api: int
    store_bytes: int
    resolution: float | None = None
    """Seconds: the smallest step of its clock."""
    said: Mapping[str, str] = field(default_factory=dict, repr=False)
    """All that the agent said, by its words."""

    @property
    def target(self) -> str:
        """A target of the plugin weft-llvm for this board, without anything that its processor may lack."""
        if self.architecture == "x86_64":
            have, wanted = set(self.features), set[str]()
            level = "x86-64"
            for name, needs in reversed(_LEVELS):
                wanted |= needs
                if wanted <= have:
                    level = name
            return f"llvm -mtriple=x86_64-linux-gnu -mcpu={level}"
        if self.architecture == "aarch64":
            extra = ",".join(f"+{f}" for f in _USEFUL if f in self.features)
            return "llvm -mtriple=aarch64-linux-gnu -mcpu=generic" + (f" -mattr={extra}" if extra else "")
        if self.architecture == "wasm32":
            # Vectors are taken without being asked for; threads need more than one processor.
            useful = ["relaxed-simd", *(["atomics"] if self.cores > 1 else [])]
            extra = ",".join(f"+{f}" for f in useful if f in self.features)
            if "simd128" not in self.features:
                extra = "-simd128"
            return "llvm -mtriple=wasm32-unknown-unknown" + (f" -mattr={extra}" if extra else "")
        if self.architecture == "arm":
            return "llvm -mtriple=armv7-linux-gnueabihf"
        return f"llvm -mtriple={self.architecture}-linux-gnu"


def facts_of(hello: str) -> Facts:
    """What the answer to HELLO says: lines `name=value`, an empty one, then the beginning of /proc/cpuinfo.

    Raises:
        LinkError: a number is none, or a word is missing.
    """
    head, _, cpuinfo = hello.partition("\n\n")
    said = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    architecture = said.get("architecture", "other")
    order = said.get("order", "")
    if order not in ("little", "big"):
        raise LinkError("the board does not say in which order its bytes are")

    def number(name: str) -> int | None:
        text = said.get(name)
        try:
            return None if text is None else int(text)
        except ValueError:
            raise LinkError(f"the board says '{text}' where a number belongs: {name}") from None

    bits, low, high = number("bits") or 0, number("hwcap") or 0, number("hwcap2") or 0
    features: set[str]
    if architecture == "x86_64":
        features = set(parse_cpuinfo(cpuinfo[: cpuinfo.rfind("\n") + 1], architecture))
    elif architecture == "aarch64":  # also where a simulator shows its host's /proc/cpuinfo
        features = {n for b, n in _AARCH64.items() if low >> b & 1} | {
            n for b, n in _AARCH64_2.items() if high >> b & 1
        }
    elif architecture == "wasm32":
        features = set(said.get("features", "").split())
    else:
        features = {n for b, n in _ARM.items() if low >> b & 1} if architecture == "arm" else set()
    celsius, fastest, clock, step = number("temperature"), number("fastest"), number("clock"), number("resolution")
    return Facts(
        architecture,
        bits,
        order,
        " ".join(said[k] for k in ("system", "release") if k in said),
        said.get("model") or _named(cpuinfo) or architecture,
        number("cores") or 1,
        number("memory"),
        None if fastest is None else float(fastest),
        None if clock is None else float(clock),
        None if celsius is None else celsius / 1000,
        said.get("governor"),
        tuple(sorted(features)),
        number("api") or 0,
        number("store_bytes") or 0,
        None if step is None else step * 1e-9,
        said,
    )


def _named(cpuinfo: str) -> str:
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() in ("model name", "Model", "Hardware"):
            return value.strip()
    return ""
