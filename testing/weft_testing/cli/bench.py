"""`weft bench`: Weft and other engines on one model, in one process, in turns, so that changes of the machine's speed
affect all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import FrontendOption, Model, RecordsOption, SeedOption, ShapeOption, shapes
from weft.cli.terminal import say
from weft.cli.writing import files_of, require_writable, write
from weft.errors import InputError, PluginError, nearest
from weft_testing.bench.turns import (
    CACHED,
    TURN_CALLS,
    TURN_SECONDS,
    Contestant,
    as_data,
    common_threads,
    prepared_by,
    take_turns,
    warm_up,
    with_threads,
)
from weft_testing.cli.on import OnOption, board_at

if TYPE_CHECKING:
    import numpy as np

    from weft.hooks import EngineKind
    from weft_runtime.executable import Executable

    Array = np.ndarray[Any, Any]


def bench(
    context: typer.Context,
    model: Model,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="The target to compile for; may be repeated to compare [default: llvm]."),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            "--against", metavar="ENGINE,…", help="Other engines to measure: names, all (those installed), or none."
        ),
    ] = "all",
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Threads of each engine [default: the CPUs this process may use]."),
    ] = None,
    time_limit: Annotated[
        float, typer.Option("--seconds", min=0.0, help="Duration of the measurement in seconds, all engines together.")
    ] = 10.0,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Number of rounds, instead of --seconds.")
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="File for all numbers.")] = None,
    roofline: Annotated[
        bool,
        typer.Option(
            "--roofline", help="Measure Weft alone: the time of every kernel, and its share of the processor's peak."
        ),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Measure Weft alone: the time of every kernel; on a device, by the device's clock."
        ),
    ] = False,
    html_file: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="File for the roofline diagram.")
    ] = None,
    trace_file: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="File for a trace of one run, for Chrome or Perfetto.")
    ] = None,
    input_shape: ShapeOption = None,
    frontend: FrontendOption = None,
    records: RecordsOption = None,
    seed: SeedOption = 0,
    on: OnOption = None,
) -> None:
    """Measures the latency of a model with Weft and with other engines.

    All engines run in one process on the same inputs, in turns, so that changes of the machine's speed affect all of
    them. Prints medians and ratios. With --profile, --roofline or --trace only Weft runs, and each kernel is timed.
    With --on, Weft runs alone on another machine, whose own clock takes the times.
    """
    require_writable((("--json", json_file), ("--html", html_file), ("--trace", trace_file)), files_of(model, frontend))
    if on is not None and (profile or roofline or html_file or trace_file):
        raise InputError("--roofline, --profile, --html and --trace measure this machine", hint="leave out --on")
    if on is not None and against not in ("all", "none"):
        raise InputError(f"the engine '{against}' runs on this machine", hint="leave out --against, or --on")
    if profile or roofline or html_file or trace_file:
        examine(
            model,
            target,
            threads,
            time_limit,
            rounds,
            json_file,
            html_file,
            trace_file,
            roofline,
            input_shape,
            frontend,
            seed,
            profile,
            records,
        )
        return
    from weft.cli.inputs import make_inputs
    from weft.cli.opening import is_archive, open_executable
    from weft.cli.terminal import Progress
    from weft.plugins import engine_kinds, host
    from weft_testing.bench.engines import engine_refuses, open_engine

    archive = is_archive(model)
    board = board_at(context, on)
    if board is not None:
        against, threads = "none", threads or (None if target else board.facts.cores)
        target = target or ([] if archive else [board.facts.target])
    kinds = [] if archive and against == "all" else choose_engines(engine_kinds(), against, model, frontend)
    if archive and kinds:
        raise InputError(f"{model} is compiled already, peers cannot read it", hint="give the model, or --against none")
    count = common_threads(threads, () if archive else target or ["llvm"])
    sizes = shapes(input_shape)
    contestants: list[Contestant] = []
    inputs: dict[str, Array] = {}  # made for the first executable; the same arrays serve everybody

    def weft_call(executable: Executable) -> Callable[[], Sequence[Array]]:
        return lambda: list(executable.run(inputs).values())

    def timed(executable: Executable) -> Callable[[], Sequence[float]] | None:
        if board is None:
            return None
        turn = {"warmups": 1, "repeats": TURN_CALLS, "seconds": TURN_SECONDS, "outputs": False}
        return lambda: board.run(executable, inputs, **turn).seconds

    def peer_call(call: Callable[[Mapping[str, Any]], list[Any]]) -> Callable[[], Sequence[Array]]:
        return lambda: call(inputs)

    for text in dict.fromkeys(target or ([""] if archive else ["llvm"])):
        started = time.perf_counter()
        executable, stages = open_executable(
            model, with_threads(text, count) if text else None, frontend=frontend, records=records
        )
        spent = time.perf_counter() - started
        if not inputs:
            inputs.update(make_inputs(executable.inputs, {}, sizes, seed)[0])
        contestants.append(
            Contestant(
                f"weft {text}".strip(),
                host().api_version,
                weft_call(executable),
                spent,
                prepared_by(stages),
                timed=timed(executable),
            )
        )
    for kind in kinds:
        started = time.perf_counter()
        try:
            call = open_engine(kind, model, count)
            spent = time.perf_counter() - started
            try:
                call(inputs)
            except Exception as error:
                raise engine_refuses(kind, model, error) from error
        except InputError as error:
            if against != "all":
                raise
            say(f"warning: {error}", err=True)
            continue
        contestants.append(Contestant(kind.name, kind.available() or "", peer_call(call), spent))
    with Progress("measuring") as progress:
        warm_up(contestants, progress.show)
        take_turns(contestants, time_limit, rounds, progress.show)
    report = as_data(model, contestants, inputs, count)
    if board is not None:
        facts = board.facts
        report["machine"] = {"processor": facts.model, "system": facts.system, "board": board.name}
    if json_file is not None:
        write(json_file, json.dumps(report, indent=1) + "\n")
    print_report(report)
    if against == "all" and not kinds and not archive:
        say(
            "no peer is installed to compare with: pip install"
            f" {' or '.join(k.name for k in engine_kinds()) or 'a package that brings one'}"
        )


def examine(
    model: str,
    targets: Sequence[str] | None,
    threads: int | None,
    seconds: float,
    runs: int | None,
    json_file: str | None,
    html_file: str | None,
    trace_file: str | None,
    roofline: bool,
    input_shape: Sequence[str] | None,
    frontend: str | None,
    seed: int,
    table: bool = False,
    records: str | None = None,
) -> None:
    """Weft alone, kernel by kernel.

    Raises:
        InputError: several contestants, an archive, or a roofline of a device.
    """
    from weft.cli.inputs import make_inputs
    from weft.cli.opening import is_archive
    from weft.pipeline import mixed
    from weft.resolve import resolve_targets, warn_if_unused
    from weft_testing.bench.limits import measure_limits
    from weft_testing.bench.profile import Profile, compile_profiled, measure
    from weft_testing.bench.profile_devices import compile_on_devices, measure_on_devices
    from weft_testing.bench.roofline import as_data as roofline_data
    from weft_testing.bench.roofline import print_roofline
    from weft_testing.bench.roofline import roofline as roofline_rows

    if is_archive(model):
        raise InputError(
            f"{model} is compiled already, without clocks around its kernels",
            hint="give the model that it was compiled from",
        )
    if len(targets or ()) > 1:
        raise InputError(f"--roofline, --profile and --trace take one --target, got {len(targets or ())}")
    count = common_threads(threads, targets or ["llvm"])
    resolved = resolve_targets(with_threads((targets or ["llvm"])[0], count), records=records)
    sizes = shapes(input_shape)
    profile: Profile
    if mixed(resolved):
        if roofline or html_file is not None:
            raise InputError(
                "--roofline and --html measure the host's processor, and this target is a device",
                hint="--profile and --trace show its kernels",
            )
        on_devices = compile_on_devices(model, resolved, count, frontend=frontend, input_shapes=sizes)
        inputs, _ = make_inputs(on_devices.executable.inputs, {}, sizes, seed)
        profile = measure_on_devices(on_devices, inputs, min(seconds, 2.0), runs)
    else:
        profiled = compile_profiled(model, resolved[0], count, frontend=frontend, input_shapes=sizes)
        inputs, _ = make_inputs(profiled.executable.inputs, {}, sizes, seed)
        profile = measure(profiled, inputs, min(seconds, 2.0), runs)
    warn_if_unused(resolved)
    written: list[str] = []
    if trace_file is not None:
        from weft_testing.bench.trace import as_trace

        write(trace_file, json.dumps(as_trace(profile), indent=1) + "\n")
        written.append(
            f"{trace_file}: one run of {len(profile.calls)} kernel calls; open it at https://ui.perfetto.dev or"
            " chrome://tracing"
        )
    data = profile.as_data()
    drawn = roofline or html_file is not None
    if drawn:
        limits = measure_limits(resolved[0], count)
        report = roofline_data(profile, limits, roofline_rows(profile, limits))
        if html_file is not None:
            from weft_testing.bench.roofline_page import page

            write(html_file, page(report))
            written.append(f"{html_file}: the roofline as a page; open it in a browser")
    if json_file is not None:
        write(json_file, json.dumps(report if drawn else data, indent=1) + "\n")
    if table:
        print_profile(data)
    if drawn:
        print_roofline(report)
    for line in written:
        say(line)


def print_profile(data: Mapping[str, Any]) -> None:
    """What `Profile.as_data` gives, as a table; and what of a run kernels take."""
    from weft.cli.terminal import print_table
    from weft.cli.terminal import seconds as shown
    from weft_testing.bench.roofline import shorten

    def rate(k: Mapping[str, Any], what: str) -> str:
        return f"{k[what] / k['seconds'] / 1e9:.1f}" if k[what] is not None and k["seconds"] > 0 else "?"

    total = data["in_kernels"] or 1.0
    rows = [
        (
            shorten(k["kernel"], 40), k["rule"], k["calls"], shown(k["seconds"]), f"{k['seconds'] / total:.1%}", rate(k,
                "flop"), rate(k, "bytes"),
            shorten(", ".join(k["nodes"]), 50),
        )
        for k in data["kernels"]
    ]  # fmt: skip
    where = f"device {', '.join(data['devices'])}" if data["devices"] else f"{data['threads']} thread(s)"
    columns = ["kernel", "rule", "calls", "time", "of kernels", "GFLOP/s", "GB/s", "nodes"]
    print_table(f"{data['model']}, {where}", columns, rows, right=range(2, 7))
    calls = sum(k["calls"] for k in data["kernels"])
    line = (
        f"{data['runs']} runs, median of the {calls} kernel calls together {shown(data['in_kernels'])}, from the first"
        f" to the last {shown(data['median'])}"
    )
    if data["whole"] is not None:
        line += f", of a whole run {shown(data['whole'])}: the rest is copies, the host's own work, and waiting"
    say(line)


def choose_engines(
    known: Sequence[EngineKind], against: str, model: str, frontend: str | None = None
) -> list[EngineKind]:
    """The peers that `--against` names; of all those that read models of this kind.

    Raises:
        InputError: one that no plugin brings, or that is not installed.
        PluginError: one that two plugins claim.
    """
    by_name = {k.name: k for k in known}
    if against == "none":
        return []
    if against == "all":
        from weft.loading import reader_of

        here = [k for k in known if _is_here(k)]
        reader = reader_of(model, frontend)[0].value.name if any(k.frontends for k in here) else ""
        return [k for k in here if not k.frontends or reader in k.frontends]
    chosen = []
    for name in dict.fromkeys(part.strip() for part in against.split(",") if part.strip()):
        if name not in by_name:
            close = nearest(name, by_name)
            raise InputError(
                f"no engine '{name}'",
                hint=f"did you mean '{close}'?" if close else "known: " + (", ".join(by_name) or "none"),
            )
        if by_name[name].available() is None:
            raise InputError(f"the engine '{name}' is not installed", hint=f"pip install {name}")
        chosen.append(by_name[name])
    return chosen


def _is_here(kind: EngineKind) -> bool:
    try:
        return kind.available() is not None
    except PluginError as error:  # two plugins claim it: the others are compared
        say(f"warning: {error}", err=True)
        return False


def print_report(report: Mapping[str, Any]) -> None:
    from weft.cli.terminal import print_table
    from weft.cli.terminal import seconds as shown

    rows = [
        (
            e["name"],
            e["version"],
            shown(e["median"]),
            shown(e["fastest"]),
            shown(e["p90"]),
            f"{e['ratio']:.2f}",
            "" if e["difference"] is None else f"{e['difference']:.1e}",
            len(e["times"]),
            f"{shown(e['prepare_seconds'])}, {e['prepared']}",
        )
        for e in report["engines"]
    ]
    first = report["engines"][0]["name"]
    columns = ["engine", "version", "median", "fastest", "p90", "ratio", "difference", "calls", "prepared in"]
    title = f"{report['model']}, {report['threads']} thread(s), {report['machine']['processor']}"
    print_table(title, columns, rows, right=range(2, len(columns)))
    say(f"ratio: median time over that of {first}; difference: largest of any output, over its largest element")
    if any(e["prepared"] == CACHED for e in report["engines"]):
        say(f"{CACHED}: a cold start, which compares with a peer's, takes longer; WEFT_CACHE_BYTES=0 shows it")
