"""Compiled kernels on disk, by what they compute: the printed naive program, its record, the target and the versions of
everything.

The key is made before scheduling, so a hit saves scheduling, loop passes and code generation.
"""

from __future__ import annotations

import hashlib
import json

from weft import dtypes as dt
from weft.codegen.base import THREADS, KernelCode
from weft.errors import WeftError
from weft.expr.nodes import Var
from weft.expr.parser import parse_expr
from weft.loop.nodes import Program
from weft.plugins import host
from weft.records import Record
from weft_runtime.cache import Cache

FORMAT = 3


class KernelCache:
    """`fingerprint`: of the target. With `enabled` false nothing is read or written; keys still distinguish kernels."""

    def __init__(self, fingerprint: str, enabled: bool = True) -> None:
        from weft.fingerprint import source_fingerprint

        self.enabled = enabled
        self.prefix = repr((FORMAT, fingerprint, [source_fingerprint(p) for p in host().plugins if p.healthy]))
        self.store = Cache("kernels")

    def key(self, program: Program, record: Record | None = None) -> str:
        """Equal for programs, and records of their choices, that give the same code but for its name."""
        choices = "" if record is None else record.digest
        return hashlib.sha256((self.prefix + str(program) + choices).encode()).hexdigest()

    def get(self, key: str, name: str) -> KernelCode | None:
        """The code of `key`, if it is there and whole."""
        if not self.enabled:
            return None
        data = self.store.get(key)
        if data is None:
            return None
        try:
            size = int.from_bytes(data[:8], "little")
            head = json.loads(data[8 : 8 + size])
            variables = {THREADS.name: THREADS, **{n: Var(n, dt.int64) for n in head["dims"]}}
            scratch = tuple(parse_expr(text, variables) for text in head["scratch"])
            if head["format"] != FORMAT or head["name"] != name:
                return None
            return KernelCode(name, data[8 + size :], scratch, bool(head["parallel"]))
        except (ValueError, KeyError, TypeError, WeftError):
            return None

    def put(self, key: str, code: KernelCode) -> None:
        if not self.enabled:
            return
        from weft.expr.nodes import free_vars

        dims = sorted({n for s in code.scratch for n in free_vars(s)} - {THREADS.name})
        head = json.dumps(
            {
                "format": FORMAT,
                "name": code.name,
                "dims": dims,
                "scratch": [str(s) for s in code.scratch],
                "parallel": code.parallel,
            }
        ).encode()
        self.store.put(key, len(head).to_bytes(8, "little") + head + code.object)
