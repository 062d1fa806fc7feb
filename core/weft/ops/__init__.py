"""The operators. To add one: a class in the file of its family, with its name in that file's __all__."""

from weft.graph.operator import Operator
from weft.ops import (
    activation,
    arithmetic,
    attention,
    bitwise,
    checking,
    comparison,
    contraction,
    control,
    elementwise,
    host,
    image,
    indexing,
    linear_algebra,
    loss,
    movement,
    normalization,
    quantization,
    random,
    recurrent,
    reduction,
    scanning,
    signal,
    sorting,
    transcendental,
    trees,
    window,
    winograd,
)
from weft.ops.activation import *  # noqa: F403
from weft.ops.arithmetic import *  # noqa: F403
from weft.ops.attention import *  # noqa: F403
from weft.ops.bitwise import *  # noqa: F403
from weft.ops.checking import *  # noqa: F403
from weft.ops.comparison import *  # noqa: F403
from weft.ops.contraction import *  # noqa: F403
from weft.ops.control import *  # noqa: F403
from weft.ops.elementwise import *  # noqa: F403
from weft.ops.host import *  # noqa: F403
from weft.ops.image import *  # noqa: F403
from weft.ops.indexing import *  # noqa: F403
from weft.ops.linear_algebra import *  # noqa: F403
from weft.ops.loss import *  # noqa: F403
from weft.ops.movement import *  # noqa: F403
from weft.ops.normalization import *  # noqa: F403
from weft.ops.quantization import *  # noqa: F403
from weft.ops.random import *  # noqa: F403
from weft.ops.recurrent import *  # noqa: F403
from weft.ops.reduction import *  # noqa: F403
from weft.ops.scanning import *  # noqa: F403
from weft.ops.signal import *  # noqa: F403
from weft.ops.sorting import *  # noqa: F403
from weft.ops.transcendental import *  # noqa: F403
from weft.ops.trees import *  # noqa: F403
from weft.ops.window import *  # noqa: F403
from weft.ops.winograd import *  # noqa: F403

_FAMILIES = (
    activation,
    arithmetic,
    attention,
    bitwise,
    checking,
    comparison,
    contraction,
    elementwise,
    image,
    indexing,
    linear_algebra,
    loss,
    movement,
    normalization,
    quantization,
    random,
    recurrent,
    reduction,
    scanning,
    signal,
    sorting,
    transcendental,
    trees,
    window,
    winograd,
)

ALL_OPERATORS: tuple[type[Operator], ...] = tuple(
    value for family in _FAMILIES for name in family.__all__ if isinstance(value := getattr(family, name), type) and issubclass(value, Operator)
)

# What is no kernel but a step of a plan: values that are no tensors of numbers, and control flow.
HOST_OPERATORS: tuple[type[Operator], ...] = (
    *(value for name in host.__all__ if isinstance(value := getattr(host, name), type) and value is not host.HostOperator), control.If, control.Loop
)  # fmt: skip
