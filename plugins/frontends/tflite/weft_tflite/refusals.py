"""Operators that are not converted, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft_tflite.schema import BUILTINS

_STRINGS = "its operands are tables of strings and resources"
_NO_RUNTIME = "LiteRT has no kernel for it"
_STATE = "a recurrent layer of an older form"
_RUN = (
    "ADD", "MULTIPLY", "MAXIMUM", "MINIMUM", "SHIFT_LEFT", "COMPOSITE", "SCATTER", "GATHER", "PAD", "REDUCE_WINDOW",
    "RNG_BIT_GENERATOR", "CASE", "CBRT",
)  # fmt: skip
_STABLEHLO = {
    name: _NO_RUNTIME
    for name in BUILTINS
    if name.startswith("STABLEHLO_") and name.removeprefix("STABLEHLO_") not in _RUN
}
_OWN = "StableHLO's own attributes, which are read from StableHLO's files only"
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "EMBEDDING_LOOKUP_SPARSE": "lists of different lengths in a sparse form",
        "HASHTABLE_LOOKUP": _STRINGS, "HASHTABLE": _STRINGS, "HASHTABLE_FIND": _STRINGS, "HASHTABLE_IMPORT": _STRINGS,
        "HASHTABLE_SIZE": _STRINGS, "SKIP_GRAM": _STRINGS, "LSH_PROJECTION": "a hash function of bytes",
        **_STABLEHLO,
        **dict.fromkeys((f"STABLEHLO_{n}" for n in ("SCATTER", "GATHER", "PAD", "REDUCE_WINDOW", "CASE")), _OWN),
        "STABLEHLO_RNG_BIT_GENERATOR": "random numbers, of which LiteRT alone has the order",
        "STABLEHLO_CBRT": "a cube root", "DILATE": "elements put between others",
        "REDUCE_WINDOW": "windows of any rank",
        "CONCAT_EMBEDDINGS": _NO_RUNTIME, "CALL": _NO_RUNTIME, "DELEGATE": "a mark that a runtime sets, not a model",
        "PLACEHOLDER_FOR_GREATER_OP_CODES": "no operator, but a mark of the format",
        "LSTM": _STATE, "BIDIRECTIONAL_SEQUENCE_RNN": _STATE,
        "BIDIRECTIONAL_SEQUENCE_LSTM": _STATE,
        "RANDOM_STANDARD_NORMAL": "random numbers, of which LiteRT alone has the order",
        "RANDOM_UNIFORM": "random numbers, of which LiteRT alone has the order",
        "MULTINOMIAL": "random numbers, of which LiteRT alone has the order",
        "UNIQUE": "a number of results known only at run time",
        "NON_MAX_SUPPRESSION_V4": "a number of results known only at run time",
        "NON_MAX_SUPPRESSION_V5": "a number of results known only at run time",
    }
)  # fmt: skip
"""Of each operator the reason."""

__all__ = ["REASONS"]
