"""Integers known only at run time, hostile ones: sizes, axes, steps, positions, counts and scales of every ONNX
operator that takes any.

python -m tests.fuzz.fuzz_integers --seconds 600 [--only REGEX] [--again CASE:NUMBER …]

The models are ONNX's own conformance cases of single operators, whose inputs are all given at run time. Each is
compiled once; then operands that ONNX's schema has for integers alone, and those that are sizes of another dtype
(`SIZES`), are replaced by values from around 0, ±2³¹, ±2⁴⁷, ±2⁶² and the ends of their dtypes, infinity and NaN. Each
run is in a child of its own (tests/fuzz/isolated.py) with 1 GiB of memory to spare: what asks for more has to be
refused.

A finding is what it is there (but of a loop, which takes as many iterations as it is told, no time), and a result that
is not that of ONNX's reference evaluator, where that has one. CASE:NUMBER names a run, whatever the seed.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tests.fuzz.isolated import BYTES, attempt
from tests.onnx_backend.node_cases import RANDOM, cases, operator

import weft
from weft.errors import WeftError

ELEMENTS = 32
"""Of an input, at most, for its values to be replaced."""
SIZES = ("scales", "roi", "start", "limit", "delta", "depth", "indices")
"""What schemas call operands that are sizes or positions and need not be integers."""
LOOPS = ("Loop", "Scan")
RUNS = 40
"""Of a model in a row."""
_COMPARED = 128 << 20
"""Bytes of results beyond which the reference, whose memory would count as the run's, is not asked."""
NEAR = (0, 1, -1, 2, 3, 4, 5, 7, -2, -3, 8, 16, 100)
FAR = (1 << 31, 1 << 32, 1 << 40, 1 << 47, 1 << 53, 1 << 61, 1 << 62, 1 << 63)
REALS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    1e-30,
    1e9,
    2.0**31,
    2.0**62,
    2.0**63,
    1e30,
    float("inf"),
    float("-inf"),
    float("nan"),
)
# Whose results ONNX's reference gets wrong, or leaves open, beyond what its own cases ask.
REFERENCE: dict[str, tuple[str, Callable[[Sequence[Array]], bool]]] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ("it takes no notice of lengths", lambda given: True)),
    "OneHot": (
        "it does not cast depths and indices to int64, as is specified",
        lambda given: any((a != np.trunc(a)).any() for a in given[:2]),
    ),
    "Resize": (
        (
            "it computes places in float64; of a region that ends at the border rounding decides whether its last place"
            " is within"
        ),
        lambda given: any(
            a.dtype.kind == "f" and ((np.abs(a) > 1e6).any() or (a.size % 2 == 0 and (a[a.size // 2 :] == 1).any()))
            for a in given[1:]
        ),
    ),
    "Trilu": (
        "numpy negates the diagonal's number",
        lambda given: any((np.abs(a.astype(np.float64)) > 2.0**31).any() for a in given[1:]),
    ),
    "Range": (
        "numpy's range by an infinite step has an element, the specified one has none",
        lambda given: not np.isfinite(given[2].astype(np.float64)).all(),
    ),
}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Subject:
    """A model, inputs that it takes, and which of them are hostile."""

    name: str
    operator: str
    model: onnx.ModelProto
    inputs: tuple[Array, ...]
    hostile: tuple[int, ...]
    tolerance: tuple[float, float]
    loops: bool
    outputs: tuple[Any, ...] = ()
    """What ONNX expects of `inputs`; of none, nothing."""


def subjects(only: str = "") -> dict[str, list[Subject]]:
    """By operator, all cases that have hostile inputs."""
    found: dict[str, list[Subject]] = {}
    for name, case in sorted({**cases(), **own()}.items()):
        if (
            not case.data_sets
            or not re.search(only, name)
            or any(op in RANDOM for op in (n.op_type for n in case.model.graph.node))
        ):
            continue
        inputs = case.data_sets[0][0]
        if not all(isinstance(x, (np.ndarray, np.generic)) and np.asarray(x).dtype.kind in "biuf" for x in inputs):
            continue
        arrays = tuple(np.asarray(x) for x in inputs)
        says = _says(case.model)
        hostile = tuple(
            k
            for k, (x, info) in enumerate(zip(arrays, case.model.graph.input))
            if 0 < x.size <= ELEMENTS and info.name in says
        )
        if not hostile:
            continue
        op = operator(name, case.model)
        loops = any(n.op_type in LOOPS for n in case.model.graph.node)
        subject = Subject(
            name, op, case.model, arrays, hostile, (case.rtol, case.atol), loops, tuple(case.data_sets[0][1])
        )
        found.setdefault(f"{op} {name.split('_')[1]}" if op == "expanded" else op, []).append(subject)
    return found


@dataclass(frozen=True)
class Own:
    """As ONNX's cases."""

    model: onnx.ModelProto
    data_sets: list[tuple[list[Array], list[Array]]]
    rtol: float = 1e-3
    atol: float = 1e-6


def own() -> dict[str, Own]:
    """Cases of what ONNX has none of with such inputs, and of sizes that several nodes compute."""
    node, whole = helper.make_node, np.int64
    x, one = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(1, np.int64)
    w = np.linspace(-1, 1, 36, dtype=np.float32).reshape(1, 3, 12)
    found: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
        "rnn_lengths": ([node("RNN", ["x", "w", "r", "", "n"], ["", "y"], hidden_size=3)], {"x": x.reshape(3, 1, 4),
            "w": w[:, :, :4], "r": w[:, :, :3]}),
        "gru_lengths": (
            [node("GRU", ["x", "w", "r", "", "n"], ["", "y"], hidden_size=1)],
            {"x": x.reshape(3, 1, 4), "w": w[:, :, :4], "r": w[:, :, :1]},
        ),
        "sequence_at": ([node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceAt", ["s", "n"], ["y"])], {"x": x,
            "n": whole(1)}),
        "sequence_erase": (
            [node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceErase", ["s", "n"], ["t"]),
                node("ConcatFromSequence", ["t"], ["y"], axis=0)],
            {"x": x, "n": whole(1)},
        ),
        "sequence_insert": (
            [node("SequenceConstruct", ["x"], ["s"]), node("SequenceInsert", ["s", "x", "n"], ["t"]),
                node("ConcatFromSequence", ["t"], ["y"], axis=0)],
            {"x": x, "n": whole(1)},
        ),
        "computed_fill": (
            [node("Mul", ["n", "m"], ["p"]), node("Concat", ["p", "m"], ["s"], axis=0), node("ConstantOfShape", ["s"],
                ["f"]), node("Tile", ["f", "s"], ["y"])],
            {"n": one, "m": one * 2},
        ),
        "padded_and_sliced": (
            [node("Pad", ["x", "s"], ["p"]), node("Slice", ["p", "n", "m", "a", "t"], ["q"]), node("Shape", ["q"],
            ["d"]), node("Expand", ["one", "d"], ["e"]),
             node("Add", ["q", "e"], ["y"])],
            {"x": x, "s": np.array([0, 1, 1, 0]), "n": one, "m": one * 3, "a": one * 0, "t": one, "one": np.ones((1, 1),
                np.float32)},
        ),
        "split_and_gathered": (
            [node("Split", ["x", "s"], ["u", "v"], axis=1), node("Gather", ["u", "n"], ["g"], axis=1), node("Concat",
                ["g", "v"], ["y"], axis=1)],
            {"x": x, "s": np.array([2, 2]), "n": np.array([0, -1])},
        ),
        "reshaped_product": (
            [node("Reshape", ["x", "s"], ["r"]), node("Unsqueeze", ["r", "a"], ["q"]), node("CumSum", ["q", "n"],
                ["y"])],
            {"x": x, "s": np.array([4, -1]), "a": one, "n": whole(0)},
        ),
    }  # fmt: skip
    made = {}
    for name, (nodes, data) in found.items():
        if name.endswith("lengths"):
            data["n"] = np.array([2], np.int32)
        infos = [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in data.items()
        ]
        graph = helper.make_graph(nodes, name, infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        made[f"own_{name}"] = Own(proto, [([np.asarray(v) for v in data.values()], [])])
    return made


def _says(model: onnx.ModelProto) -> set[str]:
    """The inputs of a model that say sizes, positions or counts, by the schemas of what takes them."""
    versions = {o.domain: o.version for o in model.opset_import}
    found = set()
    for node in model.graph.node:
        try:
            schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            continue
        for k, name in enumerate(node.input):
            formal = schema.inputs[min(k, len(schema.inputs) - 1)]
            integers = all(re.fullmatch(r"tensor\(u?int\d+\)", t) for t in formal.types)
            if integers or formal.name in SIZES:
                found |= _behind(model, name)
    return found


def _behind(model: onnx.ModelProto, name: str) -> set[str]:
    """The integer inputs of a model that a value is computed of."""
    inputs = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    if name in inputs:
        return {name}
    maker = next((n for n in model.graph.node if name in n.output), None)
    integers = (TensorProto.INT64, TensorProto.INT32)
    return set() if maker is None else {i for n in maker.input for i in _behind(model, n) if inputs[i] in integers}


def changed(subject: Subject, number: int) -> list[Array]:
    """Its inputs in the run of this number."""
    chance = random.Random(f"{subject.name}:{number}")
    arrays = [a.copy() for a in subject.inputs]
    for k in chance.sample(subject.hostile, chance.randint(1, len(subject.hostile))):
        flat = arrays[k].reshape(-1)
        places = (
            range(flat.size)
            if chance.random() < 0.3
            else chance.sample(range(flat.size), chance.randint(1, min(2, flat.size)))
        )
        for at in places:
            flat[at] = _hostile(flat.dtype, chance)
    return arrays


def _hostile(dtype: np.dtype[Any], chance: random.Random) -> Any:
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(chance.choice(REALS)).astype(dtype)
    value = chance.choice(NEAR)
    if chance.random() < 0.5:
        value = chance.choice((1, -1)) * (chance.choice(FAR) + chance.randint(-3, 3))
    span = np.iinfo(dtype)
    return max(int(span.min), min(int(span.max), value))


def run(subject: Subject, executable: Any, arrays: Sequence[Array]) -> str:
    """One run: "refused", "answered", "answered as the reference", or "wrong" and a line that says what."""
    names = [i.name for i in subject.model.graph.input]
    try:
        results = list(executable.run(dict(zip(names, arrays))).values())
    except WeftError as error:
        return "refused" if error.what.strip() else "wrong\nan error without a text"
    if sum(a.nbytes for a in results if isinstance(a, np.ndarray)) > _COMPARED:
        return "answered"
    try:
        wanted = reference(subject, arrays)
    except Exception:  # noqa: BLE001 - it does not check what it is given
        return "answered"
    if wanted is None:
        return "answered"
    for info, got, want in zip(subject.model.graph.output, results, wanted):
        try:
            wrong = _differs_at_all(got, want, subject.tolerance)
        except MemoryError:  # of the comparison
            return "answered"
        if wrong is not None:
            return f"wrong\n{info.name}: {wrong}"
    return "answered as the reference"


def reference(subject: Subject, arrays: Sequence[Array]) -> list[Any] | None:
    """What ONNX's reference says; None if it is known to be wrong, or is not what ONNX expects of the case. It does not
    check what it is given, and may raise anything.
    """
    if subject.operator in REFERENCE and REFERENCE[subject.operator][1](arrays):
        return None
    own = _evaluated(subject.model, subject.inputs) if subject.outputs else []
    if any(np.shape(got) != np.shape(want) for got, want in zip(own, subject.outputs) if isinstance(want, np.ndarray)):
        return None
    return _evaluated(subject.model, arrays)


def _evaluated(model: onnx.ModelProto, arrays: Sequence[Array]) -> list[Any]:
    names = [i.name for i in model.graph.input]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(model).run(None, dict(zip(names, (a.copy() for a in arrays))))  # type: ignore[no-any-return]


def _differs_at_all(got: Any, want: Any, tolerance: tuple[float, float]) -> str | None:
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return f"got {type(got).__name__} of {len(got)}, expected {len(want)} elements"
        return next((w for w in (_differs_at_all(a, b, tolerance) for a, b in zip(got, want)) if w is not None), None)
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype.kind == want.dtype.kind == "f":
        want = want.astype(got.dtype)  # it computes some in float64, and does not round
    return _differs(got, want, *tolerance)


def _differs(got: Array, want: Array, relative: float, absolute: float) -> str | None:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"got {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if got.dtype.kind in "OSU":
        return None if (got == want).all() else "another text"
    with np.errstate(all="ignore"):
        wide, right = (a.astype(np.float64) if a.dtype.kind in "fV" else a for a in (got, want))
        # What it divides by 0 is left open.
        absolute = (
            max(absolute, relative * 1e-2 * float(np.nanmax(np.abs(right), initial=0.0, where=np.isfinite(right))))
            if right.dtype.kind == "f"
            else 0.0
        )
        wrong = (
            ~(np.isclose(wide, right, relative, absolute) | np.isnan(right))
            if wide.dtype.kind == "f"
            else wide != right
        )
    if not wrong.any():
        return None
    return f"{int(wrong.sum())} of {wrong.size} elements differ, {wide[wrong][0]} for {right[wrong][0]}"


def shown(arrays: Sequence[Array], which: Sequence[int]) -> str:
    return ", ".join(f"{k}: {arrays[k].dtype}{arrays[k].tolist()}" for k in which)


def explore(
    entries: Iterable[tuple[Subject, Iterable[int]]],
    target: str,
    found: Callable[[str, str], None],
    until: Callable[[], bool] = bool,
) -> Counter[str]:
    """Runs of subjects, by their numbers, until the time is over; what came of them, by word. `found` gets the kind of
    each finding, and its text."""
    words: Counter[str] = Counter()
    made: dict[str, Any] = {}
    for subject, numbers in entries:
        if until():
            break
        if subject.name not in made:
            try:
                made[subject.name] = weft.compile(subject.model.SerializeToString(), target, cache=False)
            except WeftError:
                made[subject.name] = None
        executable = made[subject.name]
        if executable is None:
            words["not compiled"] += 1
            continue
        for number in numbers:
            if until():
                break
            arrays = changed(subject, number)
            # A run may use up its room, and of addresses that were there before what was not memory yet.
            outcome = attempt(partial(run, subject, executable, arrays), memory=BYTES + (64 << 20), room=BYTES)
            if outcome.finding == "hang" and subject.loops:
                words["a long loop"] += 1
                break  # others would take as long
            words[outcome.word] += 1
            if outcome.finding:
                what = f"{outcome.finding} {outcome.text.strip().splitlines()[-1]}"
                kind = re.sub(r"-?[0-9][0-9.e+-]*", "N", what)[:100]
                found(
                    f"{subject.operator}: {kind}",
                    f"{subject.name}:{number}  {what}\n    {shown(arrays, subject.hostile)[:400]}",
                )
    return words


def rounds(by_operator: dict[str, list[Subject]], seed: int) -> Iterator[tuple[Subject, range]]:
    """A case of each operator in turn, and the numbers of its runs, without end."""
    chance = random.Random(seed)
    while True:
        names = sorted(by_operator)
        chance.shuffle(names)
        for name in names:
            subject, start = chance.choice(by_operator[name]), chance.randrange(1 << 30)
            yield subject, range(start, start + RUNS)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line.

    Raises:
        SystemExit: 1 if there are findings.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", default="llvm -threads=1")
    parser.add_argument("--only", default="", help="cases whose names match")
    parser.add_argument("--again", nargs="*", help="runs to repeat in this process: CASE:NUMBER")
    options = parser.parse_args(arguments)
    if options.again is not None:
        known = {s.name: s for some in subjects().values() for s in some}
        for text in options.again:
            name, _, number = text.rpartition(":")
            subject, arrays = known[name], changed(known[name], int(number))
            print(f"{text}: {shown(arrays, subject.hostile)}", flush=True)
            executable = weft.compile(subject.model.SerializeToString(), options.target, cache=False)
            print(f"  {run(subject, executable, arrays)}", flush=True)
            try:
                executable.run(dict(zip((i.name for i in subject.model.graph.input), arrays)))
            except WeftError as error:
                print(f"  {error}")
        return
    by_operator = subjects(options.only)
    print(f"{sum(map(len, by_operator.values()))} models of {len(by_operator)} operators", flush=True)
    findings: dict[str, str] = {}

    def found(kind: str, text: str) -> None:
        if kind not in findings:  # one of its kind is kept
            findings[kind] = text
            print(text, flush=True)

    end = time.monotonic() + options.seconds
    words = explore(rounds(by_operator, options.seed), options.target, found, lambda: time.monotonic() >= end)
    counts = ", ".join(f"{count} {word}" for word, count in words.most_common())
    print(f"{words.total()} runs in {options.seconds} s: {counts or 'none'}; {len(findings)} finding(s)")
    for kind in sorted(findings):
        print(f"  {kind}")
    raise SystemExit(1 if findings else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
