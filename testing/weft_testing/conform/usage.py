"""What a target's rules and intrinsics do in the kernels that are launched: launches and multiply-adds, counted on the
scheduled programs.

A multiply-add is a product of two elements that is added to a sum. Those in a block that an intrinsic has taken the
place of are the intrinsic's, as many as its meaning has; those in any other block are plain loops'. Padding that is
multiplied counts: it is what the kernel executes, not what the model asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.compilation import Kernel
from weft.expr.nodes import Cast, Expr, Mul, Var, const, mul, substitute, walk
from weft.loop.nodes import Block, Buffer, Evaluate, IntrinsicCall, Load, Program, Stmt, Store, stmt_exprs, walk_stmts
from weft.loop.printer import print_buffer
from weft.loop.work import Executed, executions, statements
from weft.scheduling.intrinsic import Call, Intrinsic
from weft.scheduling.primitives.tensorize import ANNOTATION
from weft.scheduling.rule import Rule
from weft.tensor.language import Read
from weft_runtime.executable import Executable
from weft_runtime.plan import DeviceCall, Native


@dataclass
class RuleUse:
    """What kernels of one schedule rule did.

    Attributes:
        kernels: how many distinct ones were launched.
        launches: how often they were.
        multiply_adds: that they executed.
        by_intrinsics: those of them that are in intrinsics.
        unknown: launches that have a number of multiply-adds that depends on data: `multiply_adds` has none of theirs.
    """

    kernels: int = 0
    launches: int = 0
    multiply_adds: float = 0.0
    by_intrinsics: float = 0.0
    unknown: int = 0


@dataclass
class IntrinsicUse:
    """Where one intrinsic stood.

    Attributes:
        dtypes: of its operands and its result, as text.
        launches: of kernels in which it stands.
        multiply_adds: that it executed.
        cases: kind of case ("whole", "ragged", "several") → [those in which it stood, those made for it].
    """

    dtypes: str = ""
    launches: int = 0
    multiply_adds: float = 0.0
    cases: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class Products:
    """Launches of one level of kernels that multiply and add, and those of them in which intrinsics do.

    Attributes:
        without: kernel with its shapes and its rule → launches in which no intrinsic multiplies, of a target that has
            such.
    """

    launches: int = 0
    by_intrinsics: int = 0
    without: dict[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Of the launches, those by intrinsics."""
        return self.by_intrinsics / self.launches if self.launches else 0.0


@dataclass
class Usage:
    """Of a run of the kit."""

    rules: dict[str, RuleUse] = field(default_factory=dict)
    intrinsics: dict[str, IntrinsicUse] = field(default_factory=dict)
    products: dict[int, Products] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: Iterable[Rule], intrinsics: Iterable[Intrinsic]) -> Usage:
        """Of what a target declares, before anything has run."""
        return cls({r.name: RuleUse() for r in rules}, {i.name: IntrinsicUse(dtypes_of(i)) for i in intrinsics})

    @property
    def multiply_adds(self) -> float:
        return sum(r.multiply_adds for r in self.rules.values())

    @property
    def unknown(self) -> int:
        """Launches whose multiply-adds are not among them."""
        return sum(r.unknown for r in self.rules.values())

    @property
    def share(self) -> float:
        """Of the multiply-adds, those in intrinsics."""
        return sum(r.by_intrinsics for r in self.rules.values()) / self.multiply_adds if self.multiply_adds else 0.0

    def __bool__(self) -> bool:
        return any(r.launches for r in self.rules.values())

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rules": {name: vars(r) for name, r in self.rules.items()},
            "intrinsics": {
                name: {
                    **vars(i),
                    "cases": {kind: {"used": used, "made": made} for kind, (used, made) in i.cases.items()},
                }
                for name, i in self.intrinsics.items()
            },
            "products": {str(level): vars(p) for level, p in sorted(self.products.items())},
        }


def dtypes_of(intrinsic: Intrinsic) -> str:
    """Its operands' dtypes and its result's, as "uint8 × int8 → int32"."""
    *operands, result = (str(t.dtype) for t in intrinsic.tensors)
    return f"{' × '.join(operands)} → {result}"


@dataclass(frozen=True)
class Counted:
    """Of a launch, or of several: multiply-adds in plain loops, and of each intrinsic that stands in the kernels.

    Attributes:
        multiplies: whether there are any, known or not.
        inside: whether some are in intrinsics.
        known: whether all are counted.
    """

    plain: float
    intrinsics: Mapping[str, float]
    multiplies: bool
    inside: bool
    known: bool = True

    @property
    def total(self) -> float:
        return self.plain + sum(self.intrinsics.values())

    @property
    def share(self) -> float | None:
        """Of the multiply-adds, those in intrinsics; None where there are none."""
        return 1 - self.plain / self.total if self.total else None

    @classmethod
    def sum(cls, launches: Iterable[tuple[Counted, int]]) -> Counted:
        """Of so many launches of each."""
        plain, found, multiplies, inside, known = 0.0, dict[str, float](), False, False, True
        for counted, times in launches:
            multiplies, inside, known = (
                multiplies or counted.multiplies,
                inside or counted.inside,
                known and counted.known,
            )
            plain += times * counted.plain
            for name, multiply_adds in counted.intrinsics.items():
                found[name] = found.get(name, 0.0) + times * multiply_adds
        return cls(plain, found, multiplies, inside, known)


