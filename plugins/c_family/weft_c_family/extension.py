"""Intrinsics that need more of a kernel than a template in its dialect: parameters and declarations of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping

from weft.expr.nodes import Expr
from weft.loop.nodes import IntrinsicCall, Load


class Extension(ABC):
    """What a language has in kernels that call certain intrinsics, and in no others.

    Attributes:
        top: declarations at the top of such a kernel, and what all its threads do there.
    """

    top: tuple[str, ...]

    @property
    @abstractmethod
    def intrinsics(self) -> frozenset[str]:
        """The names of these intrinsics; each is a statement."""

    @property
    @abstractmethod
    def instead(self) -> Mapping[str, str]:
        """Statements of other intrinsics in such a kernel, in place of those of `Dialect.intrinsics`."""

    @property
    @abstractmethod
    def entries(self) -> tuple[str, ...]:
        """Every text that is written, as templates: no variable is called as a word of them."""

    @abstractmethod
    def argument(self, call: IntrinsicCall) -> tuple[Hashable, str]:
        """What a call asks of the caller of the kernel, for which there is one parameter, and the stem of its name."""

    @abstractmethod
    def parameter(self, name: str) -> str:
        """The declaration of such a parameter, behind the kernel's others."""

    @abstractmethod
    def operands(self, call: IntrinsicCall) -> tuple[Expr, ...]:
        """The formulas that the statement contains."""

    @abstractmethod
    def statement(
        self, call: IntrinsicCall, name: str, address: Callable[[Load], str], value: Callable[[Expr], str]
    ) -> str:
        """The statement of a call.

        Args:
            name: of the parameter for its argument.
            address: the address of an element, as text.
            value: a formula as text, to stand between commas.
        """
