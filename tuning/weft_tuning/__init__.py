"""Searches schedules: measures the choices of every kernel of a model, and records the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from weft.resolve import ResolvedTarget
    from weft_tuning.measuring import Worker
    from weft_tuning.report import Report, State
    from weft_tuning.work import Work

__all__ = ["tune"]


def tune(
    what: Any,
    target: str = "llvm",
    *,
    seconds: float | None = None,
    trials: int | None = None,
    frontend: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
    file: str | Path | None = None,
    worker: Worker | None = None,
    seed: int = 0,
    on_state: Callable[[State], None] | None = None,
) -> Report:
    """Measures other choices for the kernels of a model, or for a formula, and records what is faster.

    Args:
        what: a model, as `weft.compile` takes it; or what `weft.compute` returned, or a list of that; or a naive
            Program.
        seconds: time to spend; None: 600, or no limit where `trials` are given.
        trials: candidates to measure at most.
        shapes: of a model's inputs, by name; open dimensions that are not there are 1.
        sizes: of a formula's symbols, by name, each 1 if it is not there.
        inputs: of a formula, by name, instead of random ones: indices, for example, have to be within bounds.
        file: of records; None: the one that compilations look up (WEFT_RECORDS).
        worker: measures, and is closed at the end; None: a process of this machine.
        on_state: called after every round.

    Raises:
        PluginError: a library that searches is not installed.
        InputError: a limit is no positive number; an argument is of a formula, and a model is given, or the reverse.
        WeftError: what is given cannot be compiled or measured; the file cannot be used.
    """
    from weft.resolve import resolve_target
    from weft_tuning.budget import Budget
    from weft_tuning.cli import store_file
    from weft_tuning.measuring import LocalWorker
    from weft_tuning.search import libraries
    from weft_tuning.store import Store
    from weft_tuning.tuner import Tuner

    libraries()
    limits = Budget(seconds if seconds is not None or trials is not None else 600.0, trials)
    resolved = resolve_target(target)
    place = store_file(None if file is None else Path(file))
    store = Store(place, resolved.machine_key, resolved.versions)
    work = _work(what, resolved, frontend, shapes, sizes, inputs, seed)
    with worker or LocalWorker() as measuring:
        return Tuner(
            work, measuring, store, seconds=limits.seconds, trials=trials, seed=seed, limits=False, on_state=on_state
        ).run()


def _work(
    what: Any,
    target: ResolvedTarget,
    frontend: str | None,
    shapes: Mapping[str, Sequence[int]] | None,
    sizes: Mapping[str, int] | None,
    inputs: Mapping[str, Any] | None,
    seed: int,
) -> Work:
    from weft.errors import InputError
    from weft.kernel import schedule
    from weft.loop.nodes import Program
    from weft.tensor.language import Tensor
    from weft_tuning.work import FormulaWork, ModelWork

    several = isinstance(what, Sequence) and len(what) > 0 and all(isinstance(t, Tensor) for t in what)
    formula = several or isinstance(what, (Tensor, Program))
    others = {"frontend": frontend, "shapes": shapes} if formula else {"sizes": sizes, "inputs": inputs}
    for name, value in others.items():
        if value is not None:
            raise InputError(
                f"'{name}' has no meaning for a {'formula' if formula else 'model'}",
                hint="`sizes` and `inputs` are of formulas, `shapes` and `frontend` of models",
            )
    if isinstance(what, Tensor) or several:
        what = schedule(what, str(target.target)).program
    if isinstance(what, Program):
        return FormulaWork(what, target, sizes=sizes, inputs=inputs, seed=seed)
    return ModelWork(what, target, frontend=frontend, shapes=shapes, seed=seed)
