"""What a run of the kit found, as data and as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from weft.errors import shown
from weft_testing.conform.usage import IntrinsicUse, RuleUse, Usage

LEVELS: Mapping[int, tuple[str, str]] = {
    1: ("manifest", "metadata, import cost, hooks, options, machine, fingerprint"),
    2: ("device", "memory: capacity, copies, what is given back, what is said when there is none"),
    3: ("operators", "every sample of every operator alone: the reference's result, or declined with a reason"),
    4: ("schedules", "scheduled and lowered programs mean what naive ones mean; intrinsics compute what they say"),
    5: ("graphs", "fusion, layouts, constants, symbolic sizes"),
    6: ("models", "whole models"),
    7: ("determinism", "the same code under any hash seed, the same result twice"),
    8: (
        "faults",
        "device out of memory, copies and launches that fail: an error that names it, and the next call works",
    ),
    9: ("speed", "no kernel is slower than a multiple of the interpreter"),
    10: (
        "tiles",
        "every intrinsic and rule that the target declares is at work: whole, ragged and several tiles, full memories",
    ),
}
"""Number → name (of the module of tests) and what is looked at."""

Outcome = Literal["passed", "failed", "declined", "skipped"]
OUTCOMES: Sequence[Outcome] = ("passed", "failed", "declined", "skipped")


@dataclass(frozen=True)
class Result:
    """One check.

    Attributes:
        subject: what was checked, e.g. "MatMul float32 batched".
        message: why it failed, was declined or skipped.
    """

    level: int
    check: str
    subject: str
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.check}[{self.subject}]" if self.subject else self.check

    def __str__(self) -> str:
        return f"level {self.level} ({LEVELS[self.level][0]}): {self.name}" + (
            f"\n{_indented(self.message)}" if self.message else ""
        )


@dataclass
class Share:
    """How much of a model was on the target, in nodes and in multiply-adds, and why the other nodes were not: reason →
    how many.

    Whatever the target takes is on it when the model is checked. `by_cost` is the share that it has of the
    multiply-adds where its times, those of copies and those of the host's processor are weighed; None where there is no
    other target. `by_intrinsics` is the share that intrinsics have of the multiply-adds that its kernels execute, the
    rest being plain loops; None where no intrinsic of the target multiplies.
    """

    model: str
    nodes: int
    taken: int
    multiply_adds: float
    share: float
    declined: Mapping[str, int] = field(default_factory=dict)
    by_cost: float | None = None
    by_intrinsics: float | None = None

    @property
    def text(self) -> str:
        """The shares, for people."""
        weighed = (
            ""
            if self.by_cost is None or round(self.by_cost, 3) == round(self.share, 3)
            else f" ({self.by_cost:.1%} if time is weighed)"
        )
        inside = "" if self.by_intrinsics is None else f" ({self.by_intrinsics:.1%} of these by intrinsics)"
        return f"{self.share:.1%}{weighed}{inside}"


@dataclass
class Report:
    """Of one target.

    Attributes:
        owner: the plugin's distribution with its version.
        claims: operator → dtype → (samples computed, samples declined).
        usage: what rules and intrinsics did in the kernels that were launched.
    """

    target: str
    owner: str = ""
    weft: str = ""
    levels: Sequence[int] = tuple(LEVELS)
    quick: bool = False
    keyword: str = ""
    results: list[Result] = field(default_factory=list)
    claims: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    shares: list[Share] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    @property
    def subject(self) -> str:
        """How messages name the plugin and the target."""
        return f"{self.owner or 'unknown distribution'}, target '{self.target}'"

    @property
    def failed(self) -> list[Result]:
        return [r for r in self.results if r.outcome == "failed"]

    @property
    def passed(self) -> bool:
        return bool(self.results) and not self.failed

    def counts(self, level: int) -> Counter[str]:
        return Counter(r.outcome for r in self.results if r.level == level)

    def state(self, level: int) -> str:
        """Of a level, in words."""
        counts = self.counts(level)
        return "failed" if counts["failed"] else "passed" if counts["passed"] else "nothing to check"

    @property
    def verdict(self) -> str:
        """In words. Only who was asked everything conforms."""
        if self.passed and self.unasked:
            return (
                f"passes what was asked: {'; '.join(self.unasked)} not asked, so this does not say whether it conforms"
            )
        return (
            "conforms"
            if self.passed
            else f"does not conform: {len(self.failed)} check(s) failed"
            if self.failed
            else "was not checked"
        )

    @property
    def unasked(self) -> list[str]:
        """What a whole run would have checked and this one did not."""
        missing = [str(n) for n in LEVELS if n not in self.levels]
        found = [f"level{'s' * (len(missing) > 1)} {', '.join(missing)}"] if missing else []
        return [*found, f"what -k '{shown(self.keyword, 100)}' leaves out"] if self.keyword else found

    def claimed(self) -> dict[str, list[str]]:
        """Operator → dtypes of which at least one sample was computed."""
        found = {op: [d for d, (done, _) in by_dtype.items() if done] for op, by_dtype in sorted(self.claims.items())}
        return {op: dtypes for op, dtypes in found.items() if dtypes}

    def refused(self) -> list[str]:
        """Operators of which every sample was declined."""
        return sorted(op for op, by_dtype in self.claims.items() if not any(done for done, _ in by_dtype.values()))

    def dtypes(self) -> list[str]:
        """Of the samples: floats, then integers, then others, the wide ones first."""
        found = {d for by_dtype in self.claims.values() for d in by_dtype}
        kinds = ("float", "bfloat", "int", "uint", "bool")

        def order(name: str) -> tuple[int, int, str]:
            kind, bits = re.findall(r"([a-z]*)(\d*)", name)[0]
            return kinds.index(kind) if kind in kinds else len(kinds), -int(bits or 0), name

        return sorted(found, key=order)

    def reasons(self, op: str) -> Counter[str]:
        """Why samples of an operator were declined: reason → how many."""
        return Counter(
            r.message
            for r in self.results
            if r.check == "sample" and r.outcome == "declined" and r.level == 3 and r.subject.split(" ")[0] == op
        )

    def skipped(self, level: int) -> Counter[str]:
        """Why checks of a level were skipped: reason → how many."""
        return Counter(r.message for r in self.results if r.level == level and r.outcome == "skipped")

    @property
    def idle(self) -> str | None:
        """A sentence, if the target took no part in any model; no failure."""
        if not self.shares or any(s.taken for s in self.shares):
            return None
        return f"'{self.target}' computes no part of any model: it may conform, but models do not run on it"

    def compare(self, before: Mapping[str, Any]) -> None:
        """Adds a failure for everything that passed in an earlier report (`as_data`) and is not claimed any more:
        declined or skipped, or fewer nodes of a model of as many. What either run did not check is not compared."""
        passed = {(r["level"], r["name"]) for r in before["results"] if r["outcome"] == "passed"}
        lost = [r for r in self.results if (r.level, r.name) in passed and r.outcome in ("declined", "skipped")]
        first: dict[str, Result] = {}
        for r in sorted(lost, key=lambda r: r.level):
            first.setdefault(r.subject or r.name, r)  # a sample that is declined is so on several levels
        for r in first.values():
            message = f"{self.subject}: {r.check} passed before, and is {r.outcome} now: {r.message}"
            self.results.append(Result(r.level, "baseline", r.subject or r.check, "failed", message))
        old = {s["model"]: s for s in before.get("models", ())}
        for s in self.shares:
            was = old.get(s.model)
            if was is not None and was["nodes"] == s.nodes and was["taken"] > s.taken:
                message = f"{self.subject}: {was['taken']} of {s.nodes} nodes were computed before, {s.taken} are now"
                self.results.append(Result(6, "baseline", s.model, "failed", message))

    def seconds_of(self, level: int) -> float:
        return sum(r.seconds for r in self.results if r.level == level)

    def summary(self) -> str:
        """A few lines for people."""
        lines = []
        for r in self.failed:
            lines.append(f"FAILED {r}")
        for level in self.levels:
            counts = self.counts(level)
            words = ", ".join(f"{counts[o]} {o}" for o in OUTCOMES if counts[o])
            lines.append(
                f"level {level} {LEVELS[level][0]:12} {self.state(level):17} {self.seconds_of(level):6.1f} s  {words}"
            )
            lines += [f"    skipped: {count} × {reason}" for reason, count in self.skipped(level).items()]
        for share in self.shares:
            lines.append(
                f"{share.model}: {share.text} of {share.multiply_adds / 1e6:,.2f} M multiply-adds, {share.taken} of"
                f" {share.nodes} nodes"
            )
            lines += [f"    elsewhere: {count} × {reason}" for reason, count in share.declined.items()]
        lines += self.work()
        lines.append(
            f"{self.subject} {self.verdict} ({len(self.results)} checks, {self.seconds:.0f}"
            f" s{', quick' if self.quick else ''})"
        )
        return "\n".join(lines)

    def work(self) -> list[str]:
        """What rules and intrinsics did, as lines of text; none where nothing was launched."""
        if not self.usage:
            return []
        lines = [
            f"schedule rules: {_number(self.usage.multiply_adds)} multiply-adds, {percent(self.usage.share)} of them in"
            " intrinsics"
        ]
        if self.usage.unknown:
            lines.append(
                f"    and {self.usage.unknown} launches whose multiply-adds depend on data, which are not counted"
            )
        lines += _columns([RULES, *(rule_row(name, r, self.usage) for name, r in self.usage.rules.items())])
        if self.usage.intrinsics:
            lines += [
                "intrinsics:",
                *_columns(
                    [INTRINSICS, *(intrinsic_row(name, i, self.usage) for name, i in self.usage.intrinsics.items())]
                ),
            ]
        for level, p in sorted(self.usage.products.items()):
            lines.append(
                f"launches with products, level {level} {LEVELS[level][0]}: {p.by_intrinsics} of {p.launches} by"
                f" intrinsics ({percent(p.share)})"
            )
            often = sorted(p.without.items(), key=lambda item: -item[1])
            lines += [f"    none in {times} × {what}" for what, times in often[:MOST_SHOWN]]
            lines += (
                [f"    none in {sum(n for _, n in often[MOST_SHOWN:])} of {len(often) - MOST_SHOWN} other kinds"]
                if len(often) > MOST_SHOWN
                else []
            )
        return lines

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "target": self.target,
            "distribution": self.owner,
            "weft": self.weft,
            "quick": self.quick,
            "keyword": self.keyword,
            "unasked": self.unasked,
            "passed": self.passed,
            "seconds": round(self.seconds, 3),
            "levels": [
                {
                    "level": n,
                    "name": LEVELS[n][0],
                    "state": self.state(n),
                    "seconds": round(self.seconds_of(n), 3),
                    "counts": dict(self.counts(n)),
                }
                for n in self.levels
            ],
            "claims": {
                op: {d: {"computed": a, "declined": b} for d, (a, b) in by.items()}
                for op, by in sorted(self.claims.items())
            },
            "models": [vars(s) for s in self.shares],
            **self.usage.as_data(),
            "results": [{"name": r.name, **vars(r)} for r in self.results],
        }


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


MOST_SHOWN = 8
"""Of launches without an intrinsic, the kinds that a summary names; `--json` and `--html` have all."""
RULES = ("rule", "kernels", "launches", "multiply-adds", "share", "by intrinsics")
INTRINSICS = ("intrinsic", "dtypes", "launches", "multiply-adds", "share", "whole", "ragged", "several")
"""Columns: of the cases that were made for an intrinsic, in how many it stood, "3 of 4"."""


def rule_row(name: str, use: RuleUse, usage: Usage) -> Sequence[str]:
    """The cells of a rule."""
    inside = percent(use.by_intrinsics / use.multiply_adds) if use.multiply_adds else ""
    return (
        name,
        str(use.kernels),
        str(use.launches),
        _number(use.multiply_adds),
        _share(use.multiply_adds, usage),
        inside,
    )


def intrinsic_row(name: str, use: IntrinsicUse, usage: Usage) -> Sequence[str]:
    """The cells of an intrinsic."""
    cases = (use.cases.get(kind) for kind in ("whole", "ragged", "several"))
    shown = ("" if found is None else f"{found[0]} of {found[1]}" for found in cases)
    return name, use.dtypes, str(use.launches), _number(use.multiply_adds), _share(use.multiply_adds, usage), *shown


def percent(share: float) -> str:
    """Of a whole."""
    return f"{share:.1%}"


def _share(multiply_adds: float, usage: Usage) -> str:
    return percent(multiply_adds / usage.multiply_adds) if multiply_adds else ""


def _number(n: float) -> str:
    return f"{n:,.0f}"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows under one another: the first column and texts to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    left = [k == 0 or any(row[k][:1].isalpha() for row in rows[1:]) for k in range(len(widths))]
    return [
        "    " + "  ".join(cell.ljust(w) if on else cell.rjust(w) for cell, w, on in zip(row, widths, left)).rstrip()
        for row in rows
    ]
