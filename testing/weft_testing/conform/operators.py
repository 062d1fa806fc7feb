"""Level 3: every operator by itself."""

from __future__ import annotations

from weft.errors import CodegenError, LoweringError, ScheduleError
from weft.lower.lower import lower_group
from weft.scheduling.rule import select_rule
from weft_runtime.elsewhere import place
from weft_runtime.plan import DeviceCall
from weft_testing.conform.kernels import run_kernel
from weft_testing.conform.kit import Case, Declined, Kit


def test_sample(kit: Kit, case: Case) -> None:
    """The target gives what the operator's reference gives, or says why it does not take the sample."""
    try:
        kit.alone(case)
    except Declined as error:
        if not str(error).strip():
            kit.fail(f"{case.name} is declined without a reason")
        kit.claim(case, False)
        kit.decline(str(error))
    kit.claim(case, True)
    check_sample(kit, case)


def check_sample(kit: Kit, case: Case) -> None:
    """Runs a sample and compares its results. Raises Declined where the target does not take it."""
    compiled = kit.alone(case)
    kit.ran.add(case.name)
    kit.count(compiled, case.inputs())
    with kit.watched() as watched:
        got = list(compiled.executable.run(case.inputs()).values())
        if (
            watched is not None
            and place() is None  # on another machine, nobody here sees what is launched
            and not watched.launches
            and any(isinstance(s, DeviceCall) and s.launches for s in compiled.executable.manifest.steps)
        ):
            kit.fail(f"{case.name}: nothing was launched")
    kit.compare(case.name, got, case.expected(), case.tolerance())


def test_algorithm(kit: Kit, variant: tuple[Case, str]) -> None:
    """So do the other algorithms of the operator, as kernels by themselves."""
    case, algorithm = variant
    try:
        program = lower_group(case.graph(), "kernel", {case.op.operator_name: algorithm})
        select_rule(kit.target.rules, program, kit.target.machine, kit.target.intrinsics)
    except (LoweringError, ScheduleError) as error:
        kit.decline(str(error))
    try:
        # Lowering leaves out dimensions of one element and joins others.
        got, _ = run_kernel(
            kit,
            program,
            [a.reshape([int(str(d)) for d in b.shape]) for a, b in zip(case.inputs().values(), program.inputs)],
        )
    except CodegenError as error:
        kit.decline(str(error))
    want = case.expected()
    kit.compare(f"{case.name} by {algorithm}", [g.reshape(w.shape) for g, w in zip(got, want)], want, case.tolerance())


def test_something_is_computed(kit: Kit) -> None:
    """A target that declines everything declines correctly, and is of no use."""
    tried = [counts for by_dtype in kit.claims.values() for counts in by_dtype.values()]
    if tried and not any(computed for computed, _ in tried):
        kit.fail(
            f"every one of {sum(declined for _, declined in tried)} samples is declined",
            "the reasons stand in the report: --json, --html",
        )
