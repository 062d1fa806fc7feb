"""What callers give and get that is no plain tensor: strings, sequences, optionals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft_runtime.arrays import Array
from weft_runtime.dlpack import as_array
from weft_runtime.dtypes import dtype
from weft_runtime.errors import ExecutionError, InputError
from weft_runtime.host.strings import strings
from weft_runtime.plan import ObjectInfo


def as_strings(value: Any, name: str) -> Array:
    """An input of strings: an array (or nested lists) of str, or of bytes in UTF-8.

    Raises:
        InputError: it holds something else.
    """
    try:
        return strings(np.asarray(value), f"input '{name}'")
    except (ExecutionError, ValueError) as error:
        what = error.what if isinstance(error, ExecutionError) else f"input '{name}' takes strings: {error}"
        raise InputError(what, why=getattr(error, "why", None)) from None


def as_object(info: ObjectInfo, value: Any) -> Any:
    """An input that is a sequence, an optional, or a tensor of any sizes.

    Raises:
        InputError: it is something else; says what is expected and got.
    """

    def fit(within: Sequence[str], given: Any) -> Any:
        if within and within[0] == "optional":
            return None if given is None else fit(within[1:], given)
        if within:
            if not isinstance(given, (list, tuple)):
                raise InputError(
                    f"input '{info.name}' takes a sequence, a list of its elements, got {type(given).__name__}",
                    where=str(info),
                )
            return [fit(within[1:], element) for element in given]
        if info.dtype == "string":
            array = as_strings(given, info.name)
        elif given is None:
            raise InputError(f"input '{info.name}' takes a tensor, got None", where=str(info))
        else:
            array = given if type(given) is np.ndarray else as_array(given, info.name)
        if array.dtype != dtype(info.dtype).numpy:
            raise InputError(f"input '{info.name}' has dtype {array.dtype}, expected {info.dtype}", where=str(info))
        return array

    return fit(info.within, value)


def owned(value: Any, passed: Sequence[Any]) -> Any:
    """A result whose memory is nobody else's: of arrays that lie in what the caller passed, copies."""
    arrays = [a for p in passed for a in _arrays(p)]

    def own(found: Any) -> Any:
        if isinstance(found, (list, tuple)):
            return [own(f) for f in found]
        if isinstance(found, np.ndarray):
            return found.copy() if any(np.may_share_memory(found, a) for a in arrays) else found
        return found

    return own(value)


def _arrays(value: Any) -> list[Array]:
    if isinstance(value, np.ndarray):
        return [value]
    return [a for v in value for a in _arrays(v)] if isinstance(value, (list, tuple)) else []
