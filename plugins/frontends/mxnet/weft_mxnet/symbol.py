"""A symbol and its parameters as a graph.

A symbol is JSON: nodes in order, each with an operator, a name, attributes as texts, and inputs (node, output,
version). A node without an operator is a variable: a parameter, if the file of parameters has its name, else an input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, TensorType, Value
from weft.graph.operator import Array
from weft.tensor.language import Dim
from weft_frontend.archives import read_file
from weft_frontend.context import Context
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Absent
from weft_mxnet.params import read_params
from weft_mxnet.plugin import MxnetOptions
from weft_mxnet.registry import REGISTRY

Word = TypeVar("Word", bound=str)
MOST_TEXT = 256 << 20
"""Bytes of a symbol."""
LARGEST = (1 << 31) - 1
"""A size."""
DTYPES = {
    "float32": dt.float32, "float64": dt.float64, "float16": dt.float16, "uint8": dt.uint8, "int32": dt.int32,
    "int8": dt.int8, "int64": dt.int64, "bool": dt.bool_, "bfloat16": dt.bfloat16,
    "0": dt.float32, "1": dt.float64, "2": dt.float16, "3": dt.uint8, "4": dt.int32, "5": dt.int8, "6": dt.int64,
    "7": dt.bool_, "12": dt.bfloat16,
}  # fmt: skip
"""By name, and by number as attributes of variables have them."""


def find_params(path: Path, options: MxnetOptions) -> Path | None:
    """The parameters of a symbol: NAME-symbol.json has NAME-0000.params or NAME.params, else the only .params there.

    Raises:
        FrontendError: several could be meant.
    """
    if options.params is not None:
        return Path(options.params)
    name = path.stem.removesuffix("-symbol")
    found = sorted(file for file in path.parent.glob("*.params") if file.is_file())
    own = [file for file in found if file.stem == name or re.fullmatch(re.escape(name) + r"-\d{4}", file.stem)]
    chosen = own or found
    if len(chosen) > 1:
        names = ", ".join(f"'{file.name}'" for file in chosen[:5])
        raise FrontendError(
            f"which parameters belong to '{path.name}' is not certain",
            why=f"beside it are {names}",
            hint="name them: --frontend 'mxnet -params=…'",
        )
    return chosen[0] if chosen else None


def load_symbol(source: Any, options: MxnetOptions) -> Graph:
    """The graph of a symbol, a path or the bytes of a .json."""
    if isinstance(source, Path):
        data, what, params = (
            read_file(source, MOST_TEXT),
            f"'{source}' is no symbol of MXNet",
            find_params(source, options),
        )
    else:
        data, what = bytes(source), "the bytes are no symbol of MXNet"
        params = None if options.params is None else Path(options.params)
    try:
        text = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FrontendError(what, why=f"it does not parse as JSON: {error}", hint="is it whole?") from None
    if not isinstance(text, dict) or not isinstance(text.get("nodes"), list) or not text["nodes"]:
        raise FrontendError(what, why="it has no list of nodes")
    return Symbol(text, {} if params is None else read_params(params), options, what).run()


class Node(Context):
    """A node with its attributes, which are texts."""

    importer: Symbol

    def __init__(self, importer: Symbol, message: Mapping[str, Any], operands: Sequence[Any], outputs: int) -> None:
        super().__init__(importer, message["op"], message["name"], operands, outputs=outputs)
        self.attributes: Mapping[str, str] = message["attributes"]

    def text(self, name: str) -> str | None:
        """An attribute as it is written; None: it is absent, or None."""
        value = self.attributes.get(name)
        return None if value is None or value == "None" else value

    def _parsed(self, name: str, kind: Any, default: Any, what: str) -> Any:
        value = self.text(name)
        if value is None:
            return default
        try:
            return kind(value)
        except (ValueError, OverflowError):
            raise self.error(f"attribute '{name}' is '{value[:60]}', expected {what}") from None

    def integer(self, name: str, default: int = 0) -> int:
        return int(self._parsed(name, int, default, "a whole number"))

    def real(self, name: str, default: float = 0.0) -> float:
        return float(self._parsed(name, float, default, "a number"))

    def flag(self, name: str, default: bool = False) -> bool:
        words = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}
        value = self.text(name)
        if value is None:
            return default
        if value not in words:
            raise self.error(f"attribute '{name}' is '{value[:60]}', expected True or False")
        return words[value]

    def choice(self, name: str, default: Word, known: Sequence[Word]) -> Word:
        """An attribute that is one of `known`."""
        value = self.text(name)
        for word in known:
            if word == (default if value is None else value):
                return word
        raise self.error(f"attribute '{name}' is '{value}', expected one of {', '.join(known)}")

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute such as (3, 3), [3, 3] or 3; None: it is absent or empty."""
        found = self.optional_integers(name)
        if found is None:
            return None
        numbers = tuple(v for v in found if v is not None)
        if len(numbers) < len(found):
            raise self.error(f"attribute '{name}' is '{self.text(name)}', expected whole numbers")
        return numbers or None

    def optional_integers(self, name: str) -> tuple[int | None, ...] | None:
        """As `integers`, where some of them may be None."""
        value = self.text(name)
        if value is None:
            return None
        try:
            parts = [part.strip() for part in value.strip("()[] ").split(",")]
            return tuple(None if p == "None" else int(p.rstrip("L")) for p in parts if p)
        except ValueError:
            raise self.error(f"attribute '{name}' is '{value[:60]}', expected whole numbers") from None

    def spatial(self, name: str, rank: int, default: int) -> tuple[int, ...]:
        """An attribute with a number for each spatial axis."""
        found = self.integers(name) or (default,) * rank
        if len(found) != rank or min(found, default=0) < 0:
            raise self.error(f"attribute '{name}' is {found}, expected {rank} numbers")
        return found

    def dtype(self, name: str, default: DType) -> DType:
        value = self.text(name)
        if value is None:
            return default
        if value not in DTYPES:
            raise self.error(
                f"attribute '{name}' is '{value}', expected one of {', '.join(d for d in DTYPES if d.isalnum())}"
            )
        return DTYPES[value]

    def axis(self, axis: int, k: int = 0, extra: int = 0) -> int:
        """An axis of operand k, counted from the front; `extra`: 1 if it may be the one behind the last."""
        rank = len(self.shape(k)) + extra
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} of {rank} dimension(s)")
        return axis % rank

    def fixed(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Sizes that must be numbers."""
        found = tuple(d for d in dims if isinstance(d, int))
        if len(found) < len(dims):
            raise self.unsupported(f"{what} where a size is open")
        return found


class Symbol(GraphImporter):
    """The state of reading one symbol."""

    title = "MXNet"

    def __init__(self, text: Mapping[str, Any], params: Mapping[str, Array], options: MxnetOptions, what: str) -> None:
        nodes: list[Any] = text["nodes"]
        super().__init__("symbol", "mxnet", REGISTRY, len(nodes))
        self.text, self.nodes, self.params, self.options, self.what = text, nodes, params, options, what
        self.results: list[Any] = []
        """By node its outputs; of a variable that is not used yet its attributes."""

    def run(self) -> Graph:
        names: set[str] = set()
        self.counts = self.count_outputs()
        for k, message in enumerate(self.nodes):
            node = self.checked(message, k)
            if node["name"] in names and node["op"] == "null":
                raise FrontendError(f"two variables are named '{node['name']}'", where=f"node {k}")
            names.add(node["name"])
            self.results.append(node if node["op"] == "null" else self.add(node, k))
        heads = self.heads()
        if self.unsupported:
            raise self.everything_unsupported()
        unknown = [n for n in self.options.shapes if n not in names]
        if unknown:
            raise FrontendError(f"shapes gives '{unknown[0]}', which is no variable of the symbol")
        used: set[str] = set()
        for k, output, where in heads:
            name = self.nodes[k]["name"] + (f"_output{output}" if output or len(heads) > 1 else "")
            value = self.as_value(self.operand(k, output, where), name)
            while name in used:
                name += "_"
            used.add(name)
            self.builder.output(value, name)
        return self.built()

    def checked(self, message: Any, k: int) -> dict[str, Any]:
        """A node whose parts are what they must be."""
        if not isinstance(message, dict):
            raise FrontendError(self.what, where=f"node {k}", why="it is no object")
        name, kind, inputs = message.get("name"), message.get("op"), message.get("inputs", [])
        attributes: dict[str, str] = {}
        for key in ("attr", "param", "attrs"):
            given = message.get(key) or {}
            if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
                raise FrontendError(self.what, where=f"node {k}", why=f"its {key} are not texts by name")
            attributes.update(given)
        if not isinstance(name, str) or not isinstance(kind, str) or not isinstance(inputs, list):
            raise FrontendError(self.what, where=f"node {k}", why="it lacks a name, an operator or a list of inputs")
        if message.get("subgraphs"):
            kind = f"{kind} with sub-graphs"
        return {"name": name, "op": kind, "inputs": inputs, "attributes": attributes}

    def entry(self, entry: Any, where: str, below: int) -> tuple[int, int]:
        """The node and the output that an input names, a node before `below`."""
        whole = isinstance(entry, list) and len(entry) >= 2 and all(type(v) is int for v in entry[:2])
        if not whole or not 0 <= entry[0] < below or not 0 <= entry[1] < 1 << 16:
            raise FrontendError(self.what, where=where, why=f"{str(entry)[:60]} is no output of a node before it")
        return entry[0], entry[1]

    def count_outputs(self) -> dict[int, int]:
        """By node how many of its outputs are used, as far as the entries are whole."""
        counts: dict[int, int] = {}
        lists = [n.get("inputs") for n in self.nodes if isinstance(n, dict)] + [self.text.get("heads")]
        for entry in (e for given in lists if isinstance(given, list) for e in given):
            if isinstance(entry, list) and len(entry) >= 2 and all(type(v) is int for v in entry[:2]):
                counts[entry[0]] = max(counts.get(entry[0], 1), min(entry[1], 1 << 12) + 1)
        return counts

    def heads(self) -> list[tuple[int, int, str]]:
        heads = self.text.get("heads")
        if not isinstance(heads, list) or not heads:
            raise FrontendError(self.what, why="it has no heads, which are its outputs")
        return [(*self.entry(e, "heads", len(self.nodes)), "heads") for e in heads]

    def operand(self, k: int, output: int, where: str) -> Any:
        """What stands for an output of a node; a variable becomes a constant or an input when it is first used."""
        found = self.results[k]
        if isinstance(found, dict):
            found = self.results[k] = [self.variable(found)]
        if output >= len(found):
            raise FrontendError(
                f"output {output} of '{self.nodes[k]['name']}' is used, which it does not have", where=where
            )
        return Absent() if found[output] is None else found[output]

    def variable(self, node: Mapping[str, Any]) -> Value:
        name, attributes = node["name"], node["attributes"]
        if name in self.params:
            return self.builder.constant(self.params[name], name)
        shape = self.options.shapes.get(name)
        given = attributes.get("__shape__") if shape is None else shape.replace("x", ",")
        try:
            dims: list[Dim] = [int(part) for part in (given or "").strip("()[] ").split(",") if part.strip()]
        except ValueError:
            raise FrontendError(f"the variable '{name}' has the shape '{str(given)[:60]}'") from None
        if not dims or any(not isinstance(d, int) or d > LARGEST or d < 0 for d in dims):
            raise self.no_shape(name)
        if self.options.batch is not None:
            dims[0] = self.options.batch or Var("batch", dt.int64)
        if any(d == 0 for d in dims):
            raise self.no_shape(name)
        number = attributes.get("__dtype__", "0")
        if number not in DTYPES:
            raise FrontendError(f"the variable '{name}' has the dtype '{number[:60]}', which is not known")
        return self.builder.input(name, TensorType(DTYPES[number], tuple(dims)))

    def no_shape(self, name: str) -> FrontendError:
        why = "it is no parameter" if self.params else "there are no parameters"
        return FrontendError(
            f"the sizes of the input '{name}' are not known",
            why=f"{why}, and the symbol does not say its shape",
            hint=f"give them, e.g. --frontend 'mxnet -shapes={name}=1x3x224x224'"
            + ("" if self.params else ", and the parameters: -params=NAME-0000.params"),
        )

    def add(self, node: Mapping[str, Any], k: int) -> Sequence[Any]:
        """The outputs of a node."""
        where = f"node '{node['name']}': {node['op']}"
        entries = [self.entry(e, where, k) for e in node["inputs"]]
        # The label of a loss is the last input of an operator that computes without it.
        wanted = entries[:1] if node["op"] in LABELLED else entries
        operands = [self.operand(*entry, where) for entry in wanted]
        context = Node(self, node, operands, outputs=self.counts.get(k, 1))
        results = list(self.node(context))
        last = self.builder.graph.nodes[-1:]
        if (
            results
            and isinstance(results[0], Value)
            and results[0].producer is not None
            and results[0].producer in last
        ):
            self.builder.rename(results[0], node["name"])
        return results


LABELLED = (
    "SoftmaxOutput", "Softmax", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput",
    "SVMOutput",
)  # fmt: skip
"""Operators of training whose second input is a label, and whose output does not depend on it."""
