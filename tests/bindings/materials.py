"""What the tests of all languages run on: one folder of libraries, archives, inputs, and results of weft_runtime.

- libweft.so; mlp.weft and mlp.so, one model as an archive and as an export; mixed.weft and mixed.so, of which the
  latter was exported with the prefix "mixed"; foreign.weft, for another architecture; damaged.weft, whose weights are
  not those of its hash; mlp.sha256, the hash of mlp.weft
- mlp: mlp-x.bin (float32[3, 64]) gives mlp-y.bin (float32[3, 32])
- mixed: mixed-x.bin (float32[4, 3]), mixed-k.bin (int64[5]), mixed-s.bin (float16[]) and mixed-m.bin (bool[2]) give
  mixed-y.bin (float32[4, 3]), mixed-places.bin (int64[2, 7]), mixed-t.bin (float16[]), mixed-w.bin (bool[2]) and
  mixed-l.bin (int64[5])

A file of an array holds its elements, row by row.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.bindings.test_javascript import onnx_model
from tests.libweft.native import library

import weft
from weft_runtime.cpu_features import machine
from weft_testing.models import mlp

MIXED = """<ir_version: 8, opset_import: ["" : 17]>
mixed (float[a, 3] x, int64[b] k, float16 s, bool[c] m)
  => (float[a, 3] y, int64[2, d] places, float16 t, bool[c] w, int64[b] l) {
  factor = Cast <to = 1> (s)
  y = Mul (x, factor)
  places = NonZero (x)
  t = Add (s, s)
  w = Not (m)
  l = Add (k, k)
}"""


def write(folder: Path) -> None:
    """Fills `folder`, which is there and empty."""
    shutil.copy(library(), folder / "libweft.so")
    other = "x86_64" if machine() == "aarch64" else "aarch64"
    draw = np.random.default_rng(36)
    x = (draw.standard_normal((4, 3)) * (np.arange(12).reshape(4, 3) % 5 != 0)).astype(np.float32)
    x[1, 0] = 0
    x[2, 0] = -0.0
    inputs: dict[str, dict[str, np.ndarray[Any, Any]]] = {
        "mlp": {"x": draw.standard_normal((3, 64)).astype(np.float32)},
        "mixed": {
            "x": x,
            "k": np.array([1, -2, 2**40, 0, -(2**62)]),
            "s": np.array(1.5, np.float16),
            "m": np.array([True, False]),
        },
    }
    models = {"mlp": mlp(), "mixed": onnx_model(MIXED)}
    for name, model in models.items():
        exe = weft.compile(model, "llvm")
        exe.save(folder / f"{name}.weft")
        weft.export(exe, folder / f"{name}.so", options={} if name == "mlp" else {"prefix": name})
        for value, array in [*inputs[name].items(), *exe.run(inputs[name]).items()]:
            (folder / f"{name}-{value}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
    weft.compile(mlp(), f"llvm -mtriple={other}-linux-gnu").save(folder / "foreign.weft")
    whole = (folder / "mlp.weft").read_bytes()
    (folder / "mlp.sha256").write_text(hashlib.sha256(whole).hexdigest())
    (folder / "damaged.weft").write_bytes(flipped(folder / "mlp.weft"))


def flipped(archive: Path) -> bytes:
    """The archive with another last bit of its largest part."""
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as parts:
        largest = max(parts.infolist(), key=lambda i: i.file_size)
    names, extra = struct.unpack_from("<HH", content, largest.header_offset + 26)
    content[largest.header_offset + 30 + names + extra + largest.file_size - 1] ^= 1
    return bytes(content)
