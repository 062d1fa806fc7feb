"""The operator library. To add an operator: a class in the file of its family, with its name in that file's __all__.

The operators that the core itself defines can be imported from here as well.
"""

from weft.graph.control import SEQUENCE as SEQUENCE
from weft.graph.control import If as If
from weft.graph.control import Loop as Loop
from weft.graph.host import HostIdentity as HostIdentity
from weft.graph.host import HostOperator as HostOperator
from weft.graph.identity import Identity as Identity
from weft.graph.identity import Require as Require
from weft.graph.operator import Operator
from weft_ops import (
    activation,
    arithmetic,
    attention,
    bitwise,
    comparison,
    contraction,
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
from weft_ops.activation import *  # noqa: F403
from weft_ops.arithmetic import *  # noqa: F403
from weft_ops.attention import *  # noqa: F403
from weft_ops.bitwise import *  # noqa: F403
from weft_ops.comparison import *  # noqa: F403
from weft_ops.contraction import *  # noqa: F403
from weft_ops.host import *  # noqa: F403
from weft_ops.image import *  # noqa: F403
from weft_ops.indexing import *  # noqa: F403
from weft_ops.linear_algebra import *  # noqa: F403
from weft_ops.loss import *  # noqa: F403
from weft_ops.movement import *  # noqa: F403
from weft_ops.normalization import *  # noqa: F403
from weft_ops.quantization import *  # noqa: F403
from weft_ops.random import *  # noqa: F403
from weft_ops.recurrent import *  # noqa: F403
from weft_ops.reduction import *  # noqa: F403
from weft_ops.scanning import *  # noqa: F403
from weft_ops.signal import *  # noqa: F403
from weft_ops.sorting import *  # noqa: F403
from weft_ops.transcendental import *  # noqa: F403
from weft_ops.trees import *  # noqa: F403
from weft_ops.window import *  # noqa: F403
from weft_ops.winograd import *  # noqa: F403

_FAMILIES = (
    activation,
    arithmetic,
    attention,
    bitwise,
    comparison,
    contraction,
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

NUMERIC_OPERATORS: tuple[type[Operator], ...] = tuple(
    value
    for family in _FAMILIES
    for name in family.__all__
    if isinstance(value := getattr(family, name), type) and issubclass(value, Operator)
)
"""The operators of this package that are computed by kernels."""
HOST_OPERATORS: tuple[type[Operator], ...] = tuple(
    value for name in host.__all__ if isinstance(value := getattr(host, name), type)
)
"""The operators of this package that are steps on the host: their values are not only tensors of numbers."""
ALL_OPERATORS: tuple[type[Operator], ...] = (Identity, Require, *NUMERIC_OPERATORS)
"""Every operator that is computed by kernels, those of the core first."""