def count(
    program: Program, intrinsics: Mapping[str, Intrinsic], dims: Mapping[str, int], lowered: Program | None = None
) -> Counted:
    """Of one launch of a scheduled program.

    Args:
        intrinsics: the target's, by name.
        dims: sizes of the program's dims; where one is missing, the intrinsics count as used, and no multiply-adds.
        lowered: the program after the loop passes, which may have put instructions of an intrinsic in the place of
            plain loops. The multiply-adds that loops then lack are that intrinsic's, of several theirs by how often
            their instructions are executed.
    """
    later = {} if lowered is None else {i.name: i for i in called(lowered, intrinsics.values())}
    plain, found = 0.0, dict.fromkeys((*_named(program), *later), 0.0)
    new = [i for name, i in later.items() if name not in _named(program) and is_product(i)]
    steps = executions(program, dims)
    left = None if lowered is None or not new else statements(lowered, dims)
    if steps is None or (new and left is None):
        inside = any(is_product(intrinsics[name]) for name in found if name in intrinsics)
        return Counted(
            0.0,
            found,
            inside or any(products_in(s) for s in walk_stmts(program.body) if isinstance(s, Store)),
            inside,
            False,
        )
    for e in steps:
        name = e.block.annotation(ANNOTATION)
        if name is None:
            plain += sum(times * products_in(store) for store, times in e.stores)
        elif str(name) in intrinsics:
            found[str(name)] += e.times * products_of(intrinsics[str(name)], e)
    if left is not None:
        taken = max(0.0, plain - sum(times * products_in(s) for s, times in left if isinstance(s, Store)))
        calls = {i.name: sum(times for s, times in left if _calls(s) & _instructions(i)) for i in new}
        for name, times in calls.items():
            found[name] = taken * times / (sum(calls.values()) or 1)
        plain -= sum(found[name] for name in calls)
    total = plain + sum(found.values())
    return Counted(plain, found, total > 0, total > plain)


def _named(program: Program) -> list[str]:
    names = (s.annotation(ANNOTATION) for s in walk_stmts(program.body) if isinstance(s, Block))
    return list(dict.fromkeys(str(n) for n in names if n is not None))


def called(program: Program, intrinsics: Iterable[Intrinsic]) -> Iterator[Intrinsic]:
    """Those whose instructions, which no other intrinsic has, a program calls."""
    names = {name for s in walk_stmts(program.body) for name in _calls(s)}
    known = [(i, _instructions(i)) for i in intrinsics]
    owners = Counter(name for _, own in known for name in own)
    for i, own in known:
        if any(name in names and owners[name] == 1 for name in own):
            yield i


def _calls(s: Stmt) -> set[str]:
    return {n.name for e in stmt_exprs(s) for n in walk(e) if isinstance(n, IntrinsicCall)}


def _instructions(intrinsic: Intrinsic) -> set[str]:
    codes = (intrinsic.compute, intrinsic.reset, intrinsic.update)
    return {*intrinsic.instructions, *(c.name for c in codes if isinstance(c, Call))}


def products_in(store: Store) -> float:
    """Multiply-adds of one execution of a store: products of two elements that it adds to what it stores to."""
    own = [n for n in walk(store.value) if isinstance(n, Load) and n.buffer.name == store.buffer.name]
    if not own:
        return 0.0
    found = {n for n in walk(store.value) if isinstance(n, Mul) and _multiplies(n, store.buffer.name)}
    return float(len(found) * store.value.dtype.lanes)


def _multiplies(product: Mul, target: str) -> bool:
    """Whether a product is of two elements, none of them of what the sum is."""
    sides = [e.value if isinstance(e, Cast) else e for e in (product.a, product.b)]
    if sides[0] == sides[1]:
        return False
    reads = [[n.buffer.name for n in walk(e) if isinstance(n, Load)] for e in sides]
    return all(names and target not in names for names in reads)


def is_product(intrinsic: Intrinsic) -> bool:
    """Whether it adds up products of its operands."""
    reduce = intrinsic.reduction
    return (
        reduce is not None
        and reduce.reducer.name == "sum"
        and any(isinstance(n, Mul) and _factors(n) for v in reduce.values for n in walk(v))
    )


