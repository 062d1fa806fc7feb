"""The inputs of a run: read from files, and made up where no file is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, WeftError, nearest

if TYPE_CHECKING:
    import numpy as np

    from weft_runtime.plan import TensorInfo

    Array = np.ndarray[Any, Any]


def make_inputs(
    infos: Sequence[TensorInfo], files: Mapping[str, str], shapes: Mapping[str, Sequence[int]], seed: int
) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays for all inputs, and where each came from.

    Raises:
        InputError: a file or shape for an input that does not exist, an unreadable file, or sizes that cannot be known.
    """
    import numpy as np

    names = [i.name for i in infos]
    for option, given in (("--input", files), ("--input-shape", shapes)):
        for name in given:
            if name not in names:
                close = nearest(name, names)
                raise InputError(
                    f"{option} names '{name}', which is no input",
                    where="\n".join(map(str, infos)) or None,
                    hint=f"did you mean '{close}'?" if close else None,
                )
    arrays = {name: read_array(name, file) for name, file in files.items()}
    symbols: dict[str, int] = {}
    for info in infos:
        known = arrays[info.name].shape if info.name in arrays else shapes.get(info.name)
        if known is None:
            continue
        if len(known) != len(info.shape):
            raise InputError(
                f"input '{info.name}' has {len(info.shape)} dimensions, {len(known)} are given", where=str(info)
            )
        for dim, given_size in zip(info.shape, known):
            if isinstance(dim, str):
                symbols.setdefault(dim, given_size)
            elif dim != given_size and info.name not in arrays:
                raise InputError(
                    f"--input-shape gives '{info.name}' a size {given_size} where it has {dim}", where=str(info)
                )
    random = np.random.default_rng(seed)
    origins: dict[str, str] = {}
    for info in infos:
        if info.name in arrays:
            origins[info.name] = files[info.name]
            continue
        assumed: list[str] = []
        shape = tuple(shapes.get(info.name) or (size_of(info, d, symbols, assumed) for d in info.shape))
        arrays[info.name] = random_value(random, info, shape)
        origins[info.name] = f"random, seed {seed}" + (f", {', '.join(assumed)}" if assumed else "")
    return {name: arrays[name] for name in names}, origins


def size_of(info: TensorInfo, dim: int | str, symbols: dict[str, int], assumed: list[str]) -> int:
    """A dimension's size. An unbound symbol is assumed to be 1, and recorded in `assumed`."""
    if isinstance(dim, int):
        return dim
    if dim not in symbols:
        if re.fullmatch(r"[\w.]+", dim):
            symbols[dim] = 1
            assumed.append(f"{dim} = 1")
        else:
            symbols[dim] = _formula(info, dim, symbols)
    return symbols[dim]


def _formula(info: TensorInfo, text: str, symbols: Mapping[str, int]) -> int:
    from weft import dtypes as dt
    from weft.expr.nodes import Const, Var, substitute
    from weft.expr.parser import parse_expr

    try:
        value = substitute(parse_expr(text, {n: Var(n, dt.int64) for n in symbols}), dict(symbols))
    except WeftError:
        value = None
    if not isinstance(value, Const):
        raise InputError(
            f"the size {text} of input '{info.name}' is not known",
            where=str(info),
            hint=f"give --input-shape {info.name}=…",
        )
    return int(value.value)


def random_value(random: np.random.Generator, info: TensorInfo, shape: tuple[int, ...]) -> Any:
    """Of a sequence two elements; an optional has one; where only the rank is known, each size is 1, and where not even
    that, there is one element."""
    from weft_runtime.plan import ObjectInfo

    if not isinstance(info, ObjectInfo):
        return random_array(random, info.dtype, shape)
    if info.within:
        inner = replace(info, within=info.within[1:])
        return (
            [random_value(random, inner, shape) for _ in range(2)]
            if info.within[0] == "sequence"
            else random_value(random, inner, shape)
        )
    return random_array(random, info.dtype, (1,) * (info.rank or 0))


WORDS = ("warp", "weft", "loom", "shuttle", "1", "0.5", "")


def random_array(random: np.random.Generator, dtype_name: str, shape: tuple[int, ...]) -> Array:
    """Floats as photographs and activations have them; bytes anywhere in their range; other integers 0 or 1, an index
    or a mask of any model; short words."""
    import numpy as np

    from weft.dtypes import dtype

    of = dtype(dtype_name)
    if of.kind == "string":
        return random.choice(np.array(WORDS, object), shape)
    if of.is_bool:
        return random.integers(0, 2, shape).astype(np.bool_)
    if of.name in ("int8", "uint8"):
        limits = np.iinfo(of.numpy)
        return random.integers(limits.min, limits.max, shape, endpoint=True).astype(of.numpy)
    if of.kind in ("int", "uint"):
        return random.integers(0, 2, shape).astype(of.numpy)
    return random.standard_normal(shape).astype(of.numpy)


def is_npy(file: str) -> bool:
    with Path(file).open("rb") as opened:
        return opened.read(6) == b"\x93NUMPY"


def read_array(name: str, file: str) -> Array:
    """The array of an .npy file.

    Raises:
        InputError: it is missing or not one.
    """
    import numpy as np

    try:
        array = np.load(Path(file), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        if isinstance(error, (ValueError, EOFError)) and not is_npy(file):
            why = "it is no .npy file"  # which numpy takes for a pickle
        raise InputError(
            f"cannot read input '{name}' from '{file}'", why=why, hint="write it with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputError(
            f"'{file}' holds several arrays, input '{name}' is one", hint="write it with numpy.save, not numpy.savez"
        )
    return array
