"""What commands print with: tables, and the progress of a compilation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from weft.errors import shown, shown_lines

if TYPE_CHECKING:
    from rich.console import Console

    from weft.hooks import StageReport

PIPE_WIDTH = 160


def console(stderr: bool = False) -> Console:
    """A console that does not interpret `[batch]` as markup, and is wide if the output is no terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, markup=False)
    if not made.is_terminal:
        made.width = max(made.width, PIPE_WIDTH)
    return made


def say(text: object = "", err: bool = False) -> None:
    """Prints lines that may hold names from a model or a file, which do nothing to the terminal."""
    typer.echo(shown_lines(text), err=err)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()
) -> None:
    """A table on stdout, names in it as `say` has them; `right` are the columns that hold numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    heading = Text(shown(title)) if title else None
    table = Table(
        title=heading,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_header=any(columns),
    )
    numbers = set(right)
    for k, name in enumerate(columns):
        table.add_column(Text(name), justify="right" if k in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(shown_lines(cell)) for cell in row))
    console().print(table)


def brief(target: str) -> str:
    """A resolved target string without its dozens of CPU features, which -mcpu mostly implies."""
    return re.sub(
        r"-mattr=(\S+)", lambda m: m[0] if m[1].count(",") < 4 else f"-mattr=({m[1].count(',') + 1} features)", target
    )


def seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.1f} µs"


def size(count: float) -> str:
    """A number of bytes in the unit that suits it: memory and files are counted in powers of 1024 everywhere, rates of
    transfer in GB/s, powers of 1000."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


class Progress:
    """A progress bar on stderr, if that is a terminal, moved by `on_stage` of a compilation.

    with Progress("compiling model.onnx") as progress:
        weft.compile("model.onnx", on_stage=progress.on_stage)
    """

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        err = console(stderr=True)
        columns: list[Any] = [
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        ]
        self.bar = Bar(*columns, console=err, transient=True, disable=not err.is_terminal)
        self.title = title
        self.task = self.bar.add_task(shown(title), total=None)
        self.seconds: dict[str, float] = {}

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.bar.stop()

    def show(self, what: str) -> None:
        self.bar.update(self.task, description=shown(f"{self.title}: {what}"))

    def on_stage(self, report: StageReport) -> None:
        """Shows a stage that is over; counts kernels once fusion has said how many there are."""
        self.seconds[report.stage] = self.seconds.get(report.stage, 0.0) + report.seconds
        if self.bar.disable:
            return
        if report.stage == "fuse" and report.result is not None:
            from weft.graph.group import Group, kernel_text
            from weft.graph.whole_sizes import whole_sizes

            # Equal groups are one kernel.
            groups = [n.op for n in report.result.nodes if isinstance(n.op, Group) and not n.op.view]
            kernels = {kernel_text(whole_sizes(group.body)[0]) for group in groups}
            self.bar.update(self.task, total=len(kernels), completed=0)
        if report.stage == "lower_group":
            self.bar.advance(self.task)
        self.show(f"{report.stage} {report.subject}"[:70])
