"""`weft tune` and `weft records`."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import FrontendOption, Model, SeedOption, ShapeOption, shapes
from weft.cli.terminal import print_table, say, seconds
from weft.errors import InputError

if TYPE_CHECKING:
    from weft_tuning.measuring import Worker
    from weft_tuning.report import Report, State

FileOption = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="File of records [default: the one that compilations look up]."),
]


def tune(
    model: Model,
    target: Annotated[str, typer.Option("--target", "-t", help="The target to tune for.")] = "llvm",
    time_limit: Annotated[
        float | None, typer.Option("--seconds", min=1.0, help="Time to spend; 600 without --trials.")
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Candidates to measure at most.")] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of a run [default: the CPUs this process may use].")
    ] = None,
    input_shape: ShapeOption = None,
    fixed: Annotated[
        bool,
        typer.Option("--fixed", help="Tune an executable for exactly the sizes of --input-shape, not an open one."),
    ] = False,
    frontend: FrontendOption = None,
    file: FileOption = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="ADDRESS", help="Scheduler of a Dask cluster whose workers measure."),
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="URL", help='Board that measures, e.g. "ssh://pi@board".')
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="File for all numbers.")] = None,
    seed: SeedOption = 0,
) -> None:
    """Measures other choices for the kernels of a model, and records what is faster.

    Compilations on this machine look the records up. Tuning may be interrupted with Ctrl-C, and goes on where it was
    when it is called again. Nothing else should run meanwhile.
    """
    from weft.cli.writing import files_of, require_writable, write
    from weft.resolve import resolve_target
    from weft_testing.bench.turns import common_threads, with_threads
    from weft_tuning.budget import Budget
    from weft_tuning.measuring import under_load
    from weft_tuning.search import libraries
    from weft_tuning.store import Store
    from weft_tuning.tuner import Tuner
    from weft_tuning.work import ModelWork

    require_writable((("--json", json_file),), files_of(model, frontend))
    limits = Budget(time_limit if time_limit is not None or trials is not None else 600.0, trials)
    if fixed and not input_shape:
        raise InputError("--fixed needs the sizes to compile for", hint="give them with --input-shape")
    place = store_file(file)
    libraries()
    with worker_of(cluster, on) as worker:
        text = target
        board = getattr(worker, "board", None)
        if board is not None and target == "llvm":
            text = board.facts.target
        if board is not None and threads is None and "-threads" not in text:
            threads = board.facts.cores
        count = common_threads(threads, [text])
        resolved = resolve_target(with_threads(text, count))
        busy = under_load() if on is None and cluster is None else None
        if busy is not None:
            say(f"warning: {busy}; times under load tell little, and rounds that vary are repeated", err=True)
        store = Store(place, resolved.machine_key, resolved.versions)
        began = time.perf_counter()
        work = ModelWork(model, resolved, frontend=frontend, shapes=shapes(input_shape), fixed=fixed, seed=seed)
        spent = time.perf_counter() - began
        left = None if limits.seconds is None else max(1.0, limits.seconds - spent)
        with Shown(work.name) as shown:
            tuner = Tuner(
                work,
                worker,
                store,
                seconds=left,
                trials=trials,
                seed=seed,
                limits=board is None and cluster is None,
                on_state=shown.show,
            )
            with stopping(tuner):
                report = tuner.run()
    print_report(report, place)
    if json_file is not None:
        write(json_file, json.dumps(as_data(report), indent=1))


records = typer.Typer(
    name="records", help="Choices that were tuned: lists them, without a command.", invoke_without_command=True
)


@records.callback()
def list_records(context: typer.Context, file: FileOption = None) -> None:
    """Lists the records of a file, those that gain most first."""
    from weft_tuning.store import kept

    if context.invoked_subcommand is not None:
        if file is not None:  # as if it stood behind the command: `weft records --file FILE drop --all`
            commands = getattr(context.command, "commands", {})
            context.default_map = {name: {"file": str(file)} for name in commands}
        return
    place = existing(file)
    found = kept(place)
    rows = [
        [
            k.name,
            k.record.subject,
            k.record.key[:12],
            k.record.machine,
            seconds(k.default_seconds),
            seconds(k.seconds),
            f"{k.gain:.2f}",
            time.strftime("%Y-%m-%d", time.gmtime(k.time)),
        ]
        for k in found
    ]
    columns = ["kernel", "of", "key", "machine", "default", "tuned", "times as fast", "since"]
    print_table(f"{len(found)} records in {place}", columns, rows, right=(4, 5, 6))


@records.command("show")
def show_record(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Beginning of a record's key.")], file: FileOption = None
) -> None:
    """Shows the choices of one record."""
    from weft_tuning.store import kept

    place = existing(file)
    found = [k for k in kept(place) if k.record.key.startswith(key)]
    if not found:
        raise InputError(f"no record of '{place}' has a key that begins with '{key}'", hint="`weft records` lists them")
    for k in found:
        say(f"{k.name} ({k.record.subject} {k.record.key}) on {k.record.machine}, of {k.versions}")
        say(f"  {seconds(k.default_seconds)} → {seconds(k.seconds)}, {k.gain:.2f} times as fast")
        for name, value in k.record.choices.items():
            say(f"  {name} = {value}")


@records.command("drop")
def drop_records(
    stale: Annotated[
        bool, typer.Option("--stale", help="Those of --target, of other releases of Weft and the target's plugin.")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", help="Those whose keys begin so.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All.")] = False,
    target: Annotated[str, typer.Option("--target", "-t", help="Of --stale: the target.")] = "llvm",
    file: FileOption = None,
) -> None:
    """Takes records back, with what was measured for them."""
    from weft.resolve import resolve_target
    from weft_tuning.store import drop

    if sum((stale, key is not None, everything)) != 1:
        raise InputError("which records are dropped is not said", hint="give one of --stale, --key KEY and --all")
    if key is not None and not re.fullmatch("[0-9a-f]{1,32}", key):
        raise InputError(
            f"'{key}' is no beginning of a key", why="keys have 32 hex digits", hint="`weft records` lists them"
        )
    resolved = resolve_target(target) if stale else None

    def gone(of: str, machine: str, versions: str) -> bool:
        if resolved is not None:
            return machine.rpartition("-")[0] == resolved.target.kind and versions != resolved.versions
        return everything or (key is not None and of.startswith(key))

    dropped, trials = drop(existing(file), gone)
    say(f"{dropped} records dropped, with {trials} measurements")


@records.command("merge")
def merge_records(
    others: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Files to take records from.")],
    file: FileOption = None,
) -> None:
    """Takes over the records of other files where they gain more."""
    from weft_tuning.store import merge

    for other in others:
        existing(other)
    place = store_file(file)
    say(f"{merge(place, others)} records in {place}")


@records.command("export")
def export_records(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the package.")],
    name: Annotated[str, typer.Option("--name", help="Name of the package; weft-records-NAME.")],
    target: Annotated[str, typer.Option("--target", "-t", help="Kind of target whose records are exported.")] = "llvm",
    file: FileOption = None,
) -> None:
    """Writes a pip package with the records: `pip install FOLDER`, and compilations follow them."""
    from weft_tuning.package import write_package
    from weft_tuning.store import exported, kept

    kind = (target.split() or [""])[0]
    found = [k for k in kept(existing(file)) if k.record.machine.rpartition("-")[0] == kind]
    if not found:
        raise InputError(f"there are no records of '{kind}' to export", hint="`weft records` lists what there is")
    made = exported(found)
    write_package(folder, name, kind, made)
    say(f"{len(made.records)} records in {folder}; pip install {folder}")


def store_file(given: Path | None) -> Path:
    """The file of records: the one that is given, or the one that compilations look up.

    Raises:
        InputError: WEFT_RECORDS is "none".
    """
    from weft.settings import RECORDS

    place = given or RECORDS.get()
    if place is None:
        raise InputError(f"{RECORDS.name} is 'none': no file of records is used", hint="give --file, or unset it")
    return place


def existing(given: Path | None) -> Path:
    """As `store_file`, of a file that is there.

    Raises:
        InputError: it is not.
    """
    place = store_file(given)
    if not place.is_file():
        raise InputError(f"there is no file of records '{place}'", hint="`weft tune MODEL` makes one")
    return place


@contextmanager
def worker_of(cluster: str | None, on: str | None) -> Iterator[Worker]:
    """What measures: a process here, a cluster, or a board."""
    from weft_tuning.measuring import BoardWorker, ClusterWorker, LocalWorker

    if cluster is not None and on is not None:
        raise InputError("--cluster and --on exclude each other", hint="give one of them")
    with ClusterWorker(cluster) if cluster else BoardWorker(on) if on else LocalWorker() as worker:
        yield worker


@contextmanager
def stopping(tuner: Any) -> Iterator[None]:
    """The first Ctrl-C ends tuning after the running round, a second one at once, and so does SIGTERM."""

    def told(number: int, frame: FrameType | None) -> None:
        if tuner.stop:
            raise KeyboardInterrupt
        tuner.stop = True
        say("ending after this round; what was found is recorded (Ctrl-C again: at once)", err=True)

    def ended(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)  # as the signal would end it, but the folder of archives is removed

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, told), signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before):
            signal.signal(number, handler)


class Shown:
    """Progress on stderr: a bar if that is a terminal, a line every half a minute if not."""

    def __init__(self, name: str) -> None:
        from weft.cli.terminal import Progress

        self.progress = Progress(f"tuning {name}")
        self.last = time.perf_counter()

    def __enter__(self) -> Shown:
        self.progress.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.progress.__exit__(*exception)

    def show(self, state: State) -> None:
        text = line_of(state)
        bar = self.progress.bar
        if not bar.disable:
            total, done = (state.seconds, state.elapsed) if state.most is None else (state.most, state.trials)
            bar.update(self.progress.task, total=round(total or 0), completed=round(done))
            self.progress.show(text)
        elif time.perf_counter() - self.last > 30:
            self.last = time.perf_counter()
            say(text, err=True)


def line_of(state: State) -> str:
    """A round in one line."""
    left = "" if state.possible is None else f", at the limits {state.possible:.2f}"
    return (
        f"{state.trials} trials ({state.failures} failed) in {state.elapsed:.0f} s; best so far {state.expected:.3f} of"
        f" the default's time{left}; {state.active} of {state.subjects} kernels go on"
    )


def print_report(report: Report, place: Path) -> None:
    """A table of kernels, and what all together gain."""
    rows = [
        [
            re.sub(r"_+", " ", r.name)[:48],
            f"{r.share:.0%}",
            seconds(r.seconds),
            seconds(r.tuned_seconds) if r.changed else "",
            f"{r.seconds / r.tuned_seconds:.2f}" if r.changed else "",
            "" if r.limit is None else f"{r.limit:.0%}",
            r.trials,
            ", ".join(f"{n} = {v}" for n, v in r.changed.items()),
        ]
        for r in report.rows
    ]
    columns = ["kernel", "share", "default", "tuned", "times as fast", "of the limit", "trials", "changed"]
    print_table(f"{report.name}: {seconds(report.seconds)} a run with the defaults", columns, rows, (1, 2, 3, 4, 5, 6))
    if report.graph:
        say(f"other choices of graph passes: {', '.join(f'{n} = {v}' for n, v in sorted(report.graph.items()))}")
        say(f"with them alone a run takes {report.graph_ratio:.3f} of the default's time; the table has their kernels")
    for why, count in sorted(report.failed.items(), key=lambda f: -f[1])[:5]:
        say(f"{count} of {report.failures} failures: {why}")
    if report.unsteady:
        say(f"{report.unsteady} measurements were repeated or left out: the machine was under load")
    gained = bool(report.graph) or any(r.changed for r in report.rows)
    found = f"a run takes {report.ratio:.3f} of the default's time" if gained else "nothing is faster than the default"
    say(f"{report.trials} trials in {report.elapsed:.0f} s, ended as {report.why}: {found}")
    if gained:
        say(f"recorded in {place}")


def as_data(report: Report) -> dict[str, Any]:
    """The report, for JSON."""
    return {
        "model": report.name,
        "seconds": report.seconds,
        "ratio": report.ratio,
        "trials": report.trials,
        "failures": report.failures,
        "elapsed": report.elapsed,
        "unsteady": report.unsteady,
        "why": report.why,
        "graph": dict(report.graph),
        "graph_ratio": report.graph_ratio,
        "failed": dict(report.failed),
        "kernels": [
            {
                "key": r.key,
                "name": r.name,
                "share": r.share,
                "seconds": r.seconds,
                "tuned_seconds": r.tuned_seconds,
                "trials": r.trials,
                "failures": r.failures,
                "changed": dict(r.changed),
                "limit": r.limit,
            }
            for r in report.rows
        ],
    }
