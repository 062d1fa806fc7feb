"""What a text in WGSL says of its bindings, and the text with some of them joined. This module is runtime: it imports
no compiler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

_BINDING = re.compile(
    r"^@group\(0\) @binding\((\d+)\) var<(?:storage, read_write|uniform)> (weft_\w+): array<(.+)>;\n", re.M
)
ALL, SIZES = "weft_all", "weft_sizes"


@dataclass(frozen=True)
class Text:
    """The text of a launch."""

    source: str

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Of the elements of its buffers, in order of their bindings."""
        return tuple(m[3] for m in _BINDING.finditer(self.source) if m[2] != SIZES)

    @cached_property
    def joined(self) -> bool:
        """Whether all buffers lie in one array."""
        return any(m[2] == ALL for m in _BINDING.finditer(self.source))

    @cached_property
    def sized(self) -> bool:
        """Whether it has a table of sizes."""
        return any(m[2] == SIZES for m in _BINDING.finditer(self.source))

    def with_aliases(self, first: Sequence[int]) -> str:
        """The text in which binding k is that of `first[k]`, which is k where it stays its own."""
        source = self.source
        for k, of in enumerate(first):
            if k != of:
                source = re.sub(rf"^@group.* weft_b{k}: .*;\n", "", source, flags=re.M)
                source = re.sub(rf"\bweft_b{k}\b", f"weft_b{of}", source)
        return source
