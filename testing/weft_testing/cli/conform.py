"""`weft conform`: whether a target does what Weft expects of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.terminal import say
from weft.cli.writing import require_writable, write
from weft_testing.cli.on import OnOption, board_at

if TYPE_CHECKING:
    from weft_testing.conform.report import Report, Result


def conform(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="The target to test: kind and options [default: that of --on]."),
    ] = None,
    level: Annotated[str, typer.Option("--level", help="Only these levels, e.g. 1,2 [default: all ten].")] = "",
    keyword: Annotated[
        str, typer.Option("-k", help="Only checks whose names match an expression of names, and, or, not.")
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="One sample, always the same, of every operator and dtype.")
    ] = False,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget", metavar="N", help="Largest number of multiply-adds of a generated case [default: 2^20]."
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            help="The --json file of an earlier run: what passed then and is declined or skipped now fails.",
        ),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for all results.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="File for a page with all results.")] = None,
    on: OnOption = None,
) -> None:
    """Tests a target on ten levels.

    The levels are metadata, device, operators, schedules, graphs, models, determinism, faults, speed and tiles. Prints
    what the target takes and what failed. Exits with 1 on a failure.
    """
    from weft_testing.conform import run

    require_writable((("--json", json_file), ("--html", html_file)), [] if baseline is None else [baseline])
    if target is None and on is None:
        raise typer.BadParameter("there is no target", param_hint="--target")
    board = board_at(context, on)
    target = target or (board.target if board is not None else "")
    before = _baseline(baseline) if baseline is not None else None
    traceback = bool((context.find_root().obj or {}).get("traceback"))
    with _Progress(target) as progress:
        report = run(
            target,
            levels=_levels(level),
            keyword=keyword,
            quick=quick,
            on_result=progress.hear,
            baseline=before,
            traceback=traceback,
            budget=budget,
        )
    if json_file is not None:
        write(json_file, json.dumps(report.as_data(), indent=1) + "\n")
    if html_file is not None:
        from weft_testing.conform.page import page

        write(html_file, page(report))
    _print(report)
    if not report.passed:
        raise typer.Exit(1)


def _baseline(path: Path) -> Any:
    from weft.errors import InputError

    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"the baseline '{path}' cannot be read", why=str(error), hint="give a file that --json has written"
        ) from None


def _levels(text: str) -> list[int]:
    from weft.errors import InputError
    from weft_testing.conform import LEVELS

    try:
        return [int(word) for word in text.split(",")] if text else list(LEVELS)
    except ValueError:
        raise InputError(f"--level takes numbers, got '{text}'", hint="for example --level 1,2") from None


class _Progress:
    """A bar on a terminal, a line a level and a line a tenth elsewhere; failures at once."""

    def __init__(self, target: str) -> None:
        from weft.cli.terminal import Progress

        self.progress = Progress(f"conform {target}")
        self.level = 0

    def __enter__(self) -> _Progress:
        self.progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.bar.stop()

    def hear(self, result: Result, number: int, total: int) -> None:
        from weft_testing.conform import LEVELS

        bar = self.progress.bar
        bar.update(self.progress.task, completed=number, total=total)
        self.progress.show(f"level {result.level} {LEVELS[result.level][0]}: {result.name}"[:70])
        if result.level != self.level:
            self.level = result.level
            if bar.disable:
                say(f"level {result.level} {LEVELS[result.level][0]}: {LEVELS[result.level][1]} …", err=True)
        if bar.disable and total >= 100 and number * 10 // total > (number - 1) * 10 // total:
            say(f"    {number} of {total} checks", err=True)
        if result.outcome == "failed":
            bar.console.print(f"FAILED {result}", markup=False, highlight=False)


def _print(report: Report) -> None:
    from weft.cli.terminal import print_table

    if report.claims:
        rows = [(op, ", ".join(dtypes)) for op, dtypes in report.claimed().items()]
        print_table(f"operators that {report.target} computes", ["operator", "dtypes"], rows)
        refused = report.refused()
        if refused:
            say(f"declined, each with a reason: {', '.join(refused)}")
    say(report.summary())
    if report.idle:
        typer.secho(report.idle, fg=typer.colors.RED, bold=True)
