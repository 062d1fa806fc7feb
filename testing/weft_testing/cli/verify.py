"""`weft verify`: a model on a target and beside it; where results differ, the node, graph pass or kernel stage that
departs first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import (
    FrontendOption,
    Model,
    RecordsOption,
    SeedOption,
    ShapeOption,
    TargetOption,
    named,
    shapes,
)
from weft.cli.terminal import say
from weft.cli.writing import files_of, require_writable, write
from weft.errors import InputError, TargetError, nearest
from weft_testing.cli.on import OnOption, board_at

if TYPE_CHECKING:
    from weft_testing.verify.report import Blame, Verification
    from weft_testing.verify.verify import Compiled, Engine

REFERENCE = "reference"


def verify(
    context: typer.Context,
    model: Model,
    target: TargetOption = None,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="WHAT",
            help="What to compare with: reference (the operators' definitions), an engine, or another target.",
        ),
    ] = REFERENCE,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=FILE.npy", help="File of an input; inputs without one are random."),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option("--rtol", min=0.0, help="Largest relative error [default: by the operators' tolerances]."),
    ] = None,
    atol: Annotated[
        float | None, typer.Option("--atol", min=0.0, help="Largest absolute error, added to the relative one.")
    ] = None,
    every_node: Annotated[
        bool, typer.Option("--every-node", help="Compare every node, pass and kernel, even if the outputs agree.")
    ] = False,
    patience: Annotated[
        float,
        typer.Option(
            "--patience", min=0.0, metavar="SECONDS", help="Longest time to interpret the program of one kernel."
        ),
    ] = 60.0,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="File for all findings.")] = None,
    input_shape: ShapeOption = None,
    frontend: FrontendOption = None,
    records: RecordsOption = None,
    seed: SeedOption = 0,
    on: OnOption = None,
) -> None:
    """Compares a model's outputs with a reference.

    If outputs differ, finds the cause: the frontend, a graph pass, a node, or a stage of its kernel. Each is checked
    with the inputs that it received, so an error is reported where it begins. Exits with 1 on a mismatch.
    """
    from weft.cli.inputs import make_inputs
    from weft.cli.opening import is_archive, open_executable
    from weft.cli.terminal import Progress
    from weft.loading import load
    from weft.resolve import resolve_targets
    from weft_testing.verify.measure import Bound
    from weft_testing.verify.verify import Compiled, Verifier

    files, sizes = named("--input", inputs, "x=x.npy"), shapes(input_shape)
    read: list[str | Path] = [
        *files_of(model, frontend),
        *files.values(),
        *([] if records is None else [Path(records)]),
    ]
    require_writable([("--json", json_file)], read)
    if is_archive(model):
        raise InputError(
            f"{model} is compiled already, nothing says what it should compute",
            hint="give the model that it was compiled from",
        )
    board = board_at(context, on)
    text = target or ("llvm" if board is None else board.target)
    resolved = resolve_targets(text, records=records)
    other = _other(model, text, against, frontend)
    executable, _ = open_executable(model, text, frontend=frontend, records=records)
    arrays, _ = make_inputs(executable.inputs, files, sizes, seed)
    with Progress(f"verifying {model}") as progress:
        progress.show("loading")
        graph = load(model, frontend=frontend)
        verifier = Verifier(
            graph,
            Compiled(text, resolved, executable, records),
            other,
            arrays,
            Bound(rtol, atol),
            patience,
            every_node,
            progress.show,
        )
        found = verifier.run()
    if json_file is not None:
        write(json_file, json.dumps(found.as_data(), indent=1) + "\n")
    print_verification(found)
    if not found.passed:
        raise typer.Exit(1)


def _other(model: str, target: str, against: str, frontend: str | None) -> Compiled | Engine | None:
    """What is run beside the target.

    Raises:
        InputError: nothing of that name, or an engine that is not installed.
        TargetError: options that a target does not have.
    """
    from weft.cli.opening import open_executable
    from weft.plugins import engine_kinds
    from weft.resolve import resolve_targets, target_kinds
    from weft_runtime.threads import available_threads
    from weft_testing.bench.engines import open_engine
    from weft_testing.verify.verify import Compiled, Engine

    name = against.split()[0].rstrip(",") if against.split() else ""
    if against == REFERENCE:
        return None
    engines = {k.name: k for k in engine_kinds()}
    if against in engines:
        kind = engines[against]
        if kind.available() is None:
            raise InputError(f"the engine '{against}' is not installed", hint=f"pip install {against}")
        return Engine(
            against,
            open_engine(kind, model, available_threads()),
            kind.values(model) if kind.values is not None else None,
        )
    try:
        resolved = resolve_targets(against)
    except TargetError as error:
        if name in target_kinds() or "not in use" in error.what:
            raise
        known = [REFERENCE, *engines, *target_kinds()]
        close = nearest(name, known)
        hint = f"did you mean '{close}'?" if close else "known: " + ", ".join(known)
        raise InputError(f"'{against}' is neither '{REFERENCE}', an engine nor a target", hint=hint) from None
    if " ".join(against.split()) == " ".join(target.split()):
        raise InputError(f"--against names the target itself, '{against}'", hint=f"leave it out for the {REFERENCE}")
    executable, _ = open_executable(model, against, frontend=frontend)
    return Compiled(against, resolved, executable)


def print_verification(found: Verification) -> None:
    """A table of the outputs, then what departs first."""
    from weft.cli.terminal import print_table

    rows = []
    for o in found.outputs:
        d = o.difference
        place = "" if d.at is None else f"[{', '.join(map(str, d.at))}]"
        shown = f"{d.got} / {d.want}" if d.got or d.want else "equal"
        rows.append(
            (
                o.name,
                o.type,
                _number(d.ulp),
                _number(d.relative),
                _number(d.absolute),
                _number(d.allowed),
                f"{d.wrong} of {d.elements}",
                place,
                shown,
            )
        )
    columns = ["output", "type", "ulp", "relative", "absolute", "allowed", "wrong", "worst", "got / expected"]
    print_table(f"{found.model}: '{found.target}' against {_quoted(found.against)}", columns, rows, right=range(2, 7))
    for blame in found.blames:
        say(f"{_kind(blame)}{blame.title}")
        print_table("", ["", ""], list(_lines(blame).items()))
    wrong = sum(o.difference.wrong > 0 for o in found.outputs)
    if wrong:
        say(f"{wrong} of {len(found.outputs)} outputs are wrong")
    elif found.blames:
        say("all outputs are within their tolerances, but a part departs")
    else:
        say("all outputs are within their tolerances" + (", and so is every part by itself" if found.looked else ""))


def _quoted(against: str) -> str:
    return "the reference" if against == REFERENCE else f"'{against}'"


def _kind(blame: Blame) -> str:
    return f"'{blame.target}'{', region ' + blame.region if blame.region else ''}: " if blame.target else ""


def _lines(blame: Blame) -> Mapping[str, str]:
    lines = {
        "node": blame.node,
        "from": ", ".join(f"'{n}'" for n in blame.names),
        "kernel": blame.kernel + (f", by the rule '{blame.rule}'" if blame.rule else ""),
        "step": blame.step,
        "by itself": _sentence(blame.difference, blame.kind == "rounding"),
        "in all": _sentence(blame.carried, False),
        "why": blame.why,
    }
    return {k: v for k, v in lines.items() if v}


def _sentence(d: Any, all_in_all: bool) -> str:
    return "" if d is None or all_in_all else d.text


def _number(value: float) -> str:
    return f"{value:.3g}"
