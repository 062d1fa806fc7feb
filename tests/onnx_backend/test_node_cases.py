"""ONNX's node cases that are listed as passing: a stratified part in CI, all with --full."""

from __future__ import annotations

import pytest
from tests.onnx_backend.node_cases import cases, passing, run, stratified


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        listed = passing()
        chosen = listed if metafunc.config.getoption("--full") else stratified(listed)
        metafunc.parametrize("case", [name for _, name in chosen])


def test_node_case(case: str) -> None:
    if case not in cases():
        pytest.skip("the installed onnx has no such case")
    run(cases()[case])


def test_the_list_is_as_long_as_is_claimed() -> None:
    listed = passing()
    assert len(listed) == len(set(listed))
    assert len(listed) >= 1000
    assert len({op for op, _ in listed} - {"expanded"}) >= 120


def test_every_operator_has_a_case_in_ci() -> None:
    listed = passing()
    assert {op for op, _ in stratified(listed)} == {op for op, _ in listed}
