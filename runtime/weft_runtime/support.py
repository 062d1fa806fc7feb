"""The runtime's own native code: the worker pool, and memory for segments. It comes with the runtime, as an image for
each architecture.

`images/table.json` has the hashes of the images, which are checked before one is mapped, and where their entries lie.
`python -m weft_llvm.support` writes the folder; a test holds it against what that gives. No code of an archive runs in
its place here; archives bring the worker pool for the C runtime, which has none.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from weft_runtime import cpu_features
from weft_runtime.abi import Context, Host, Room
from weft_runtime.errors import ExecutionError
from weft_runtime.loader import Code, imports_table

FOLDER = Path(__file__).with_name("images")


def _damaged(why: str, where: str | None = None) -> ExecutionError:
    return ExecutionError("this installation of weft is damaged", where=where, why=why, hint="install it again")


def _table() -> dict[str, Any]:
    try:
        return dict(json.loads((FOLDER / "table.json").read_text(encoding="utf-8"))["images"])
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(str(error)) from None


@cache
def architectures() -> tuple[str, ...]:
    """Those whose native code the runtime can run.

    Raises:
        ExecutionError: the installation is damaged.
    """
    return tuple(sorted(_table()))


@cache
def support() -> Code:
    """The image for this machine, mapped once for the whole process; nothing of it has been called yet.

    Raises:
        ExecutionError: there is none for this machine, or the installation is damaged.
    """
    machine = cpu_features.machine()
    image, entries = _image(machine)
    if not entries:
        why = (
            "memory for results and the worker pool are native code that it brings, and it has it for"
            f" {' and '.join(architectures())}"
        )
        raise ExecutionError(
            f"weft runs no native code on {machine}", why=why, hint="compile the model and run it on such a machine"
        )
    return Code(image, entries)


def _image(machine: str) -> tuple[bytes, dict[str, int]]:
    """The image for a machine and its entries, of which there are none if there is no image.

    Raises:
        ExecutionError: the installation is damaged.
    """
    known = _table().get(machine)
    if known is None:
        return b"", {}
    try:
        image = (FOLDER / f"{machine}.bin").read_bytes()
    except OSError as error:
        raise _damaged(str(error)) from None
    if hashlib.sha256(image).hexdigest() != known["sha256"]:
        why = f"the hash of {machine}.bin is not the one in table.json"
        raise _damaged(why, where=str(FOLDER))
    return image, known["entries"]


def pool_image(machine: str) -> tuple[bytes, int]:
    """What an archive has of it for the C runtime: the worker pool, and where its parallel loop begins.

    Raises:
        ExecutionError: the installation is damaged.
    """
    image, entries = _image(machine)
    if "parallel_for" not in entries:
        return b"", 0
    end = min((at for name, at in entries.items() if at > entries["parallel_for"]), default=len(image))
    return image[:end], entries["parallel_for"]


@cache
def _owning() -> Any:
    """Contexts that give back what segments have reserved through them.

    Their `__del__` is native code, which `PyInstanceMethod_New` makes a method: were it Python's, an exception that a
    handler of signals raises in it would be lost, and the memory with it.
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
