"""Operators that other plugins convert: of a vendor's domain, and of operator sets that the frontend does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import weft
from weft.converters import Converters
from weft.errors import FrontendError, PluginError, UnsupportedError, WeftError
from weft.hooks import Converter, hookimpl
from weft.pipeline import model_key
from weft.plugins import host
from weft.resolve import resolve_target
from weft_onnx.importer import NEWEST
from weft_ops import Add, Multiply, Relu, Sigmoid


@dataclass(frozen=True)
class Swish(Sigmoid):
    """x · sigmoid(gain · x) would need more: here only a class of the vendor's own."""


def swish(c: Any) -> Any:
    x = c.value(0)
    return c(Multiply(), x, c(Swish(), c(Multiply(), x, c.real("gain", 1.0))))


class Vendor:
    def __init__(self, *given: Converter) -> None:
        self.given = given

    @hookimpl
    def converters(self, frontend: str) -> Sequence[Converter]:
        return self.given


@contextmanager
def vendors(**given: Vendor) -> Iterator[None]:
    for name, vendor in given.items():
        host().register(vendor, name)
    try:
        yield
    finally:
        for name in given:
            host().unregister(name)


def model(
    operator: str = "Swish", domain: str = "com.acme", version: int = 1, opset: int = 18, **attributes: Any
) -> bytes:
    nodes = [
        (
            helper.make_node("Relu", ["x"], ["r"])
            if opset <= NEWEST
            else helper.make_node("Swish", ["x"], ["r"], domain="com.acme")
        ),
        helper.make_node(operator, ["r"], ["y"], name="act", domain=domain, **attributes),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.acme", version)]
    proto: onnx.ModelProto = helper.make_model(helper.make_graph(nodes, "m", [x], [y]), opset_imports=imports)
    return proto.SerializeToString()


def acme(
    function: Callable[[Any], Any], since: int = 1, operator: str = "Swish", domain: str = "com.acme"
) -> Converter:
    return Converter("onnx", domain, operator, function, since)


def operators(data: bytes) -> list[type]:
    return [type(n.op) for n in weft.load(data).nodes]


X = np.array([-1.0, 0.0, 1.0, 2.0], np.float32)


@pytest.mark.needs("weft_llvm")
def test_an_operator_of_a_vendor_is_read_and_fuses_with_its_neighbours() -> None:
    with vendors(acme=Vendor(acme(swish))):
        executable = weft.compile(model(gain=2.0), cache=False)
    assert len(executable.manifest.steps) == 1, "one kernel"
    r = np.maximum(X, 0)
    np.testing.assert_allclose(executable.run({"x": X})["y"], r / (1 + np.exp(-2 * r)), rtol=1e-6)


def test_without_a_converter_the_error_says_that_a_plugin_can_bring_one() -> None:
    with pytest.raises(UnsupportedError) as caught, vendors(acme=Vendor(acme(swish, operator="Other"))):
        weft.load(model())
    assert (
        str(caught.value)
        == "the model uses one thing that the ONNX frontend does not support\n  operator com.acme.Swish of operator set"
        " 1: 'act'\n  hint: export it without; a function of the model (FunctionProto) can define an operator by"
        " others, a plugin can convert it (hook `converters`)"
    )


def test_the_converter_of_the_newest_version_up_to_the_models_reads_it() -> None:
    given = Vendor(acme(lambda c: c(Relu(), c.value(0)), 1), acme(lambda c: c(Sigmoid(), c.value(0)), 3))
    with vendors(acme=given):
        assert [operators(model(version=v))[-1] for v in (1, 2, 3, 9)] == [Relu, Relu, Sigmoid, Sigmoid]
    with (
        vendors(acme=Vendor(acme(swish, 2))),
        pytest.raises(UnsupportedError, match=r"operator com\.acme\.Swish of operator set 1"),
    ):
        weft.load(model(version=1))


def test_operator_sets_that_onnx_does_not_have_yet() -> None:
    new = NEWEST + 3
    double = acme(lambda c: c(Add(), c.value(0), c.value(0)), new, "Double", "")
    data = model("Double", "", opset=new)
    with pytest.raises(UnsupportedError) as caught:
        weft.load(data)
    assert (
        str(caught.value) == f"the model uses operator set {new}, the newest known is {NEWEST}\n"
        "  hint: a newer `onnx` package may support it, or a plugin with converters for it (hook `converters`)"
    )
    with vendors(acme=Vendor(double, acme(swish))):
        assert operators(data)[-1] is Add
        with pytest.raises(
            UnsupportedError, match=f"operator Relu of operator set {new}: 'act'"
        ):  # it may mean something else there
            weft.load(model("Relu", "", opset=new))


def test_an_operator_that_two_claim() -> None:
    with vendors(one=Vendor(acme(swish)), two=Vendor(acme(swish))), pytest.raises(FrontendError) as caught:
        weft.load(model())
    assert (
        str(caught.value)
        == "Swish cannot be applied: the operator com.acme.Swish (version 1) of frontend 'onnx' is claimed by plugin"
        " 'one' (registered by hand) and plugin 'two' (registered by hand)\n  node 'act': Swish(r) → y\n  why:"
        " nothing says which of them is meant, and the order of plugins decides nothing\n  hint: unregister 'one' or"
        " unregister 'two'"
    )
    with vendors(one=Vendor(acme(swish)), two=Vendor(acme(swish, 2))):
        assert Swish in operators(model()), "of the version that the model asks for one claims it"


def test_an_operator_that_the_frontend_reads_itself() -> None:
    plain = model("Sigmoid", "")
    with vendors(acme=Vendor(acme(swish, 1, "Sigmoid", ""))):
        said = (
            r"the operator Sigmoid \(version 18\) of frontend 'onnx' is claimed by plugin 'onnx' \(weft-onnx .*\) and"
            r" plugin 'acme'"
        )
        with pytest.raises(FrontendError, match=said):
            weft.load(plain)
        assert operators(model("Tanh", "")), "other operators are not harmed"
    with vendors(acme=Vendor(acme(swish, NEWEST + 1, "Sigmoid", ""))):
        assert operators(plain)[-1] is Sigmoid, "only newer versions are claimed"


def test_a_converter_that_fails_is_named_and_one_that_cannot_says_so() -> None:
    with vendors(acme=Vendor(acme(lambda c: {}["gain"]))), pytest.raises(FrontendError) as caught:
        weft.load(model())
    assert "plugin 'acme' (registered by hand) failed to read the operator com.acme.Swish" in str(caught.value)
    assert "node 'act'" in str(caught.value) and "why: KeyError: 'gain'" in str(caught.value)

    def cannot(c: Any) -> Any:
        raise c.unsupported("a gain of 0")

    with vendors(acme=Vendor(acme(cannot))), pytest.raises(UnsupportedError) as refused:
        weft.load(model(gain=0.0))
    assert refused.value.where == "Swish: a gain of 0: 'act'"


def test_a_function_of_the_model_comes_before_a_converter() -> None:
    proto = onnx.load_from_string(model())
    body = [helper.make_node("Neg", ["a"], ["b"])]
    proto.functions.append(helper.make_function("com.acme", "Swish", ["a"], ["b"], body, [helper.make_opsetid("", 18)]))
    with vendors(acme=Vendor(acme(swish))):
        assert Swish not in operators(proto.SerializeToString())


@pytest.mark.needs("weft_llvm")
def test_keys_of_models_know_who_converts() -> None:
    target = (resolve_target("llvm"),)
    without = model_key(model(), target, None, None)
    with vendors(acme=Vendor(acme(swish))):
        assert model_key(model(), target, None, None) != without


def test_what_no_converter_is_loses_that_plugin_only() -> None:
    class Wrong:
        @hookimpl
        def converters(self, frontend: str) -> Any:
            return ["Swish"]

    host().register(Wrong(), "wrong")
    try:
        with vendors(acme=Vendor(acme(swish))):
            assert Swish in operators(model())
        assert [str(e) for p, h, e in host().failures if p.name == "wrong"] == [
            "gave 'Swish', which is no Converter (in a list of 1)"
        ]
    finally:
        host().unregister("wrong")


def test_any_frontend_may_ask() -> None:
    with vendors(acme=Vendor(Converter("dense", "", "swish", len, 2), acme(swish))):
        found = Converters("dense")
        assert found.newest("") == 2 and found.newest("com.acme") == 0
        function = found.find("", "swish", 2)
        assert function is not None and function("four") == 4
        with pytest.raises(PluginError, match="failed to read the operator swish\n  why: TypeError"):
            function(4)
        assert found.find("", "swish", 1) is None
        with pytest.raises(
            WeftError, match=r"the operator swish \(version 2\) of frontend 'dense' is claimed by .* and plugin 'acme'"
        ):
            found.find("", "swish", 2, known=True)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda c: None, "its converter returned no result"),
        (lambda c: "text", "its converter returned 'text'; expected a Value for each output"),
        (lambda c: [c.value(0)] * 3, r"its converter returned 3 results, the node has 1 output\(s\)"),
    ],
)  # fmt: skip
def test_a_result_that_is_none_names_the_plugin(result: Callable[[Any], Any], said: str) -> None:
    vendor = Vendor(Converter("onnx", "com.acme", "Swish", result))
    with (
        vendors(acme=vendor),
        pytest.raises(FrontendError, match=rf"plugin 'acme'(.|\n)*to read the operator com.acme.Swish(.|\n)*{said}"),
    ):
        weft.load(model())


def test_the_standard_domain_may_be_called_by_its_name() -> None:
    with vendors(acme=Vendor(Converter("onnx", "ai.onnx", "Swosh", swish))):
        found = Converters("onnx", domains={"ai.onnx": ""})
        assert found.find("", "Swosh", 20) is not None
