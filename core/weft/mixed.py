"""One compilation for several targets: where each node goes, each region by its own target, copies between their
memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.assemble import stored_bytes
from weft.codegen.base import THREADS
from weft.compilation import Compilation, value_info, without_collector
from weft.expr.nodes import Const, Expr, substitute
from weft.graph.assumptions import assumptions, limits
from weft.graph.control import If, Loop
from weft.graph.host import HostOperator
from weft.graph.nodes import Graph, Node, Value
from weft.graph.region import Region
from weft.machine import GLOBAL_ALIGN
from weft.outlines import Outline as Outline
from weft.outlines import PlacedCompilation
from weft.outlines import multiply_adds as multiply_adds
from weft.outlines import seconds_on as seconds_on
from weft.outlines import unique_name as unique_name
from weft.passes.place import STEP
from weft.plugins import host
from weft_runtime.executable import Executable, NativeCode
from weft_runtime.formulas import formula
from weft_runtime.plan import (
    HOST,
    SEQUENCE,
    Branch,
    Condition,
    Copy,
    DataSymbol,
    DeviceCall,
    HostCall,
    Launch,
    Place,
    Plan,
    Repeat,
    Step,
)


class MixedCompilation(PlacedCompilation):
    """A compilation in progress and, after `run`, its record for `weft inspect`."""

    def run(self, graph: Graph) -> Executable:
        """A verified graph through every stage.

        Raises:
            UnsupportedError: a node that no target takes, or with `strict` the first target does not take; lists each
                with the reasons.
        """
        with without_collector():
            outline = self.outline(graph)
            plan = _Plan(outline)
            plan.add_all()
            return plan.build(outline.graph)


class _Plan:
    """The steps so far, and where values are."""

    def __init__(self, outline: Outline, around: _Plan | None = None) -> None:
        self.outline = outline
        self.compilation = outline.compilation
        self.by_kind = {t.target.kind: t for t in self.compilation.targets}
        self.steps: list[Step] = []
        self.there: dict[str, list[str]] = {}  # value → places, the first is where it was made
        # What plans of one executable share.
        self.code: dict[str, NativeCode] = around.code if around else {}
        self.constants: dict[str, Any] = around.constants if around else {}
        # (its data, layout) → name, and the data, which stay the only ones of this id
        self.stored: dict[tuple[int, str], tuple[str, Any]] = around.stored if around else {}
        self.arenas: list[str] = around.arenas if around else []
        self.plans: list[Plan] = around.plans if around else []

    def add_all(self) -> None:
        """The steps of every region."""
        for number, node in enumerate(self.outline.graph.nodes):
            self.add(number, node)

    def add(self, number: int, node: Node) -> None:
        """The steps of a region."""
        region = node.op
        assert isinstance(region, Region)
        if region.target == STEP:
            for v in node.inputs:
                if v is not None:
                    self.bring(v.name, HOST)
            self.alone(region.body, self.outline.bodies[number])
            self.there.update({v.name: [HOST] for v in node.outputs})
            return
        target = self.by_kind[region.target]
        one = self.compilation.region(target) if target.native else self.compilation.optimized(target, region.body)[0]
        self.compilation.regions.append(one)
        place = HOST if target.native else target.device
        inputs, outputs = [v.name for v in node.inputs if v is not None], [v.name for v in node.outputs]
        section = self.outline.section(number)
        if target.native:
            for name in inputs:
                self.bring(name, HOST)
            segment = one.segment(region.body)
            self.code[section] = segment.sections["main"]
            constants = [self.constant(one, section, v, segment.constants[v.name]) for v in segment.assembly.constants]
            self.steps.append(segment.step(section, inputs, outputs, constants))
            self.arenas.append(str(segment.assembly.spec.arena_bytes))
        else:
            call = self._device(one, region.body, target.device, section, inputs, outputs)
            for name in call.inputs:
                self.bring(name, place)
            self.steps.append(call)
        self.there.update({name: [place] for name in outputs})

    def alone(self, body: Graph, runs: Sequence[Outline]) -> None:
        """A region of one node, which is a step by itself."""
        (node,) = body.nodes
        op, used = node.op, {v.name for v in body.outputs}
        inputs, outputs = (
            tuple(self._operand(v) for v in node.inputs),
            tuple(v.name if v.name in used else "" for v in node.outputs),
        )
        if isinstance(op, If):
            then, orelse = (self.plan(o) for o in runs)
            self.steps.append(Branch(then, orelse, inputs, outputs))
        elif isinstance(op, Loop):
            course = (op.carried, op.tests, op.item_axes, op.item_backward, op.result_axes, op.result_backward)
            self.steps.append(Repeat(self.plan(runs[0]), inputs, outputs, *course))
            if SEQUENCE not in (*op.item_axes, *op.result_axes) and [s.kind for s in self.plans[-1].steps] == [
                "native"
            ]:
                self.loops()
        else:
            assert isinstance(op, HostOperator)
            self.steps.append(HostCall(op.operator_name, inputs, outputs, op.plain()))

    def loops(self) -> None:
        """What runs the iterations of loops becomes a section, if the host's target has it."""
        host_ = self.compilation.targets[-1]
        if "loops" not in self.code:
            with host_.blame("to make what runs loops"):
                code = host_.kind.loops(host_.target)
            if code is not None:
                self.code["loops"] = code

    def _operand(self, value: Value | None) -> str:
        """What a step calls a value: its name, or that of a constant."""
        if value is None or value.constant is None:
            return "" if value is None else value.name
        name, _ = self.stored.setdefault(
            (id(value.constant), "None"), (f"{self.outline.prefix}{len(self.steps)}.{value.name}", value.constant)
        )
        self.constants.setdefault(name, value.constant)
        return name

    def plan(self, outline: Outline) -> int:
        """The number of the plan of what a branch or a loop runs."""
        inner = _Plan(outline, self)
        inner.add_all()
        self.plans.append(inner.finished(outline.graph))
        return outline.number

    def finished(self, graph: Graph) -> Plan:
        """The steps as a plan of its own."""
        for value in graph.outputs:
            self.bring(value.name, HOST)
        made = {n for s in self.steps for n in getattr(s, "outputs", ())}
        known = {v.name for v in (*graph.inputs, *graph.outputs)}
        between = tuple(value_info(v.name, v.type) for v in graph.values() if v.name in made and v.name not in known)
        inputs, outputs = (tuple(value_info(v.name, v.type) for v in vs) for vs in (graph.inputs, graph.outputs))
        whole = len(self.steps) == 1 and self.steps[0].kind == "native"
        symbols = () if whole else tuple(DataSymbol(name, s.value.name, s.index) for name, s in graph.symbols.items())
        return Plan(inputs, outputs, tuple(self.steps), between if not whole else (), symbols)

    def constant(self, one: Compilation, section: str, value: Value, packed: Any) -> str:
        """The name of a constant in the plan; what several sections read alike of the model's is there once."""
        name = f"{section}.{value.name}"
        if id(value) not in one.made:
            name, _ = self.stored.setdefault((id(value.constant), str(value.tensor.layout)), (name, value.constant))
        self.constants.setdefault(name, packed)
        return name

    def bring(self, name: str, place: str) -> None:
        """Copies until a value is at `place`; copies between devices go over the host."""
        places = self.there.setdefault(name, [HOST])
        for stop in (HOST, place):
            if place not in places and stop not in places:
                self.steps.append(Copy(name, places[0], stop) if stop == HOST else Copy(name, HOST, stop))
                places.append(stop)

    def _device(
        self, one: Compilation, body: Graph, device: str, section: str, inputs: Sequence[str], outputs: Sequence[str]
    ) -> DeviceCall:
        assumed = assumptions(body)
        _, grouped = self.compilation.optimized(one.target, body)
        assumed += limits(grouped)
        places: list[Place] = []
        index: dict[int, int] = {}
        names = dict(zip([id(v) for v in (*grouped.inputs, *grouped.outputs)], [*inputs, *outputs]))
        launches = []
        with one.kernels_and_weights(grouped) as (uses, weights):
            memory = one.memory(grouped, uses)
            by_name = {v.name: v for v in grouped.values()}

            def number(value: Value) -> int:
                root = by_name[memory.aliases[value.name]] if value.name in memory.aliases else value
                if id(root) not in index:
                    index[id(root)] = len(places)
                    if id(root) in names:
                        places.append(Place("value", names[id(root)]))
                    elif root.constant is not None:
                        places.append(Place("constant", self.constant(one, section, root, weights[root])))
                    else:
                        places.append(
                            Place("arena", offset=_text(memory.offsets[root.name]), bytes=_text(stored_bytes(root)))
                        )
                return index[id(root)]

            for node in grouped.nodes:
                use = uses.get(id(node))
                if use is None:
                    continue
                buffers = [number(v) for v in (*node.inputs, *node.outputs) if v is not None]
                for at, size in zip(memory.scratch.get(node.outputs[0].name, ()), use.scratch, strict=True):
                    buffers.append(len(places))
                    places.append(Place("arena", offset=_text(at), bytes=_text(size)))
                launches.append(Launch(use.kernel, tuple(buffers), tuple(_text(d) for d in use.dims)))
            used = {launch.kernel for launch in launches}
            codes = {
                name: kernel.code for name, kernel in one.kernels.items() if name in used and kernel.code is not None
            }
            with one.target.blame("to make one section of its kernels"):
                self.code[section] = one.target.kind.image(one.target.target, codes)
        conditions = tuple(
            Condition(str(_text(a.holds)), a.what, a.hint, tuple(_text(x) for x in a.args)) for a in assumed
        )
        read = {p.name for p in places if p.where == "value"}
        wanted = tuple(n for n in inputs if n in read)  # not those that only tell sizes: the plan knows sizes
        arena, declared = _text(memory.arena_bytes), one.target.machine.alignment()
        align = declared if declared > GLOBAL_ALIGN else 1
        return DeviceCall(
            device, section, wanted, tuple(outputs), tuple(places), tuple(launches), conditions, arena, align
        )

    def build(self, graph: Graph) -> Executable:
        targets = self.compilation.targets
        for value in graph.outputs:
            self.bring(value.name, HOST)
        for source in graph.symbols.values():
            self.bring(source.value.name, HOST)
        known = {v.name for v in (*graph.inputs, *graph.outputs)}
        between = [v for v in graph.values() if v.name not in known]
        return Executable.build(
            name=graph.name,
            target=", ".join(t.description for t in targets),
            inputs=[value_info(v.name, v.type) for v in graph.inputs],
            outputs=[value_info(v.name, v.type) for v in graph.outputs],
            values=[value_info(v.name, v.type) for v in between],
            symbols=[DataSymbol(name, s.value.name, s.index) for name, s in graph.symbols.items()],
            plans=self.plans,
            code=self.code,
            steps=self.steps,
            constants=self.constants,
            loops="loops" if "loops" in self.code else None,
            arena=" + ".join(self.arenas) or "0",
            threads=targets[-1].threads,
            weft=host().api_version,
        )


def _text(e: Expr | int) -> int | str:
    """A formula as a manifest has it; a device has one thread's scratch.

    Raises:
        ArchiveError: it is none that a manifest can say.
    """
    if isinstance(e, int):
        return e
    e = substitute(e, {THREADS.name: 1})
    if isinstance(e, Const):
        return int(e.value)
    formula(str(e))
    return str(e)
