"""What an executable is made of, as data: the manifest and the plan in it. Read from JSON with every field checked."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from weft_runtime.abi import ABI_VERSION, ByteOrder
from weft_runtime.cpu_features import byte_order
from weft_runtime.dtypes import dtype
from weft_runtime.errors import ArchiveError, ExecutionError
from weft_runtime.plan_json import Reader, Writer, section_data
from weft_runtime.plan_steps import ANY as ANY
from weft_runtime.plan_steps import HOST as HOST
from weft_runtime.plan_steps import SEQUENCE as SEQUENCE
from weft_runtime.plan_steps import STEPS as STEPS
from weft_runtime.plan_steps import Branch as Branch
from weft_runtime.plan_steps import Condition as Condition
from weft_runtime.plan_steps import ConstantInfo as ConstantInfo
from weft_runtime.plan_steps import Copy as Copy
from weft_runtime.plan_steps import DataSymbol as DataSymbol
from weft_runtime.plan_steps import DeviceCall as DeviceCall
from weft_runtime.plan_steps import HostCall as HostCall
from weft_runtime.plan_steps import Launch as Launch
from weft_runtime.plan_steps import Native as Native
from weft_runtime.plan_steps import ObjectInfo as ObjectInfo
from weft_runtime.plan_steps import Place as Place
from weft_runtime.plan_steps import PlaceKind as PlaceKind
from weft_runtime.plan_steps import Plan as Plan
from weft_runtime.plan_steps import Repeat as Repeat
from weft_runtime.plan_steps import SectionInfo as SectionInfo
from weft_runtime.plan_steps import Step as Step
from weft_runtime.plan_steps import TensorInfo as TensorInfo

FORMAT_VERSION = 7
"""2: the weights' hash is that of their pieces' hashes, and tasks know their thread. Code of 1 cannot share a pool with
it, and is not read. 3: plans have several steps, on several devices. 4: steps that are host functions, branches and
loops; values that are no tensors. 5: the worker pool is the runtime's; code sections carry the manifest's signature. 6:
sizes are postfix code over numbered symbols (`names`). 7: archives begin with the plan as the C runtime reads it
(`plan_words`).

