"""The pipeline: model → graph → groups → programs → code → executable. Reads as the list of its steps.

load                 a frontend reads the model                       Graph, verified
specialize           `input_shapes` replace symbols                   Graph
run_passes           optimise, lay out, fuse                          every node is a Group
lower_group          per distinct group: a naive Program              verified Program
schedule             the target's best rule rewrites it               same meaning
lower_program        loop passes                                      what codegen takes
codegen              compiled in worker processes, cached on disk     KernelCode
plan_memory          values and scratch in one arena                  MemoryPlan
assemble, link       one native segment                               Executable
"""

from __future__ import annotations

import hashlib
import operator
import os
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import settings
from weft.errors import (
    ArchiveError,
    FrontendError,
    GraphError,
    InputError,
    enough_memory,
    expect,
    nearest,
)
from weft.hooks import OnStage, StageReport
from weft.loading import load, model_files, model_sources, reader_of
from weft.plugins import host
from weft.records import Records
from weft.resolve import ResolvedTarget, resolve_targets, warn_if_unused
from weft_runtime.cache import Cache
from weft_runtime.executable import Executable

# What a compilation needs beyond this is imported when there is one: a model from the cache starts without the
# compiler.
if TYPE_CHECKING:
    from weft.graph.nodes import Graph
    from weft.passes.pipeline import GraphPass


@enough_memory("to compile the model")
def compile(
    model: Any,
    target: str = "llvm",
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    passes: Sequence[GraphPass | Callable[[Graph], Graph]] = (),
    frontend: str | None = None,
    cache: bool = True,
    strict: bool = False,
    on_stage: OnStage | None = None,
    records: Records | str | os.PathLike[str] | None = None,
    tuned: bool = False,
    **options: Any,
) -> Executable:
    """Compiles a model for a target, or for several.

    Args:
        model: a path, bytes, a framework's object, or a Graph.
        target: kind and options, e.g. "llvm -mcpu=znver4 -threads=2"; "llvm" alone is this machine. Several in order of
            preference, e.g. "npu, llvm": each node is placed where it and the copies around it take the least time.
        input_shapes: sizes for inputs with symbolic dimensions, which may make the result faster.
        passes: graph passes of your own, run after the core's simplifications (a plain function is one too).
        frontend: name of the frontend, if the model does not determine it, and its options, e.g. "onnx -dims=batch=4"
            or "-dims=batch=4".
        cache: use the on-disk caches.
        strict: a node that the first target does not take is an error.
        on_stage: called after every stage.
        records: choices of kernels and graphs to follow, or a file of them (`weft.records`); they have precedence over
            those of `weft tune` (WEFT_RECORDS) and of installed packages. One that cannot be followed gives a
            ScheduleWarning with the reason, and the defaults are used; so do given records of which none is of this
            model and machine.
        tuned: that nothing is recorded of the model and this machine is an error.
        options: of the frontend, by name, e.g. dims={"batch": 4}. A compilation with them is not cached.

    Raises:
        WeftError: of the kind that fits; says what, where, why and what to do.
    """
    _check_arguments(frontend, passes, on_stage, cache=cache, strict=strict, tuned=tuned)
    resolved = resolve_targets(target, records=records)
    input_shapes = None if input_shapes is None else _checked_shapes(input_shapes) or None
    names = {p.name for p in resolved[0].graph_passes()} if passes else set()
    own = [_as_pass(p, names) for p in passes]
    # Who asks for the stages to be written wants them to run.
    files = model_sources(model, frontend)
    key = (
        None
        if passes or options or tuned or not cache or settings.DUMP.get()
        else model_key(model, resolved, input_shapes, frontend, strict, files)
    )
    store = Cache("models")
    if key is not None:
        started = time.perf_counter()
        path = store.get_path(key)
        found = None if path is None else load_cached(path)
        if found is not None:
            if on_stage is not None:
                on_stage(StageReport("cache", key[:12], time.perf_counter() - started, found))
            found.sources = files
            return found
    from weft.compilation import Compilation, check_dump

    check_dump(resolved, own)
    compilation = Compilation(resolved[-1], own, on_stage, cache)
    with compilation.stage("load", str(model) if isinstance(model, (str, Path)) else type(model).__name__):
        graph = load(model, frontend=frontend, **options)
    if input_shapes:
        graph = specialize(graph, input_shapes)
    if mixed(resolved) or has_steps(graph):
        from weft.mixed import MixedCompilation

        executable = MixedCompilation(resolved, own, on_stage, cache, strict).run(graph)
    else:
        executable = compilation.run(graph)
    _require_records(model, resolved if tuned else ())
    # What changed since it was hashed may be what was read, and would be found under the hash of what was there before.
    # A model whose record is not followed is made again each time, so that each compilation warns.
    followed = not warn_if_unused(resolved) and not any(t.refused for t in resolved)
    if key is not None and followed and key == model_key(model, resolved, input_shapes, frontend, strict, files):
        with compilation.stage("save", key[:12]):
            # An entry that a crash of the system damages is rebuilt, if its weights are looked at.
            store.put(key, lambda path: executable.save(path, durable=not settings.VERIFY_WEIGHTS.get()))
    executable.sources = files
    return executable


def _check_arguments(frontend: object, passes: object, on_stage: object, **flags: object) -> None:
    """Checks the types of what `compile` is given.

    Raises:
        FrontendError, InputError: what an argument has to be.
    """
    expect(frontend, (str, type(None)), "frontend", "a text", FrontendError, 'for example "onnx -dims=batch=4"')
    expect(passes, Sequence, "passes", "a list of graph passes")
    for name, flag in flags.items():
        expect(flag, bool, name, "True or False")
    if on_stage is not None and not callable(on_stage):
        raise InputError(
            f"on_stage is called after every stage, got {type(on_stage).__name__}",
            hint="give a function of a StageReport",
        )