def _factors(product: Mul) -> bool:
    return all(any(isinstance(n, Read) for n in walk(e)) for e in (product.a, product.b)) and product.a != product.b


def products_of(intrinsic: Intrinsic, executed: Executed) -> float:
    """Multiply-adds of one execution of a block that an intrinsic has taken the place of; of lengths that vary, on
    average."""
    if not is_product(intrinsic):
        return 0.0
    lengths = dict(zip(intrinsic.lengths, lengths_in(intrinsic, executed.block)))
    size: Expr = const(1)
    for _, n, _ in intrinsic.extents:
        size = mul(size, lengths.get(n.name, const(1)) if isinstance(n, Var) else n)
    return executed.mean(size) or 0.0


def lengths_in(intrinsic: Intrinsic, block: Block) -> Sequence[Expr]:
    """The lengths with which a block calls an intrinsic's instruction, its last arguments; none where it has none, or
    no call."""
    if not intrinsic.lengths:
        return ()
    calls = [
        s.call for s in walk_stmts(block.body) if isinstance(s, Evaluate) and len(s.call.args) >= len(intrinsic.lengths)
    ]
    return calls[0].args[-len(intrinsic.lengths) :] if calls else ()


def _described(kernel: Kernel, dims: Mapping[str, int]) -> str:
    """A launch of a kernel: its name, its shapes and its rule."""

    def shapes(buffers: Iterable[Buffer]) -> str:
        return ", ".join(print_buffer(replace(b, shape=tuple(substitute(d, sizes) for d in b.shape))) for b in buffers)

    sizes = {name: const(n) for name, n in dims.items()}
    return f"{kernel.name}({shapes(kernel.naive.inputs)}) -> ({shapes(kernel.naive.outputs)}), rule '{kernel.rule}'"


def launched(executable: Executable) -> Counter[str]:
    """Kernels by name, and how often one run launches each; bodies of branches and loops count once."""
    manifest = executable.manifest
    steps = [*manifest.steps, *(s for plan in manifest.plans for s in plan.steps)]
    found: Counter[str] = Counter()
    for s in steps:
        found.update(
            s.items
            if isinstance(s, Native)
            else [launch.kernel for launch in s.launches]
            if isinstance(s, DeviceCall)
            else ()
        )
    return found


def sizes_of(executable: Executable, inputs: Mapping[str, Any]) -> dict[str, int]:
    """What the symbols in the shapes of inputs are."""
    return {
        d: n
        for info in executable.inputs
        if info.name in inputs
        for d, n in zip(info.shape, inputs[info.name].shape)
        if isinstance(d, str)
    }


@dataclass
class Ledger:
    """Adds up what is launched, and remembers why rules did not take kernels.

    Attributes:
        level: whose checks run now.
        reasons: rule → why it did not take a kernel → how many kernels.
    """

    rules: Sequence[Rule]
    intrinsics: Mapping[str, Intrinsic]
    usage: Usage
    level: int = 0
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    _kernels: set[str] = field(default_factory=set)

    def add(self, kernel: Kernel, launches: int, dims: Mapping[str, int]) -> Counted:
        """So many launches of a kernel, all of the same sizes."""
        assert kernel.scheduled is not None
        counted = count(kernel.scheduled, self.intrinsics, dims, kernel.lowered)
        rule = self.usage.rules.setdefault(kernel.rule, RuleUse())
        if kernel.name not in self._kernels:
            self._kernels.add(kernel.name)
            rule.kernels += 1
            self._decline(kernel)
        rule.launches += launches
        rule.multiply_adds += launches * counted.total
        rule.by_intrinsics += launches * (counted.total - counted.plain)
        rule.unknown += launches * (counted.multiplies and not counted.known)
        for name, multiply_adds in counted.intrinsics.items():
            use = self.usage.intrinsics.setdefault(name, IntrinsicUse())
            use.launches += launches
            use.multiply_adds += launches * multiply_adds
        if counted.multiplies:
            products = self.usage.products.setdefault(self.level, Products())
            products.launches += launches
            products.by_intrinsics += launches * counted.inside
            if not counted.inside and any(is_product(i) for i in self.intrinsics.values()):
                what = _described(kernel, dims)
                products.without[what] = products.without.get(what, 0) + launches
        return counted

    def _decline(self, kernel: Kernel) -> None:
        declined = dict(kernel.declines)
        for rule in self.rules:
            if rule.name == kernel.rule:
                continue
            why = declined.get(rule.name) or f"'{kernel.rule}' offered less, or as much with a higher priority"
            self.reasons.setdefault(rule.name, Counter())[why] += 1

    def why_not(self, rule: str, most: int = 4) -> list[str]:
        """Why a rule did not take the kernels that there were, the most frequent reasons first."""
        return [f"{times} × {why}" for why, times in self.reasons.get(rule, Counter[str]()).most_common(most)]
