"""How much code a text of Python is."""

from __future__ import annotations

import ast
import io
import tokenize

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Lines on which code stands: neither blank, nor of comments or docstrings alone. A string that is a statement by
    itself counts as a docstring, wherever it stands."""
    docstrings = [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    starts = dict(docstrings)
    end = (0, 0)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        end = max(end, starts.get(token.start, end))
        if token.type not in _NO_CODE and token.start >= end:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)
