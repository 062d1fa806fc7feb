"""coremltools' own tests of MIL operators (numpy's answers beside each), with Weft in Core ML's place.

python -m tests.frontends.coreml.coverage                     # 1,500 cases, of every test function about as many
python -m tests.frontends.coreml.coverage --count 0 -k conv   # all whose name has "conv"
python -m tests.frontends.coreml.coverage --compiled          # compiled, not interpreted
python -m tests.frontends.coreml.coverage --part 1/5          # every fifth of the 1,500, from the first on

A case counts if it asks for a prediction. coremltools 9.0, torch and pytest have to be installed. The interpreter makes
the predictions. coremltools compares with its own tolerances, those within which Core ML itself has to be; for float16
programs they are 0.5 and 5 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SUITE = "coremltools.converters.mil.mil.ops.tests"
MACOS = (15, 4)


class Answers:
    """A pytest plugin that answers `MLModel.predict`.

    Args:
        count: cases at most; 0: all.
        compiled: they are compiled for this machine.
        part: (k, n), of the cases every n-th, from the k-th on.
    """

    def __init__(self, count: int, compiled: bool, part: tuple[int, int] = (1, 1)) -> None:
        self.count, self.compiled, self.part = count, compiled, part
        self.asked: set[str] = set()
        self.now = ""
        self.outcomes: dict[str, tuple[str, str]] = {}

    # -- pytest
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        first, step = self.part
        items[:] = chosen(items, self.count)[first - 1 :: step]

    def pytest_runtest_setup(self, item: Any) -> None:
        self.now = item.nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.failed or report.skipped:
            text = ""
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                text = crash.message if crash is not None else str(report.longrepr)
            self.outcomes[report.nodeid] = (report.outcome, text)

    # -- Core ML
    def predict(self, model: Any, data: Any, state: Any = None) -> Any:
        """What Core ML would answer."""
        if isinstance(data, list):
            return [self.predict(model, d, state) for d in data]
        self.asked.add(self.now)
        from weft.errors import WeftError
        from weft.graph.evaluate import evaluate

        graph = loaded(model)
        given = {i.name: as_array(data.get(i.name), i, model, state) for i in graph.inputs}
        try:
            if self.compiled:
                import weft

                found = weft.compile(graph, target="llvm", cache=False).run(given)
            else:
                found = dict(zip(graph.output_names, evaluate(graph, given)))
        except WeftError as error:  # as Core ML says it, which a few cases expect
            kind = "ML Program" if model._spec.WhichOneof("Type") == "mlProgram" else "a neural network model"
            raise RuntimeError(f"Unable to compute the prediction using {kind}: {error}") from error
        if state is not None:
            state.update({name.removesuffix(".after"): v for name, v in found.items() if name.endswith(".after")})
        return as_answer(found, model)

    def install(self) -> None:
        """Puts this in Core ML's place."""
        import coremltools as ct
        from coremltools.converters.mil import testing_utils
        from coremltools.models import model, utils

        testing_utils._IS_MACOS = True  # type: ignore[attr-defined]
        for module in (model, utils):
            module._is_macos = lambda: True
            module._macos_version = lambda: MACOS
        ct.models.MLModel.predict = lambda own, data, state=None: self.predict(own, data, state)
        ct.models.MLModel.make_state = lambda own: {}


