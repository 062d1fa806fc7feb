"""Level 10: what the target declares is at work: every intrinsic and rule, in whole, ragged and several tiles, and
every memory full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from weft.errors import CodegenError, LoweringError, ScheduleError
from weft.graph.operator import Operator
from weft.lower.lower import lower_tensors
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.rule import Rule
from weft.tensor.evaluate import evaluate
from weft_testing.conform.cases import GRAPHS, LARGE, GraphCase
from weft_testing.conform.kernels import run_kernel
from weft_testing.conform.kit import Case, Compiled, Declined, Kit, reasons_elsewhere
from weft_testing.conform.made import Made, Meaning
from weft_testing.conform.operators import check_sample

FILTERED = "checks were chosen by -k: only a run of all of them says what is never used"
REASONS = 6
"""Cases, and reasons, that a failure shows."""


def test_product(kit: Kit, product: Made) -> None:
    """Operators around a product in tiles of intrinsics compute what they mean."""
    try:
        compiled = _compiled(kit, product)
    except Declined as error:
        kit.note(product.intrinsics, product.kind, (), f"{product.name}: declined: {error}")
        kit.decline(str(error))
    counted = kit.check_graph(product.build(), compiled, product.inputs(), product.ulps)
    kit.note(product.intrinsics, product.kind, counted.intrinsics, f"{product.name}: {_taken(compiled)}")


def test_meaning(kit: Kit, meaning: Meaning) -> None:
    """So does what an intrinsic means, as a kernel of other sizes that knows of no operator."""
    program = lower_tensors(meaning.inputs, [meaning.tensor])
    arrays = meaning.arrays()
    try:
        (got,), counted = run_kernel(
            kit, program, [a.reshape([int(str(d)) for d in b.shape]) for a, b in zip(arrays, program.inputs)]
        )
    except (ScheduleError, CodegenError, LoweringError) as error:
        kit.note([meaning.intrinsic], meaning.kind, (), f"{meaning.name}: declined: {error.why or error.what}")
        kit.decline(str(error))
    want = evaluate(meaning.tensor, dict(zip(meaning.inputs, arrays)))
    kit.compare(f"the meaning of {meaning.name}", [got.reshape(want.shape)], [want], 4.0 * (meaning.terms + 1))
    kit.note([meaning.intrinsic], meaning.kind, counted.intrinsics, f"{meaning.name}: in plain loops")


def test_capacity(kit: Kit, capacity: Made) -> None:
    """What just fits a memory, just does not, or takes several rounds, is computed all the same."""
    if capacity.work > kit.budget:
        kit.skip(f"more than the budget of {kit.budget} multiply-adds: --budget")
    try:
        compiled = _compiled(kit, capacity)
    except Declined as error:
        kit.decline(str(error))
    kit.check_graph(capacity.build(), compiled, capacity.inputs(), capacity.ulps)


def test_rule_runs(kit: Kit, rule: Rule) -> None:
    """A rule that the target declares is the best for something: for a case above, or for a sample of an operator."""
    if kit.filtered:
        kit.skip(FILTERED)
    _look_for(kit, lambda: not kit.ledger.usage.rules[rule.name].launches)
    if not kit.ledger.usage.rules[rule.name].launches:
        kit.fail(
            f"the rule '{rule.name}' is declared and took no kernel of any case, graph or sample",
            *(f"    {why}" for why in kit.ledger.why_not(rule.name, REASONS)),
            "let hook 'schedules' give the rules that this target can use; or its offers are never the best",
        )


def test_intrinsic_runs(kit: Kit, intrinsic: Intrinsic) -> None:
    """An intrinsic that the target declares stands in a kernel that was launched."""
    if kit.filtered:
        kit.skip(FILTERED)
    _look_for(kit, lambda: not kit.ledger.usage.intrinsics[intrinsic.name].launches)
    if kit.ledger.usage.intrinsics[intrinsic.name].launches:
        return
    tried = kit.tried.get(intrinsic.name, [])
    why = [f"    {rule.name}: {why}" for rule in kit.target.rules for why in kit.ledger.why_not(rule.name, 2)]
    kit.fail(
        f"the intrinsic '{intrinsic.name}' is declared and stood in no kernel that was launched",
        f"{len(tried)} case(s) were made for it, among them",
        *(f"    {text}" for text in tried[:REASONS]),
        *(["rules did not take other kernels because", *why] if why else []),
        "let hook 'intrinsics' give those that rules use on this machine",
    )


def _compiled(kit: Kit, case: Made) -> Compiled:
    """Raises Declined where the target computes nothing of it."""
    compiled = kit.compile(case.build())
    if not compiled.kernels:
        reasons = (
            reasons_elsewhere(compiled.placement, kit.target.target.kind) if compiled.placement is not None else {}
        )
        raise Declined("; ".join(reasons) or "none of its kernels is the target's")
    return compiled


def _taken(compiled: Compiled) -> str:
    """Which rules took the kernels of a case, and why the others did not."""
    kernels = compiled.kernels.values()
    took = ", ".join(dict.fromkeys(k.rule for k in kernels))
    others = "; ".join(dict.fromkeys(f"{name}: {why}" for k in kernels for name, why in k.declines))
    return f"taken by {took}" + (f" ({others})" if others else "")


def _look_for(kit: Kit, missing: Callable[[], bool]) -> None:
    """Runs graphs, then samples of operators that have not run yet, then large graphs, for as long as something is
    missing."""
    _run_graphs(kit, GRAPHS.values(), missing)
    seen: Counter[type[Operator]] = Counter()
    turns: list[tuple[int, Case]] = []
    for case in kit.cases().values():
        turns.append((seen[case.op], case))
        seen[case.op] += 1
    for _, case in sorted(turns, key=lambda turn: turn[0]):  # one of every operator first
        if not missing():
            return
        if case.name not in kit.ran:
            with suppress(Declined):
                check_sample(kit, case)
    _run_graphs(kit, LARGE.values(), missing)


def _run_graphs(kit: Kit, graphs: Iterable[GraphCase], missing: Callable[[], bool]) -> None:
    for graph in graphs:
        if not missing():
            return
        with suppress(Declined):
            kit.check_graph(graph.build(), kit.compile(graph.build()), graph.inputs(), graph.ulps)
