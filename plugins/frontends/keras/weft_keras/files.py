"""Files of models: .keras archives, and HDF5 files of the older form.

What the configuration names is checked before Keras builds anything of it: only classes and functions of Keras itself,
no code. Sizes are bounded, and links of HDF5 that leave the file are refused.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from weft.errors import FrontendError, UnsupportedError, from_signal
from weft_frontend.archives import open_zip, read_file, read_member
from weft_keras.legacy import modern, write_archive, write_hdf5
from weft_keras.plugin import HDF5

MOST_CONFIG = 1 << 26
"""Bytes of a configuration: 64 MiB."""
MOST_ELEMENTS = 1 << 31
"""What any number of a configuration may be: sizes beyond are hostile."""
MOST_NESTED = 200
CODE = frozenset({"Lambda", "__lambda__", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"})
"""Classes that hold code: Python's, a pickle, or another library's."""
TABLES = frozenset({"TextVectorization", "StringLookup", "IntegerLookup"})
"""Layers that read tables from other files."""
WHAT = "a Keras model"
WEIGHTS = "model.weights.h5"


def model_of(keras: Any, source: Path | bytes) -> Any:
    """The model of a file.

    Raises:
        FrontendError: it is no model, is damaged, or names what is not Keras' own.
        UnsupportedError: it has Lambda layers.
    """
    if isinstance(source, bytes):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / ("model.h5" if source.startswith(HDF5) else "model.keras")
            path.write_bytes(source)
            return model_of(keras, path)
    with source.open("rb") as file:
        head = file.read(8)
    return from_hdf5(keras, source) if head == HDF5 else from_archive(keras, source)


def from_archive(keras: Any, path: Path) -> Any:
    with open_zip(path, WHAT) as archive:
        names = set(archive.namelist())
        if "config.json" not in names:
            raise FrontendError(
                f"'{path}' is not {WHAT}", why="it has no member 'config.json'", hint="save it with model.save(…)"
            )
        others = sorted(n for n in names if n not in ("config.json", "metadata.json", WEIGHTS))
        if others:
            raise UnsupportedError(
                f"'{path}' has members beside its configuration and weights",
                why=", ".join(others[:5]),
                hint="assets and weights in other forms are not read: save the model with model.save('….keras')",
            )
        config = configuration(read_member(archive, "config.json", MOST_CONFIG, WHAT), path)
        check_config(config, path)
        with tempfile.NamedTemporaryFile(suffix=".h5") as weights:
            weights.write(read_member(archive, WEIGHTS, 1 << 37, WHAT))
            weights.flush()
            check_hdf5(Path(weights.name), path)
    return loaded(keras, path, ".keras", config, write_archive)


def from_hdf5(keras: Any, path: Path) -> Any:
    read_file(path)
    text = check_hdf5(path, path)
    if text is None:
        raise FrontendError(
            f"'{path}' holds weights alone",
            why="it has no attribute 'model_config'",
            hint="save the model whole: model.save('….keras')",
        )
    config = configuration(text, path)
    check_config(config, path)
    return loaded(keras, path, ".h5", config, write_hdf5)


def loaded(keras: Any, path: Path, suffix: str, config: Any, write: Callable[[Path, Any, Path], None]) -> Any:
    """What Keras reads of a file, which it gets under a name with the suffix of its content: Keras goes by that.

    Args:
        write: makes a copy with another configuration, for one that has settings of Keras 2.
    """
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            given = Path(folder) / f"model{suffix}"
            config, changed = modern(config)
            if changed:
                write(path, config, given)
            else:
                given.symlink_to(path.absolute())
            return keras.saving.load_model(str(given), compile=False, safe_mode=True)
    except Exception as error:  # of Keras, h5py and the backend
        if from_signal(error):
            raise
        text = " ".join(str(error).split())
        raise FrontendError(f"Keras cannot load '{path}'", why=f"{type(error).__name__}: {text[:400]}") from error


# -- checks -----------------------------------------------------------------------------------------------------------


def configuration(data: bytes | str, path: Path) -> Any:
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FrontendError(f"'{path}' is not {WHAT}", why=f"its configuration is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise FrontendError(f"'{path}' is not {WHAT}", why="its configuration is no object")
    return config


def entries(config: Any, depth: int = 0) -> Iterator[Any]:
    """Every object, and every number, of a configuration."""
    if depth > MOST_NESTED:
        raise FrontendError(f"the configuration nests more than {MOST_NESTED} deep")
    if isinstance(config, dict):
        yield config
        for key, value in config.items():
            if key != "shared_object_id":  # an address of the process that wrote it
                yield from entries(value, depth + 1)
    elif isinstance(config, list):
        for value in config:
            yield from entries(value, depth + 1)
    elif isinstance(config, (int, float)) and not isinstance(config, bool):
        yield config


def check_config(config: Any, path: Path) -> None:
    """That a configuration names Keras' own classes and functions alone, no code, and no sizes beyond all bounds."""
    foreign: list[str] = []
    for entry in entries(config):
        if not isinstance(entry, dict):
            if isinstance(entry, int) and abs(entry) > MOST_ELEMENTS:
                raise FrontendError(f"'{path}' is not {WHAT}", why=f"its configuration has the number {entry}")
            continue
        name, module = entry.get("class_name"), entry.get("module")
        if not isinstance(name, str | None) or not isinstance(module, str | None):
            raise FrontendError(f"'{path}' is not {WHAT}", why=f"its configuration names a class '{module}.{name}'")
        if name in CODE:
            raise UnsupportedError(
                f"'{path}' has layers of code: {name}",
                why="code of a file is not run",
                hint="write a layer of its own in place of each, and give the model as an object",
            )
        if name in TABLES:
            raise UnsupportedError(f"'{path}' has a layer {name}", why="it works on text or on a table of its own",
                                   hint="cut the model behind it, and do its work before")  # fmt: skip
        if module is not None and str(module).split(".", 1)[0] not in ("keras", "builtins"):
            foreign.append(f"{module}.{name}")
        elif module is None and name is not None and entry.get("registered_name") not in (None, name, ""):
            foreign.append(str(entry.get("registered_name")))
        elif module == "builtins" and name not in ("function", "slice", "type", "dict"):
            foreign.append(f"builtins.{name}")
        elif entry.get("registered_name") not in (None, "", name) and ">" in str(entry["registered_name"]):
            foreign.append(str(entry["registered_name"]))
    if foreign:
        raise UnsupportedError(
            f"'{path}' has classes that are not Keras' own",
            where=", ".join(sorted(set(foreign))[:8]),
            why="their code is not part of the file",
            hint="load it with keras.saving.load_model and custom_objects, and give the model as an object",
        )


def check_hdf5(source: Path, path: Path) -> Any:
    """That an HDF5 file is whole, has no links out of itself, and no sizes beyond what its own bytes allow; the text of
    its model's configuration, or None. A process of its own looks: HDF5's library may hang or crash.

    Raises:
        FrontendError: it is damaged, or h5py is not installed.
    """
    if importlib.util.find_spec("h5py") is None:
        raise FrontendError("HDF5 files need h5py", hint='pip install "weft-keras[keras]"')
    seconds = 1 + source.stat().st_size / (4 << 20)  # of the processor: entries cost as much as bytes
    command = [sys.executable, "-P", str(Path(__file__).with_name("hdf5.py")), str(source.absolute()), str(seconds)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        stopped = f"HDF5's library ends with status {done.returncode}, or needs more than {seconds:.1f} s"
        raise FrontendError(f"'{path}' is damaged", why=stopped) from None
    if "why" in found:
        raise FrontendError(f"'{path}' is damaged, or not {WHAT}", why=found["why"])
    return found["config"]
