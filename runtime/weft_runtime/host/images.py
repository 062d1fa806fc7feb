"""Pictures as files store them → pixels."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from weft_runtime.arrays import Array
from weft_runtime.errors import ExecutionError, from_signal
from weft_runtime.host.registry import host_function

FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 1 << 28


@host_function("ImageDecoder", pixels="str")
def image_decoder(given: Any, *, pixels: str) -> Array:
    """A picture as uint8[height, width, channels]; `pixels` is RGB, BGR or Grayscale.

    Raises:
        ExecutionError: Pillow is not installed, or the bytes are no picture of `FORMATS`.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ExecutionError(
            "pictures are decoded by Pillow, which is not installed", hint="pip install pillow"
        ) from None
    data = np.asarray(given)
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ExecutionError(f"ImageDecoder takes uint8[n], got {data.dtype}{list(data.shape)}")
    if pixels not in ("RGB", "BGR", "Grayscale"):
        raise ExecutionError(f"ImageDecoder: '{pixels}' is none of RGB, BGR, Grayscale")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data.tobytes()), formats=FORMATS) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    raise ExecutionError(
                        f"a picture of {picture.width} × {picture.height} pixels is refused",
                        why=f"at most {MOST_PIXELS} are decoded",
                    )
                decoded = np.asarray(picture.convert("L" if pixels == "Grayscale" else "RGB"))
    except ExecutionError:
        raise
    except Exception as error:  # decoders of many formats, on bytes of anybody
        if from_signal(error):
            raise
        raise ExecutionError(
            "the bytes are no picture that can be decoded", why=f"{type(error).__name__}: {error}"[:300]
        ) from None
    if pixels == "Grayscale":
        return np.ascontiguousarray(decoded[:, :, None])
    return np.ascontiguousarray(decoded[:, :, ::-1] if pixels == "BGR" else decoded)
