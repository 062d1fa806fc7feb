"""What a verification found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from weft_testing.verify.measure import Difference


@dataclass(frozen=True)
class Output:
    """One output of the model: its name, its type as text, and how far it is from what it is held against."""

    name: str
    type: str
    difference: Difference


@dataclass(frozen=True)
class Blame:
    """What departed first.

    Attributes:
        kind: "frontend" (the graph as it was read), "pass" (a graph pass), "kernel" (a kernel on its own inputs),
            "plan" (all kernels alone are right), "cache" (it gave something else than a compilation now), or "rounding"
            (every part is right: what rounding does is amplified).
        target: whose it is; a frontend is nobody's.
        stage: the graph pass, or the kernel's stage; empty if it was not found out.
        node: the graph's node as text; `operator` its class; `names` what the framework calls what it came from.
        kernel, rule: the kernel and the schedule rule that made it.
        step: the schedule's step.
        why: what speaks for it.
        difference: on the same inputs.
        carried: of the same value from the reference's value, errors of what comes before included.
    """

    kind: str
    target: str = ""
    region: str = ""
    stage: str = ""
    node: str = ""
    operator: str = ""
    names: tuple[str, ...] = ()
    kernel: str = ""
    rule: str = ""
    step: str = ""
    why: str = ""
    difference: Difference | None = None
    carried: Difference | None = None

    @property
    def title(self) -> str:
        """A line."""
        if self.kind == "frontend":
            return "the model is read otherwise"
        if self.kind == "rounding":
            return "every part is right on the inputs that it gets: rounding, amplified"
        if self.kind == "cache":
            return "what the cache holds is wrong: compiled anew, the model is right"
        if self.kind == "pass":
            return f"the graph pass '{self.stage}' changes the results"
        if self.kind == "plan":
            return "every kernel is right alone, not in the whole: the plan, its memory, sizes or copies"
        place = {
            "": "",
            "lower_group": "its lowering",
            "schedule": f"the schedule of the rule '{self.rule}'",
            "codegen": "its machine code",
        }
        stage = place.get(self.stage, f"the loop pass '{self.stage}'")
        return "a kernel departs" + (f": {stage}" if stage else "")


@dataclass
class Verification:
    """The whole of it. `passed`: every output is as it should be, and nobody is to blame."""

    model: str
    target: str
    against: str
    inputs: dict[str, str]
    outputs: list[Output]
    blames: list[Blame] = field(default_factory=list)
    looked: bool = False

    @property
    def passed(self) -> bool:
        return not any(o.difference.wrong for o in self.outputs) and not self.blames

    def as_data(self) -> dict[str, Any]:
        """For JSON; what is infinite is null."""
        return {
            "model": self.model,
            "target": self.target,
            "against": self.against,
            "passed": self.passed,
            "inputs": self.inputs,
            "outputs": [{"name": o.name, "type": o.type, **_data(o.difference)} for o in self.outputs],
            "blames": [
                {
                    **vars(b),
                    "title": b.title,
                    "names": list(b.names),
                    "difference": _data(b.difference),
                    "carried": _data(b.carried),
                }
                for b in self.blames
            ],
        }


def _data(d: Difference | None) -> Any:
    if d is None:
        return None
    found = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in vars(d).items()}
    return {**found, "at": None if d.at is None else list(d.at)}
