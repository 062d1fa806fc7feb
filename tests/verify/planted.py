"""Bugs to be found: targets that are right but for one thing. All compute on the board of `tests.mixed`, which
interprets loop programs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from tests.mixed import board

from weft.codegen.base import KernelCode
from weft.graph.nodes import Graph, GraphBuilder, Node, Value, tensor_type
from weft.graph.rewrite import Rewriter, rewrite
from weft.hooks import hookimpl
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import LoopPass
from weft.passes.pipeline import GraphPass
from weft.pipeline import compile
from weft.resolve import resolve_targets
from weft.scheduling.schedule import Schedule
from weft.target import Target, TargetKind
from weft_ops import Add, MatMul, Relu, Softmax, Subtract
from weft_runtime.device import DeviceKind
from weft_testing.plugin import registered
from weft_testing.verify.measure import Bound
from weft_testing.verify.report import Verification
from weft_testing.verify.verify import Compiled, Engine, Verifier

Edit = Callable[[str], str]


@dataclass(frozen=True)
class Options:
    """None: the board takes everything."""


class Text(board.Text):
    """An emitter; `bug` changes what it writes."""

    def __init__(self, bug: Edit) -> None:
        self.bug = bug

    def compile(self, program: Program) -> KernelCode:
        text = self.bug(str(program))
        parse_program(text)
        return KernelCode(program.name, text.encode())

    def submit(self, program: Program) -> Future[KernelCode]:
        done: Future[KernelCode] = Future()
        done.set_result(self.compile(program))
        return done


class Rule(board.Anything):
    name = "planted"

    def __init__(self, plan: Callable[[Schedule], None]) -> None:
        self.plan = plan

    def offer(self, program: Program, machine: Any) -> Any:
        from weft.scheduling.rule import Offer

        return Offer(1.0)

    def apply(self, schedule: Schedule) -> None:
        self.plan(schedule)


@dataclass
class Planted:
    """What a target "planted" does wrong: in its emitter (`code`: text → text), its schedules (`schedule`), and in
    passes of a plugin."""

    code: Edit = str
    schedule: Callable[[Schedule], None] = lambda s: None
    graph_passes: Sequence[GraphPass] = ()
    loop_passes: Sequence[LoopPass] = ()
    version: str = field(default_factory=lambda: secrets.token_hex(8))

    def plugin(self) -> SimpleNamespace:
        bug = self

        class Kind(board.Board):
            name: ClassVar[str] = "planted"
            options: ClassVar[type] = Options

            def codegen(self, target: Target) -> Text:
                return Text(bug.code)

            def device(self, target: Target) -> str:
                return "planted"

            def fingerprint(self, target: Target) -> str:
                return bug.version  # what one wrote to the cache is nothing for another

        def mine(given: Sequence[Any]) -> Callable[[Target], Sequence[Any]]:
            def hook(target: Target) -> Sequence[Any]:
                return given if target.kind == "planted" else []

            return hookimpl(hook)

        @hookimpl
        def targets() -> Sequence[TargetKind]:
            return [Kind()]

        @hookimpl
        def devices() -> Sequence[DeviceKind]:
            return [DeviceKind("planted", lambda: None, board.Interpreter)]

        return SimpleNamespace(
            targets=targets,
            devices=devices,
            schedules=mine([Rule(self.schedule)]),
            graph_passes=mine(self.graph_passes),
            loop_passes=mine(self.loop_passes),
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        with registered(self.plugin(), "planted"):
            yield

    def verify(self, graph: Graph, inputs: dict[str, Any], target: str = "planted", **options: Any) -> Verification:
        with self.installed():
            return verify(graph, inputs, target, **options)


def verify(
    graph: Graph,
    inputs: dict[str, Any],
    target: str,
    against: str | Engine | None = None,
    bound: Bound | None = None,
    **options: Any,
) -> Verification:
    other = compiled(graph, against) if isinstance(against, str) else against
    return Verifier(graph, compiled(graph, target), other, inputs, bound or Bound(), **options).run()


def compiled(graph: Graph, target: str) -> Compiled:
    return Compiled(target, resolve_targets(target), compile(graph, target, cache=False))


# -- a model, and ways to be wrong ------------------------------------------------------------------------------------


@dataclass
class Model:
    """Three layers; the second's last node is a subtraction, and so is nothing else."""

    batch: Any = 3
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder("three"))

    def build(self) -> Graph:
        b = self.builder
        x, z = b.input("x", tensor_type("float32", (self.batch, 6))), b.input("z", tensor_type("float32", (4,)))
        for k, width in enumerate((5, 4, 3)):
            with b.named(f"layer{k}/product"):
                x = b.add(MatMul(), x, self.weight(f"w{k}", int(x.shape[1]), width), name=f"product{k}")
            with b.named(f"layer{k}/bias"):
                x = (
                    b.add(Subtract(), x, z, name="bias1")
                    if k == 1
                    else b.add(Add(), x, self.weight(f"b{k}", width), name=f"bias{k}")
                )
            with b.named(f"layer{k}/end"):
                x = b.add(Softmax() if k == 2 else Relu(), x, name=f"end{k}")
        b.output(x, "y")
        return b.build()

    def weight(self, name: str, *shape: int) -> Value:
        return self.builder.constant(
            np.random.default_rng(sum(map(ord, name))).standard_normal(shape).astype(np.float32), name
        )  # type: ignore[no-any-return]


def model(batch: Any = 3) -> Graph:
    return Model(batch).build()


def given(rows: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {"x": random.standard_normal((rows, 6)).astype(np.float32), "z": -random.random(4).astype(np.float32)}


def subtract_adds(graph: Graph) -> Graph:
    """A pass that is wrong: what is subtracted is added."""

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Any:
        return r.add(Add(), *inputs) if isinstance(node.op, Subtract) else None

    return rewrite(graph, rule)


__all__ = ["Model", "Planted", "compiled", "given", "model", "subtract_adds", "verify"]
