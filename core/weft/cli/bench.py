"""`weft bench`: Weft and other engines on one model, in one process, in turns, so that changes of the machine's speed
affect all of them."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import FrontendOption, Model, RecordsOption, SeedOption, ShapeOption, shapes
from weft.cli.terminal import say
from weft.cli.writing import files_of, require_writable, write
from weft.errors import InputError, PluginError, nearest

if TYPE_CHECKING:
    import numpy as np

    from weft.hooks import EngineKind
    from weft_runtime.executable import Executable

    Array = np.ndarray[Any, Any]

PAUSE = 0.1
"""Before each turn: the threads of the engine before may still be spinning for work, some of them for 60 ms."""
TURN_SECONDS, TURN_CALLS = 0.05, 10
"""A turn is one call that is not counted, then as many as fit."""
WARM_SECONDS, WARM_CALLS = 0.3, 3


@dataclass
class Contestant:
    """One engine with the model loaded. `times` are seconds per call."""

    name: str
    version: str
    run: Callable[[], Sequence[Array]]
    prepare_seconds: float
    prepared: str = "opened"
    """How it came to be: compiled, taken from the cache, loaded from an archive, or opened by a peer."""
    times: list[float] = field(default_factory=list)
    difference: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.times)


def bench(
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
) -> None:
    """Measures the latency of a model with Weft and with other engines.

    All engines run in one process on the same inputs, in turns, so that changes of the machine's speed affect all of
    them. Prints medians and ratios. With --profile, --roofline or --trace only Weft runs, and each kernel is timed.
    """
    require_writable((("--json", json_file), ("--html", html_file), ("--trace", trace_file)), files_of(model, frontend))
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
    from weft.cli.opening import engine_refuses, is_archive, open_engine, open_executable
    from weft.cli.terminal import Progress
    from weft.plugins import engine_kinds, host

    archive = is_archive(model)
    kinds = [] if archive and against == "all" else choose_engines(engine_kinds(), against)
    if archive and kinds:
        raise InputError(f"{model} is compiled already, peers cannot read it", hint="give the model, or --against none")
    count = common_threads(threads, () if archive else target or ["llvm"])
    sizes = shapes(input_shape)
    contestants: list[Contestant] = []
    inputs: dict[str, Array] = {}  # made for the first executable; the same arrays serve everybody

    def weft_call(executable: Executable) -> Callable[[], Sequence[Array]]:
        return lambda: list(executable.run(inputs).values())

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
            Contestant(f"weft {text}".strip(), host().api_version, weft_call(executable), spent, prepared_by(stages))
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
    from weft.cli.limits import measure_limits
    from weft.cli.opening import is_archive
    from weft.cli.profile import Profile, compile_profiled, measure
    from weft.cli.profile_devices import compile_on_devices, measure_on_devices
    from weft.cli.roofline import as_data as roofline_data
    from weft.cli.roofline import print_roofline
    from weft.cli.roofline import roofline as roofline_rows
    from weft.pipeline import mixed
    from weft.resolve import resolve_targets

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
    written: list[str] = []
    if trace_file is not None:
        from weft.cli.trace import as_trace

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
            from weft.cli.roofline_page import page

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
    from weft.cli.roofline import shorten
    from weft.cli.terminal import print_table
    from weft.cli.terminal import seconds as shown

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


def choose_engines(known: Sequence[EngineKind], against: str) -> list[EngineKind]:
    """The peers that `--against` names.

    Raises:
        InputError: one that no plugin brings, or that is not installed.
        PluginError: one that two plugins claim.
    """
    by_name = {k.name: k for k in known}
    if against == "none":
        return []
    if against == "all":
        return [k for k in known if _is_here(k)]
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


CACHED = "from the cache"


def prepared_by(stages: Mapping[str, float]) -> str:
    """How an executable came to be, from the stages of `open_executable`."""
    return "loaded" if not stages else "compiled" if "fuse" in stages else CACHED


def common_threads(asked: int | None, targets: Sequence[str]) -> int:
    """Threads of every engine: as asked, else the most that a target's -threads says, else as many CPUs as this process
    may use.

    Raises:
        InputError: a target says another number than was asked for.
    """
    from weft.resolve import resolve_targets
    from weft_runtime.threads import available_threads

    said = {text: r.threads for text in targets for r in resolve_targets(text) if r.threads}
    for text, threads in said.items():
        if asked is not None and threads != asked:
            raise InputError(
                f"--threads {asked} is for every engine, and the target '{text}' says {threads}",
                hint="give one of them",
            )
    return asked or max(said.values(), default=available_threads())


def with_threads(target: str, threads: int) -> str:
    """The target with -threads, where its kind has that option and the text does not give it."""
    import dataclasses

    from weft.resolve import target_kinds

    kind = target_kinds().get(target.split()[0])
    takes = kind is not None and any(f.name == "threads" for f in dataclasses.fields(kind.options))
    return f"{target} -threads={threads}" if takes and "-threads" not in target else target


def warm_up(contestants: Sequence[Contestant], show: Callable[[str], None]) -> None:
    """Calls everyone until caches are warm, and compares results with the first contestant's."""

    expected: Sequence[Array] = ()
    for c in contestants:
        show(f"warming up {c.name}")
        results = list(c.run())
        if c is contestants[0]:
            expected = results
        else:
            c.difference = largest_difference(expected, results)
        ends, calls = time.perf_counter() + WARM_SECONDS, 1
        while calls < WARM_CALLS or time.perf_counter() < ends:
            c.run()
            calls += 1


