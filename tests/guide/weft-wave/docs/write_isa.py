"""Writes docs/isa.md, the manual of the instruction set: python docs/write_isa.py"""

from __future__ import annotations

from pathlib import Path

from weft_wave import isa


def manual() -> str:
    """The manual's text."""
    lines = [
        f"# {(isa.__doc__ or '').strip()}",
        "",
        "| code | name | d a b c | immediate | unit | means |",
        "|---|---|---|---|---|---|",
    ]
    kinds = {".": "", "n": "number", "t": "instruction"}
    for name, form in isa.FORMS.items():
        fields = " ".join("-" if bank == "." else bank for bank in form.fields)
        meaning = form.meaning.replace("|", "\\|")
        lines.append(f"| {isa.CODES[name]} | `{name}` | {fields} | {kinds[form.immediate]} | {form.unit} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("isa.md").write_text(manual())
