"""PaddlePaddle's own inference, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FrontendError
from weft.hooks import EngineKind
from weft_paddle.plugin import PaddleOptions, files

Run = Callable[[Mapping[str, Any]], list[Any]]


def version() -> str | None:
    """The installed version of PaddlePaddle."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    for package in ("paddlepaddle", "paddlepaddle-gpu"):
        try:
            return installed(package)
        except PackageNotFoundError:
            continue
    return None


def open_paddle(path: str, threads: int) -> Run:
    """A predictor with the optimisations that are its default. Inputs go by the program's names, which the converted
    model has as well.

    Raises:
        FrontendError: the program has no parameters beside it.
    """
    import paddle.inference

    params = files(Path(path), PaddleOptions())
    if not params:
        raise FrontendError(f"'{path}' has no parameters beside it", hint="paddle.jit.save writes a .pdiparams")
    config = paddle.inference.Config(path, str(params[0]))
    config.disable_gpu()
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(threads)
    predictor = paddle.inference.create_predictor(config)

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        for name in predictor.get_input_names():
            predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(inputs[name]))
        predictor.run()
        return [predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()]

    return run


ENGINES = [EngineKind("paddle", version, open_paddle, frontends=("paddle",))]

__all__ = ["ENGINES"]
