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
from weft_ops.activation import *  # noqa: F403
from weft_ops.arithmetic import *  # noqa: F403
from weft_ops.attention import *  # noqa: F403
from weft_ops.barrier import *  # noqa: F403
from weft_ops.bitwise import *  # noqa: F403
from weft_ops.cell_states import *  # noqa: F403
from weft_ops.columns import *  # noqa: F403
from weft_ops.comparison import *  # noqa: F403
from weft_ops.contraction import *  # noqa: F403
from weft_ops.derivatives import *  # noqa: F403
from weft_ops.fixed_point import *  # noqa: F403
from weft_ops.host import *  # noqa: F403
from weft_ops.image import *  # noqa: F403
from weft_ops.indexing import *  # noqa: F403
from weft_ops.linear_algebra import *  # noqa: F403
from weft_ops.loss import *  # noqa: F403
from weft_ops.masked_trees import *  # noqa: F403
from weft_ops.movement import *  # noqa: F403
from weft_ops.normalization import *  # noqa: F403
from weft_ops.quantization import *  # noqa: F403
from weft_ops.random import *  # noqa: F403
from weft_ops.recurrent import *  # noqa: F403
from weft_ops.recurrent_gradients import *  # noqa: F403
from weft_ops.reduction import *  # noqa: F403
from weft_ops.scanning import *  # noqa: F403
from weft_ops.signal import *  # noqa: F403
from weft_ops.sorting import *  # noqa: F403
from weft_ops.transcendental import *  # noqa: F403
from weft_ops.trees import *  # noqa: F403
from weft_ops.window import *  # noqa: F403
from weft_ops.winograd import *  # noqa: F403

_OWN = [
    v
    for v in globals().values()
    if isinstance(v, type) and issubclass(v, Operator) and v.__module__.startswith("weft_ops.")
]
NUMERIC_OPERATORS: tuple[type[Operator], ...] = tuple(op for op in _OWN if not issubclass(op, HostOperator))
"""The operators of this package that are computed by kernels."""
HOST_OPERATORS: tuple[type[Operator], ...] = tuple(op for op in _OWN if issubclass(op, HostOperator))
"""The operators of this package that are steps on the host: their values are not only tensors of numbers."""
ALL_OPERATORS: tuple[type[Operator], ...] = (Identity, Require, *NUMERIC_OPERATORS)
"""Every operator that is computed by kernels, those of the core first."""
