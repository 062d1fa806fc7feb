"""Every builtin operator is read or refused with a reason, and the page says which."""

from __future__ import annotations

import pytest
from tests.frontends.tflite.coverage import PAGE, missing, section

from weft_tflite.schema import BUILTINS, LAYOUTS, OPTIONS, OPTIONS_2, TYPES


def test_every_operator_has_a_converter_or_a_reason() -> None:
    assert missing() == []


def test_the_page_is_what_the_frontend_says() -> None:
    assert section() in PAGE.read_text(), "python -m tests.frontends.tflite.coverage --update"


@pytest.mark.needs("ai_edge_litert")
def test_names_and_numbers_are_those_of_litert() -> None:
    """Also the tables of options: the same fields in the same slots."""
    from ai_edge_litert import schema_py_generated as schema

    def numbers(enum: str) -> dict[str, int]:
        return {k: v for k, v in vars(getattr(schema, enum)).items() if isinstance(v, int) and k != "NONE"}

    assert numbers("BuiltinOperator") == {name: k for k, name in enumerate(BUILTINS)}
    assert numbers("TensorType") == {name: k for k, name in enumerate(TYPES)}
    for enum, tables in (("BuiltinOptions", OPTIONS), ("BuiltinOptions2", OPTIONS_2)):
        assert numbers(enum) == {f"{name}Options": k for k, (name, _) in enumerate(tables) if k}
    for table, layout in LAYOUTS.items():
        known = {name.replace("_", "") for name, form, _ in layout if form != "-"}
        if table:
            made = getattr(schema, f"{table}OptionsT")()
            assert {name.lower().replace("_", "") for name in vars(made)} == known, table