def _require_records(model: object, resolved: Sequence[ResolvedTarget]) -> None:
    """That a compilation for these targets has found a record, where there are targets.

    Raises:
        InputError: it has not.
    """
    if resolved and not any(t.applied for t in resolved):
        raise InputError(
            "nothing is recorded of this model on this machine",
            where=f"{settings.RECORDS.name} is {settings.RECORDS.get() or 'none'}",
            hint=f"weft tune {model}" if isinstance(model, (str, Path)) else "weft.tune(model) measures and records",
        )


def _as_pass(given: GraphPass | Callable[[Graph], Graph], names: Container[str]) -> GraphPass:
    from weft.passes.pipeline import GraphPass

    if isinstance(given, GraphPass):
        return given
    if not callable(given):
        raise GraphError(
            f"`passes` holds {given!r}, which is no graph pass",
            hint="give functions from Graph to Graph, or GraphPass(name, function, after)",
        )
    # A plain function sees the graph when algebra is done. Without the operator library that is when constants are
    # folded.
    after = "fold_scale" if "fold_scale" in names else "fold_constants_2"
    return GraphPass(getattr(given, "__name__", "pass"), given, after=after)


def _checked_shapes(input_shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    if not isinstance(input_shapes, Mapping):
        raise InputError(
            f"input_shapes takes sizes by input name, got {type(input_shapes).__name__}",
            hint="for example {'x': (1, 3, 224, 224)}",
        )
    found = {}
    for name, shape in input_shapes.items():
        try:
            found[name] = tuple(operator.index(size) for size in shape)
        except TypeError:
            found[name] = (-1,)
        if any(size < 0 for size in found[name]):
            raise InputError(
                f"input_shapes gives '{name}' {shape!r}, which is no list of sizes",
                hint="for example {'x': (1, 3, 224, 224)}",
            )
    return found


def specialize(graph: Graph, input_shapes: Mapping[str, Sequence[int]]) -> Graph:
    """The graph with the symbols of input dimensions replaced by sizes.

    Raises:
        InputError: an input that does not exist, of another rank, or whose constant dimension differs.
    """
    from weft.expr.nodes import Var
    from weft.graph.rewrite import substitute_symbols

    by_name = {v.name: v for v in graph.inputs}
    env: dict[str, int] = {}
    for name, shape in input_shapes.items():
        if name not in by_name:
            close = nearest(name, by_name)
            raise InputError(
                f"input_shapes names '{name}', which is no input",
                hint=f"did you mean '{close}'?" if close else "inputs: " + ", ".join(by_name),
            )
        value = by_name[name]
        if len(shape) != len(value.shape):
            raise InputError(
                f"input_shapes gives '{name}' {len(shape)} dimensions, the model has {len(value.shape)}",
                where=repr(value),
            )
        for axis, (d, size) in enumerate(zip(value.shape, shape)):
            expected = env.setdefault(d.name, int(size)) if isinstance(d, Var) else d
            if isinstance(expected, int) and expected != int(size):
                raise InputError(
                    f"input_shapes gives dimension {axis} of '{name}' as {size}, expected {expected}", where=repr(value)
                )
    return substitute_symbols(graph, env)


def load_cached(path: Path) -> Executable | None:
    """A model from the cache; None if the entry is unusable, so that it is rebuilt."""
    try:
        return Executable.load(path)
    except ArchiveError:
        return None


def mixed(targets: Sequence[ResolvedTarget]) -> bool:
    """Whether a compilation for these targets makes more than one native segment."""
    return len(targets) > 1 or not targets[0].native


def has_steps(graph: Graph) -> bool:
    """Whether a graph holds what is no kernel: control flow, strings, sequences, optionals."""
    from weft.passes.place import is_numeric, is_step

    return any(map(is_step, graph.nodes)) or not all(map(is_numeric, graph.inputs))


def model_key(
    model: Any,
    target: Sequence[ResolvedTarget],
    input_shapes: Mapping[str, Sequence[int]] | None,
    frontend: str | None,
    strict: bool = False,
    files: Sequence[Path] | None = None,
) -> str | None:
    """What identifies a compilation: the bytes of the model and of `files`, the target, its records, options and the
    versions of everything. None: not cached.

    Args:
        files: those that `model_files` gives for the model, where the caller has them.
    """
    digest = hashlib.sha256()
    if isinstance(model, (str, os.PathLike)):
        from weft.fingerprint import hash_file

        files = model_files(model, frontend) if files is None else files
        try:
            content: list[Any] = [hash_file(file) if file.is_file() else None for file in files]
            if Path(model).is_dir():
                content.append([os.path.relpath(file, model) for file in files])
        except OSError:  # loading it says why
            return None
        if not content:
            return None
        digest.update(repr(content).encode())
    elif isinstance(model, (bytes, bytearray)):
        if _may_name_files(reader_of(model, frontend)[1]):
            return None
        digest.update(model)
    else:
        return None
    shapes = sorted((k, tuple(v)) for k, v in (input_shapes or {}).items())
    targets = [(str(t.target), t.fingerprint, t.records.digest) for t in target]
    digest.update(repr((targets, shapes, frontend, strict, fingerprints())).encode())
    return digest.hexdigest()


def _may_name_files(options: Any) -> bool:
    """Whether options of a frontend hold what may be a path, so that a model of bytes depends on more than its
    bytes."""
    return any(isinstance(getattr(options, f.name), (str, os.PathLike)) for f in fields(options))


def fingerprints() -> str:
    """Versions of the core and every plugin; for editable installs a hash of the sources."""
    from weft.fingerprint import source_fingerprint

    return ";".join(source_fingerprint(p) for p in host().plugins if p.healthy)
