"""The command `weft probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def probe(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write all rates to a file, for the option -machine=FILE."),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the stored measurement; measure nothing.")] = False,
) -> None:
    """Measures this processor for later compilations.

    Takes a few seconds and stores the rates in the cache. Other work on the machine lowers the rates. The target option
    `-machine=table` ignores the measurement.
    """
    from weft_llvm import measured

    if forget:
        measured.forget()
        typer.echo(f"{measured.processor()}: compilations use the table")
        return
    from weft_llvm.probe import report, run

    found = run()
    for line in report(found):
        typer.echo(line)
    if output is not None:
        import json

        output.write_text(json.dumps(found.all_numbers(), indent=1) + "\n", encoding="utf-8")
    if measured.store(found.values()):
        typer.echo(f"kept for {measured.processor()}; weft probe --forget removes it")
    else:
        typer.echo("not kept: the cache is turned off or cannot be written")
