"""Each broken plugin is caught by the level that should catch it, and by name; the good one passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conform.broken import OPS

from weft_testing.conform import LEVELS, run

TARGET = f"board -ops={OPS}"
MORE = {"forgets_relu": ",Identity", "dirty_padding": ",Conv,Relayout,padding"}
"""Operators that a defect needs to show."""
SOME = "Relu or MatMul or Multiply or (ReduceSum and int32)"

DEFECTS = {
    # level 1
    "misspelt_hook": (1, "target_resolves", "unknown hook 'schedulez', did you mean 'schedules'?"),
    "slow_import": (1, "import_cost", "importing 'weft_board_slow_import' takes 0."),
    "heavy_import": (1, "import_cost", "imports hypothesis"),
    "answers_for_others": (1, "hooks", "hook 'schedules' answers for targets of others"),
    "restless_fingerprint": (1, "fingerprint", "the fingerprint is another when it is asked for again"),
    "odd_machine": (1, "machine", "vectors of 100 bits"),
    # level 2
    "leaks": (2, "memory_is_counted_and_given_back", "524288 bytes are not released when nothing refers to them"),
    "never_full": (2, "memory_is_counted_and_given_back", "only 0 bytes fewer are free"),
    "promises_memory": (2, "out_of_memory", "and there is no error"),
    "smaller_than_it_says": (2, "capacity_is_there", "there is less than the device says"),
    # level 3
    "wrong_result": (3, "sample[Relu float32", "elements of result 0 are wrong"),
    "wrong_tail": (3, "sample[MatMul", "1 of "),
    "ignores_offsets": (3, "sample[Relu float32", "nan instead of"),
    "ignores_reset": (3, "sample[MatMul float32", "nan instead of"),
    "writes_beyond": (3, "sample[Relu float32", "wrote beyond buffer 1 on device 'board'"),
    "crashes": (3, "sample[Multiply float32", "failed to say whether it takes Multiply"),
    "lacks_half": (3, "sample[Relu float16", "cannot compile kernel"),
    "mute": (3, "sample[MatMul float32", "MatMul is declined without a reason"),
    # level 4
    "wrong_intrinsic": (4, "intrinsic[double4]", "the compute code of intrinsic 'double4' disagrees with its meaning"),
    "counts_cycles": (4, "program[Relu float32", "at 4000 seconds: an offer's cost is a time"),
    # level 5
    "forgets_relu": (5, "graph[convolution", "elements of result 0 are wrong"),
    "dirty_padding": (5, "graph[odd channels between", "nan instead of"),
    "bakes_sizes": (5, "graph[normalised", "failed on device 'board'"),
    "stale_inputs": (5, "graph[movement", "movement, run 2: "),
    # level 6
    "short_queue": (6, "model[mlp", "mlp, saved and loaded: result 0 is not what it was before"),
    "few_kernels": (6, "model[mlp", "elements of result 0 are wrong"),
    # level 7
    "hash_order": (7, "code_under_hash_seeds", "is another under another PYTHONHASHSEED"),
    "stamped": (7, "code_twice", "is another when it is compiled again"),
    "forgets_option": (7, "fingerprint_follows_code",
        "another value of option '-unroll' gives other code of the same program, and the same fingerprint"),
    "noisy": (7, "results_twice", "are not the same every time"),
    # level 8
    "fails_silently": (8, "launch_of_nothing", "is launched without an error"),
    "dies_of_errors": (8, "launch_of_nothing", "the call after a launch that failed fails"),
    # level 9
    "slow": (9, "sample[Relu float32", " s are allowed"),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("defect", DEFECTS)
def test_broken(defect: str, install: Callable[..., str]) -> None:
    level, check, message = DEFECTS[defect]
    name = install(defect)
    target = "board" if defect == "misspelt_hook" else TARGET + MORE.get(defect, "")
    name_of_check, _, subject = check.partition("[")
    by_level = {3: SOME, 4: "intrinsic" if name_of_check == "intrinsic" else "Relu and float32", 9: "Relu and float32"}
    keyword = by_level.get(level) or subject.split(" ")[0] or name_of_check
    report = run(target, levels=(level,), quick=True, keyword="" if defect == "misspelt_hook" else keyword)
    assert not report.passed
    found = [r for r in report.failed if r.name.startswith(check)]
    assert found, report.summary()
    assert found[0].level == level
    assert message in found[0].message
    assert found[0].message.startswith(f"{name} 1.2, target '{target}': ")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("defect", [d for d, (level, _, _) in DEFECTS.items() if level in (5, 6)])
def test_what_only_graphs_and_models_show(defect: str, install: Callable[..., str]) -> None:
    install(defect)
    report = run(
        TARGET + MORE.get(defect, ""),
        levels=(2, 3),
        quick=True,
        keyword="Relu or (MatMul and float32) or ReduceSum or out_of_memory or slices",
    )
    assert report.passed, report.summary()
    if DEFECTS[defect][0] == 6:
        report = run(TARGET, levels=(5,), keyword="dense or fork")
        assert report.passed, report.summary()


def test_padding_that_is_zero(install: Callable[..., str]) -> None:
    """The target of "dirty_padding" without its defect."""
    install("clean_padding")
    report = run(TARGET + MORE["dirty_padding"], levels=(5,), keyword="odd")
    assert report.passed, report.summary()


@pytest.mark.parametrize("level", LEVELS)
def test_the_good_board(level: int, install: Callable[..., str]) -> None:
    install("good")
    keyword = {3: SOME, 4: SOME, 9: SOME, 6: "(mlp and any) or lstm"}.get(level, "")
    report = run(TARGET, levels=(level,), quick=True, keyword=keyword)
    assert report.passed, report.summary()
    assert report.counts(level)["passed"]


@pytest.mark.full
def test_the_good_board_in_full(install: Callable[..., str]) -> None:
    install("good")
    report = run(TARGET)
    assert report.passed, report.summary()


def test_nothing_is_computed(install: Callable[..., str]) -> None:
    install("good")
    report = run("board -ops=Nothing", levels=(3,), quick=True, keyword="Relu or something")
    assert [r.name for r in report.failed] == ["something_is_computed"]
    assert "every one of " in report.failed[0].message and "samples is declined" in report.failed[0].message


def test_no_range_of_weft(install: Callable[..., str]) -> None:
    name = install("good", requires="")
    report = run(TARGET, levels=(1,), keyword="weft_range")
    assert [r.name for r in report.failed] == ["weft_range"]
    assert report.failed[0].message.startswith(f"{name} 1.2, target '{TARGET}': its metadata give no range of Weft")