def largest_difference(expected: Sequence[Array], results: Sequence[Array]) -> float:
    """The largest difference of any element as a share of the largest element; infinite for results of other shapes,
    and of strings that differ."""
    import numpy as np

    if len(expected) != len(results):
        return float("inf")
    worst = 0.0
    for one, other in zip(expected, results):
        if isinstance(one, list) and isinstance(other, list):
            worst = max(worst, largest_difference(one, other))
            continue
        if one is None or other is None:
            worst = worst if one is other else float("inf")
            continue
        e, r = np.asarray(one), np.asarray(other)
        if e.shape != r.shape:
            return float("inf")
        if e.dtype.kind in "OSTU":
            worst = worst if np.array_equal(e.astype(np.str_), r.astype(np.str_)) else float("inf")
        elif e.size:
            wide = np.complex128 if e.dtype.kind == "c" else np.float64
            with np.errstate(invalid="ignore"):
                gap = np.abs(e.astype(wide) - r.astype(wide))
            scale = float(np.nanmax(np.abs(e.astype(wide)), initial=0.0))
            worst = max(worst, float(np.nanmax(gap, initial=0.0)) / (scale or 1.0))
    return worst


def take_turns(
    contestants: Sequence[Contestant], limit: float, rounds: int | None, show: Callable[[str], None]
) -> None:
    """Round-robin, the first of each round another one, until the time is over (at least three rounds) or the rounds
    are done."""
    ends, done = time.perf_counter() + limit, 0
    while done < rounds if rounds is not None else done < 3 or time.perf_counter() < ends:
        at = done % len(contestants)
        for c in (*contestants[at:], *contestants[:at]):
            show(f"round {done + 1}: {c.name}")
            turn(c)
        done += 1


def turn(c: Contestant) -> None:
    time.sleep(PAUSE)
    c.run()
    ends = time.perf_counter() + TURN_SECONDS
    for _ in range(TURN_CALLS):
        started = time.perf_counter()
        c.run()
        now = time.perf_counter()
        c.times.append(now - started)
        if now > ends:
            break


def as_data(model: str, contestants: Sequence[Contestant], inputs: Mapping[str, Array], threads: int) -> dict[str, Any]:
    """Everything measured, for JSON."""
    first = contestants[0].median
    return {
        "model": Path(model).name,
        "machine": machine(),
        "threads": threads,
        "inputs": {name: _described(a) for name, a in inputs.items()},
        "engines": [
            {
                "name": c.name,
                "version": c.version,
                "median": c.median,
                "fastest": min(c.times),
                "p90": sorted(c.times)[int(len(c.times) * 0.9)],
                "ratio": c.median / first,
                "difference": c.difference,
                "prepare_seconds": c.prepare_seconds,
                "prepared": c.prepared,
                "times": c.times,
            }
            for c in contestants
        ],
    }


def _described(value: Any) -> Any:
    """The type of an input; of a sequence those of its elements."""
    return (
        [_described(v) for v in value]
        if isinstance(value, list)
        else {"dtype": str(value.dtype), "shape": list(value.shape)}
    )


def machine() -> dict[str, str]:
    return {"processor": processor_name(), "system": platform.platform(), "python": platform.python_version()}


def processor_name() -> str:
    """The processor as the system calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


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
