"""ONNX's node cases that are listed as passing: a stratified part in CI, all with --full; on the host's processor, and
on an OpenCL device.

On a device everything that passes on the host passes, and only what no device computes stays with the host: sizes of
other values, strings, sequences and control flow. In CI these are few cases, since every kernel is compiled by the
driver, and with --full all.
"""

from __future__ import annotations

import onnx
import pytest
from tests.onnx_backend.node_cases import (
    STEPS,
    cases,
    has_steps,
    nodes,
    not_passing,
    one_in,
    passing,
    run,
    run_on_device,
    stratified,
)

HOST_ONLY = ("[sizes]", "[no_tensor]", "[control]")
ON_DEVICE_ONE_IN = 90
VERSION = "1.23.2"
"""Of onnx, whose cases are listed."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("--full")
    if "case" in metafunc.fixturenames:
        chosen = passing() if full else stratified(passing())
        metafunc.parametrize("case", [name for _, name in chosen])
    if "case_on_device" in metafunc.fixturenames:
        chosen = passing() if full else one_in(ON_DEVICE_ONE_IN, passing())
        metafunc.parametrize("case_on_device", [name for _, name in chosen])
    if "case_for_webassembly" in metafunc.fixturenames:
        chosen = passing() if full else one_in(ON_DEVICE_ONE_IN, passing())
        metafunc.parametrize("case_for_webassembly", [name for _, name in chosen])


def test_node_case(case: str) -> None:
    if case not in cases():
        pytest.skip("the installed onnx has no such case")
    run(cases()[case])


@pytest.mark.needs("wasmtime")
def test_node_case_for_webassembly(case_for_webassembly: str) -> None:
    if case_for_webassembly not in cases():
        pytest.skip("the installed onnx has no such case")
    run(cases()[case_for_webassembly], "llvm -mtriple=wasm32")


@pytest.mark.needs("opencl")
def test_node_case_on_opencl(case_on_device: str) -> None:
    if case_on_device not in cases():
        pytest.skip("the installed onnx has no such case")
    declined = run_on_device(cases()[case_on_device], "opencl")
    assert all(reason.endswith(HOST_ONLY) for reason in declined.values()), declined


def test_the_list_is_as_long_as_is_claimed() -> None:
    listed = passing()
    assert len(listed) == len(set(listed))
    assert len(listed) >= 1800
    assert len({op for op, _ in listed} - {"expanded"}) >= 190


def test_what_does_not_pass_is_listed_with_a_reason() -> None:
    listed = {name for _, name in passing()}
    reasons = not_passing()
    assert all(reasons.values()) and not listed & set(reasons)
    if onnx.__version__ == VERSION:
        assert listed | set(reasons) == set(cases())


def test_operators_with_steps_are_in_the_suite_and_the_rest_are_one_native_step() -> None:
    if onnx.__version__ == VERSION:
        assert set(STEPS) <= {n.op_type for c in cases().values() for n in nodes(c.model.graph)}
        assert sum(has_steps(c.model) for c in cases().values()) < len(cases()) / 10


def test_every_operator_has_a_case_in_ci() -> None:
    listed = passing()
    assert {op for op, _ in stratified(listed)} == {op for op, _ in listed}
