"""annotate: adds a fact for later stages to a block or loop."""

from __future__ import annotations

from dataclasses import replace

from weft.errors import nearest
from weft.loop.nodes import Block, For, Program
from weft.scheduling.tree import Tree


def annotate(program: Program, name: str, key: str, value: int | str) -> tuple[Program, None]:
    """Sets an annotation of a block or loop; an earlier value of the key is replaced.

    block C(…) { … }  →  block C(…) @ key=value { … }
    """
    tree = Tree(program)
    path = tree.block_paths.get(name) or tree.loop_paths.get(name)
    if path is None:
        names = [*tree.block_paths, *tree.loop_paths]
        close = nearest(name, names)
        raise tree.error(
            "annotate", f"there is no block or loop '{name}'", hint=f"did you mean '{close}'?" if close else None
        )
    target = path[-1]
    assert isinstance(target, (Block, For))
    return tree.replace(
        path, replace(target, annotations=tuple({**dict(target.annotations), key: value}.items()))
    ), None