`loops` came later; what does not know it, or lacks it, runs the same plan without."""


@dataclass(frozen=True)
class Manifest:
    """Everything about an executable but its code and weights.

    Attributes:
        target: the resolved target string.
        machine: what the native code is for, as `cpu_features.machine` names it: the architecture by LLVM's name
            ("x86_64", "aarch64", "arm", …), and "-windows" behind it where arguments are passed as Windows does; `ANY`
            if there is none.
        features: CPU features (LLVM's names) that the code needs.
        values: what steps hand on to one another, without inputs and outputs.
        symbols: sizes of the plan that data say.
        plans: what branches and loops run.
        parallel: whether the native code has parallel loops, which the process's worker pool runs.
        loops: the code section that runs iterations of loops, if any; without it the runtime starts each iteration.
        arena: the size of the native arenas as text, for people.
        threads: threads that the target string asked for; None: as many as the process may use.
        weights: sha256 and size of the weights section, if there are constants; set when it is written.
    """

    name: str
    target: str
    machine: str
    features: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    steps: tuple[Step, ...]
    sections: Mapping[str, SectionInfo] = field(default_factory=dict)
    constants: tuple[ConstantInfo, ...] = ()
    values: tuple[TensorInfo, ...] = ()
    symbols: tuple[DataSymbol, ...] = ()
    plans: tuple[Plan, ...] = ()
    parallel: bool = False
    loops: str | None = None
    arena: str = "0"
    threads: int | None = None
    weights: SectionInfo | None = None
    weft: str = ""
    format: int = FORMAT_VERSION

    def with_(self, **changes: Any) -> Manifest:
        return replace(self, **changes)

    def of_plan(self, number: int) -> Manifest:
        """The manifest as if one of its plans were its own, which may run those before it."""
        p = self.plans[number]
        parts = replace(
            self,
            inputs=p.inputs,
            outputs=p.outputs,
            steps=p.steps,
            values=p.values,
            symbols=p.symbols,
            plans=self.plans[:number],
        )
        return parts.with_(name=f"{self.name}, plan {number}")

    @property
    def byte_order(self) -> ByteOrder:
        """Of numbers in the memory of the machine. Weights of an archive are little-endian in any case."""
        return byte_order(self.machine)

    @property
    def single(self) -> bool:
        """Whether the plan is one native step over the model's own inputs and outputs."""
        if len(self.steps) != 1 or not isinstance(self.steps[0], Native):
            return False
        step = self.steps[0]
        return step.inputs == tuple(i.name for i in self.inputs) and step.outputs == tuple(o.name for o in self.outputs)

    def runs_natively(self, step: Repeat) -> bool:
        """Whether native code runs the iterations of a loop, from the second on, as long as sizes stay what they are:
        its body is one native step."""
        if self.loops is None or SEQUENCE in (*step.item_axes, *step.result_axes):
            return False
        if step.body >= len(self.plans) or not self.of_plan(step.body).single:
            return False
        body = self.plans[step.body]
        # Native code reads what an iteration gave as what the next one takes, without a look at its type.
        pairs = zip(body.inputs[1 : 1 + step.carried], body.outputs[step.tests :])
        told = not step.tests or body.outputs[0].dtype == "bool"
        return told and all(
            taken.dtype == given.dtype and len(taken.shape) == len(given.shape) for taken, given in pairs
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the plan needs beside the host, in order of first use."""
        return tuple(dict.fromkeys(s.device for s in self.steps if isinstance(s, DeviceCall)))

    def trouble(self) -> str | None:
        """What is wrong with the plans: names that nothing has, values that are not where a step looks for them. None
        if all is well."""
        for number, plan in enumerate(self.plans):
            found = self.of_plan(number)._trouble()
            if found is None and any(isinstance(s, (Copy, DeviceCall)) for s in plan.steps):
                found = "what branches and loops run is on the host"
            if found is not None:
                return f"plan {number}: {found}"
        return self._trouble()

    def _trouble(self) -> str | None:
        known = {t.name for t in (*self.inputs, *self.values, *self.outputs)}
        there = {(HOST, t.name) for t in self.inputs}
        twice = [
            n for n, count in Counter(t.name for t in (*self.inputs, *self.values, *self.outputs)).items() if count > 1
        ]
        if twice and not self.single:
            return f"two values are called '{twice[0]}'"
        integers = {t.name for t in (*self.inputs, *self.values, *self.outputs) if dtype(t.dtype).is_integer}
        integers -= {t.name for t in (*self.inputs, *self.values, *self.outputs) if isinstance(t, ObjectInfo)}
        lost = [s.value for s in self.symbols if s.value not in integers]
        if lost:
            return (
                f"a size is read from '{lost[0]}', which is no value of"
                f" {'integers' if lost[0] in known else 'the plan'}"
            )
        for number, step in enumerate(self.steps):
            if isinstance(step, Copy):
                found = self._copy_trouble(step, known, there)
                there.add((step.target, step.value))
            elif isinstance(step, (HostCall, Branch, Repeat)):
                found = self._host_trouble(step, known, there)
                there.update((HOST, n) for n in step.outputs)
            else:
                found = self._kernel_trouble(step, known, there)
                place = HOST if isinstance(step, Native) else step.device
                there.update((place, n) for n in step.outputs)
            if found is not None:
                return f"step {number} {found}"
        unmade = [o.name for o in self.outputs if (HOST, o.name) not in there]
        return f"no step gives the output '{unmade[0]}'" if unmade else None

    def _copy_trouble(self, step: Copy, known: Set[str], there: Set[tuple[str, str]]) -> str | None:
        if step.value not in known:
            return f"copies '{step.value}', which is no value of the plan"
        if (step.source, step.value) not in there:
            return f"copies '{step.value}' from {step.source}, where nothing has put it"
        if step.target not in {HOST, *self.devices} or (step.source == HOST) == (step.target == HOST):
            between = "copies are between the host and a device that a step runs on"
            return f"copies '{step.value}' from {step.source} to {step.target}: {between}"
        return None

    def _host_trouble(
        self, step: HostCall | Branch | Repeat, known: Set[str], there: Set[tuple[str, str]]
    ) -> str | None:
        lost = [n for n in step.outputs if n and n not in known]
        if lost:
            return f"names '{lost[0]}', which is no value of the plan"
        constants = {c.name for c in self.constants}
        late = [n for n in step.inputs if n and n not in constants and (HOST, n) not in there]
        if late:
            return f"needs '{late[0]}' on {HOST}, where nothing has put it"
        return self._misfit(step)

    def _kernel_trouble(self, step: Native | DeviceCall, known: Set[str], there: Set[tuple[str, str]]) -> str | None:
        place = HOST if isinstance(step, Native) else step.device
        entries = {step.entry} if isinstance(step, Native) else {launch.kernel for launch in step.launches}
        section = self.sections.get(step.section)
        missing = sorted(entries if section is None else entries - set(section.entries))
        if missing:
            return f"names {step.section}:{missing[0]}, which no section has"
        lost = [n for n in (*step.inputs, *step.outputs) if n not in known]
        if lost:
            return f"names '{lost[0]}', which is no value of the plan"
        late = [n for n in step.inputs if (place, n) not in there]
        if late:
            return f"needs '{late[0]}' on {place}, where nothing has put it"
        if isinstance(step, Native):
            wanted = list(step.constants)
        else:
            wanted = [p.name for p in step.places if p.where == "constant"]
            own = (*step.inputs, *step.outputs)
            foreign = [p.name for p in step.places if p.where == "value" and p.name not in own]
            if foreign:
                return f"uses '{foreign[0]}', which is neither its input nor its output"
        constants = {c.name for c in self.constants}
        lost = [n for n in wanted if n not in constants]
        return f"names '{lost[0]}', which is no constant of the plan" if lost else None

    def _misfit(self, step: HostCall | Branch | Repeat) -> str | None:
        """How a step does not fit what it runs; None if it does."""
        if isinstance(step, HostCall):
            from weft_runtime.host import find

            try:
                return find(step.function).trouble(step.attributes)
            except ExecutionError as error:
                return error.what
        numbers = (step.then, step.orelse) if isinstance(step, Branch) else (step.body,)
        lost = [n for n in numbers if n >= len(self.plans)]
        if lost:
            return f"runs plan {lost[0]}, which is not before it"
        plans = [self.plans[n] for n in numbers]
        if isinstance(step, Branch):
            takes = 1 + sum(len(p.inputs) for p in plans)
            gives = {len(p.outputs) for p in plans}
        else:
            if len(step.item_axes) != len(step.item_backward) or len(step.result_axes) != len(step.result_backward):
                return "does not say of every item whether it goes backward"
            if len(plans[0].inputs) < 1 + step.carried + len(step.item_axes):
                return f"runs plan {numbers[0]}, which takes fewer values than the loop has"
            takes = 1 + len(plans[0].inputs)
            gives = {len(plans[0].outputs) - step.tests}
        wanted = len(step.outputs) if isinstance(step, Branch) else step.carried + len(step.result_axes)
        if len(step.inputs) != takes or gives != {wanted} or len(step.outputs) != wanted:
            return f"has {len(step.inputs)} inputs and {len(step.outputs)} outputs, which are not those of what it runs"
        return None

    def signature(self) -> bytes:
        """32 bytes by which code knows the manifest that it was made for: all of it counts, but the hashes of the
        sections that carry the signature."""
        bare = {name: replace(s, sha256="", bytes=0) for name, s in self.sections.items()}
        return hashlib.sha256(b"weft abi %d\n" % ABI_VERSION + self.with_(sections=bare).to_json()).digest()

    # -- text
    def plan(self) -> str:
        """The steps, for people."""
        head = f"{self.name}({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        narrow = Counter(c.dtype for c in self.constants if dtype(c.dtype).is_float and dtype(c.dtype).bits < 32)
        stored = f" ({', '.join(f'{n} of {name}' for name, n in sorted(narrow.items()))})" if narrow else ""
        facts = f"target {self.target!r}, {len(self.constants)} constants{stored}, arena {self.arena} bytes"
        lines = [head, facts, *self._shown(self.steps)]
        for number, plan in enumerate(self.plans):
            lines.append(f"plan {number}({', '.join(map(str, plan.inputs))}) -> ({', '.join(map(str, plan.outputs))})")
            lines += self._shown(plan.steps)
        return "\n".join(lines)

    def _shown(self, steps: Sequence[Step]) -> list[str]:
        natively = [isinstance(s, Repeat) and self.runs_natively(s) for s in steps]
        return [
            f"step {i}: {step}{', its trips in native code' if native else ''}"
            for i, (step, native) in enumerate(zip(steps, natively))
        ]

    # -- JSON
    def to_json(self) -> bytes:
        """Raises ArchiveError if a size of a device step is no formula that an archive can hold."""
        sizes = Writer()
        data: dict[str, Any] = {
            "format": self.format,
            "weft": self.weft,
            "name": self.name,
            "target": self.target,
            "machine": self.machine,
            **({"byte_order": self.byte_order} if self.byte_order != "little" else {}),
            "features": list(self.features),
            **sizes.plan(self),
            "plans": [sizes.plan(p) for p in self.plans],
            "names": list(sizes.numbers),
            "sections": {name: section_data(s) for name, s in self.sections.items()},
            "constants": [{"name": c.name, "dtype": c.dtype, "shape": c.shape} for c in self.constants],
            "parallel": self.parallel,
            "loops": self.loops,
            "arena": self.arena,
            "threads": self.threads,
            "weights": section_data(self.weights) if self.weights else None,
        }
        return json.dumps(data, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """The manifest, every field checked.

        Raises:
            ArchiveError: not a manifest, or one of a newer format.
        """
        try:
            data = json.loads(text)
            if b"\\ud" in text.lower():
                json.dumps(
                    data, ensure_ascii=False
                ).encode()  # half of a surrogate pair is no text that could be shown or saved
        except (ValueError, RecursionError) as error:
            raise ArchiveError(f"{where} has an unreadable manifest", why=str(error)) from None
        reader = Reader(where)
        root = reader.mapping(data, "manifest")
        version = reader.integer(root.get("format"), "format", 1)
        if version < FORMAT_VERSION:
            raise ArchiveError(
                f"{where} was written by an older Weft",
                why=f"its format is {version}, this Weft reads {FORMAT_VERSION}",
                hint="compile the model again",
            )
        if version > FORMAT_VERSION:
            raise ArchiveError(
                f"{where} was written by a newer Weft",
                why=f"its format is {version}, this Weft reads up to {FORMAT_VERSION}",
                hint="upgrade weft",
            )
        reader.names = reader.symbols(root.get("names"), "names")
        machine, order = reader.text(root.get("machine"), "machine"), root.get("byte_order", "little")
        if order != byte_order(machine):
            raise ArchiveError(
                f"{where} says of {machine} what is not so", why=f"its byte order is {byte_order(machine)}, not {order}"
            )
        return cls(
            name=reader.text(root.get("name"), "name"),
            target=reader.text(root.get("target"), "target"),
            machine=machine,
            features=reader.texts(root.get("features"), "features"),
            **vars(reader.plan(root, "")),
            plans=tuple(
                reader.plan(reader.mapping(p, f"plans[{i}]"), f"plans[{i}].")
                for i, p in enumerate(reader.sequence(root.get("plans"), "plans"))
            ),
            sections={
                name: reader.section(s, f"sections[{name}]")
                for name, s in reader.mapping(root.get("sections"), "sections").items()
            },
            constants=tuple(
                reader.constant(c, f"constants[{i}]")
                for i, c in enumerate(reader.sequence(root.get("constants"), "constants"))
            ),
            parallel=reader.flag(root.get("parallel"), "parallel"),
            loops=None if root.get("loops") is None else reader.text(root["loops"], "loops"),
            arena=reader.text(root.get("arena"), "arena"),
            threads=None if root.get("threads") is None else reader.integer(root["threads"], "threads", 1, 4096),
            weights=None if root.get("weights") is None else reader.section(root["weights"], "weights"),
            weft=reader.text(root.get("weft"), "weft"),
            format=version,
        )