def chosen(items: list[Any], count: int) -> list[Any]:
    """About as many cases of every test function, spread over its parameters."""
    if not count or len(items) <= count:
        return items
    groups: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        groups[item.nodeid.split("[", 1)[0]].append(item)
    share = 1
    while sum(min(len(g), share + 1) for g in groups.values()) <= count:
        share += 1
    picked: set[int] = set()
    for group in groups.values():
        n = min(len(group), share)
        picked |= {id(group[k * len(group) // n]) for k in range(n)}
    return [item for item in items if id(item) in picked]


def loaded(model: Any) -> Any:
    """The graph of a coremltools model."""
    import weft

    spec = model._spec
    options: dict[str, Any] = {"function": getattr(model, "function_name", None)}
    if spec.WhichOneof("Type") != "mlProgram":
        return weft.load(spec.SerializeToString(), frontend="coreml")
    if model._is_stateful():
        options["state"] = "inputs"
    if model.package_path is not None and Path(model.package_path).is_dir():
        return weft.load(model.package_path, frontend="coreml", **options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mlpackage"
        model.save(str(path))
        return weft.load(path, frontend="coreml", **options)


def as_array(value: Any, given: Any, model: Any, state: Any) -> Any:
    """An input as the graph takes it."""
    if value is None and state is not None:
        value = state.get(given.name)
    shape = tuple(d if isinstance(d, int) else 0 for d in given.shape)
    if value is None:
        return np.zeros(shape, given.dtype.numpy)
    if hasattr(value, "mode"):  # a picture
        picture = np.asarray(value, np.float32)
        space = next(f.type.imageType.colorSpace for f in model._spec.description.input if f.name == given.name)
        picture = picture[None, None] if picture.ndim == 2 else picture.transpose(2, 0, 1)[None]
        return (picture[:, ::-1] if space == 30 else picture).astype(given.dtype.numpy)
    array = np.asarray(value).astype(given.dtype.numpy)
    return array.reshape(shape) if array.shape != shape and array.size == 1 and len(shape) != array.ndim else array


def as_answer(found: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Results as `predict` gives them: of a classifier a label, and the probabilities by label."""
    spec = model._spec
    answer: dict[str, Any] = {k: np.asarray(v) for k, v in found.items() if not k.endswith(".after")}
    label = spec.description.predictedFeatureName
    if label and label in answer:
        names = labels(spec)
        answer[label] = answer[label].item()
        for feature in spec.description.output:
            if feature.type.WhichOneof("Type") == "dictionaryType":
                answer[feature.name] = dict(zip(names, answer[feature.name].reshape(-1).tolist()))
    return answer


def labels(spec: Any) -> list[Any]:
    """The labels of a classifier."""
    kind = spec.WhichOneof("Type")
    if kind == "mlProgram":
        block = next(iter(spec.mlProgram.functions["main"].block_specializations.values()))
        for op in block.operations:
            if op.type == "const" and op.attributes["val"].type.WhichOneof("type") == "listType":
                values = op.attributes["val"].immediateValue.list.values
                return [
                    v.immediateValue.tensor.strings.values[0]
                    if v.type.tensorType.dataType == 2
                    else (v.immediateValue.tensor.longInts.values or v.immediateValue.tensor.ints.values)[0]
                    for v in values
                ]
    network = getattr(spec, kind)
    return list(getattr(network, network.WhichOneof("ClassLabels")).vector)


def first_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    for k, line in enumerate(lines):
        if "does not support" in line and k + 1 < len(lines):
            return lines[k + 1].split(": '")[0]
    return lines[0][:200] if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.frontends.coreml.coverage")
    parser.add_argument("--count", type=int, default=1500, help="cases at most; 0: all")
    parser.add_argument("--compiled", action="store_true", help="compile what is interpreted otherwise")
    parser.add_argument("-k", default="", help="as pytest's")
    parser.add_argument("--list", action="store_true", help="every case that fails")
    parser.add_argument("--part", default="1/1", help="K/N: every N-th case, from the K-th on")
    chosen = parser.parse_args()
    first, step = map(int, chosen.part.split("/"))
    answers = Answers(chosen.count, chosen.compiled, (first, step))
    answers.install()
    arguments = ["--pyargs", SUITE, "-q", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "--no-summary",
                 "-c", "/dev/null", "--rootdir", tempfile.gettempdir(), "-W", "ignore"]  # fmt: skip
    pytest.main(arguments + (["-k", chosen.k] if chosen.k else []), plugins=[answers])
    passed = [n for n in answers.asked if answers.outcomes.get(n, ("", ""))[0] == "passed"]
    failed = {n: answers.outcomes[n][1] for n in answers.asked if answers.outcomes.get(n, ("", ""))[0] == "failed"}
    other = Counter(o for n, (o, _) in answers.outcomes.items() if n not in answers.asked)
    print(f"\n{len(passed)} of {len(passed) + len(failed)} cases agree; without a prediction: {dict(other)}")
    reasons: dict[str, list[str]] = defaultdict(list)
    for node, text in failed.items():
        reasons[first_line(text)].append(node.rsplit("/", 1)[-1])
    for reason, nodes in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        names = Counter(n.split("[", 1)[0] for n in nodes)
        print(f"{len(nodes):5}  {reason}\n       {', '.join(f'{n} × {k}' for n, k in names.items())}")
        if chosen.list:
            print("".join(f"         {n}\n" for n in nodes), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
