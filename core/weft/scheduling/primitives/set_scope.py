"""set_scope: changes the memory of a block's result."""

from __future__ import annotations

from dataclasses import replace

from weft.loop.nodes import Program, replace_buffers
from weft.scheduling.dependence import written_buffers
from weft.scheduling.tree import Tree


def set_scope(program: Program, block: str, scope: str) -> tuple[Program, None]:
    """Puts the buffers that `block` writes into memory `scope`.

    allocate t: float32[n]  →  set_scope("T", "local")  →  allocate t: float32[n] in local
    """
    tree = Tree(program)
    buffers = written_buffers(tree.block(block, "set_scope"))
    for b in buffers:
        if tree.parameter(b.name) is not None:
            why = f"'{b.name}' is a parameter of the program; the caller decides where it lives"
            raise tree.error("set_scope", why, (block,), f"cache_write('{block}', '{scope}')")
    return program.with_body(replace_buffers(program.body, {b.name: replace(b, scope=scope) for b in buffers})), None
