"""The runtime's own native code: the worker pool, and memory for segments. It comes with the runtime, as an image for each architecture.

`images/table.json` has the hashes of the images, which are checked before one is mapped, and where their entries lie. `python -m weft_llvm.support` writes
the folder; a test holds it against what that gives. No archive brings any of this code.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from weft.errors import ExecutionError
from weft.runtime import cpu_features
from weft.runtime.abi import Context, Host, Room
from weft.runtime.loader import Code, imports_table

FOLDER = Path(__file__).with_name("images")


@cache
def support() -> Code:
    """The image for this machine, mapped once for the whole process; nothing of it has been called yet.

    Raises:
        ExecutionError: there is none for this machine, or the installation is damaged.
    """
    machine = cpu_features.machine()
    try:
        images = json.loads((FOLDER / "table.json").read_text(encoding="utf-8"))["images"]
        known = images.get(machine)
        image = (FOLDER / f"{machine}.bin").read_bytes() if known else b""
    except (OSError, ValueError, KeyError) as error:
        raise ExecutionError("this installation of weft is damaged", why=str(error), hint="install it again") from None
    if known is None:
        why = f"it comes with native code for {', '.join(sorted(images))}"
        raise ExecutionError(f"weft runs no native code on {machine}", why=why)
    if hashlib.sha256(image).hexdigest() != known["sha256"]:
        why = f"the hash of {machine}.bin is not the one in table.json"
        raise ExecutionError("this installation of weft is damaged", where=str(FOLDER), why=why, hint="install it again")
    return Code(image, known["entries"])


@cache
def _owning() -> Any:
    """Contexts that give back what segments have reserved through them.

    Their `__del__` is native code, which `PyInstanceMethod_New` makes a method: were it Python's, an exception that a handler of signals raises in it would
    be lost, and the memory with it.
    """
    code = support()
    as_method = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(("PyInstanceMethod_New", ctypes.pythonapi))
    release = ctypes.CFUNCTYPE(None, ctypes.POINTER(Context))(code.address("release_memory"))
    return type("OwningContext", (Context,), {"_fields_": [], "code": code, "__del__": as_method(release)})


def owning_context(outputs: int, count: int, rooms: ctypes.Array[Room], kept: Any, **fields: Any) -> Context:
    """A context with the functions of this module, which holds the memory that segments reserve by them.

    Args:
        outputs: address of the DLTensor* of the call's outputs.
        count: of them.
        rooms: one for each.
        kept: what else must live as long as the context.
        fields: of `Context`.

    Raises:
        ExecutionError: as `support`.
    """
    code = support()
    host = Host(outputs=outputs, rooms=ctypes.addressof(rooms), count=count)
    context: Context = _owning()(
        imports=ctypes.addressof(imports_table()),
        host=ctypes.addressof(host),
        allocate_arena=code.address("allocate_arena"),
        allocate_output=code.address("allocate_output"),
        **fields,
    )
    vars(context)["kept"] = (host, rooms, kept)
    return context
