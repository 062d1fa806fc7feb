"""Makes first_version.zip: frozen graphs with the branches and loops of the first version of TensorFlow, inputs, and
what its session computes of them.

    python tests/frontends/tensorflow/make_first_version.py      # needs tensorflow (2.21.0 made the committed file)

As in fixtures.zip: N/graph.pb, N/inputs.npz and N/outputs.npz, by name; cases.json lists the cases.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
v1.disable_control_flow_v2()
v1.disable_resource_variables()
v1.disable_tensor_equality()
R = np.random.default_rng(0)
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {}


def f(*shape: int) -> Any:
    return R.standard_normal(shape).astype(np.float32)


def case(open_sizes: Any = False, **inputs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A case; `open_sizes`: True, the sizes of its inputs are left open; or the shapes of some of them."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__.replace("_", " ").strip()] = function, inputs, open_sizes
        return function

    return add


# -- loops ------------------------------------------------------------------------------------------------------------


@case(x=f(3))
def while_loop(x: Any) -> Any:
    return v1.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.5 + x), [tf.constant(0), x])


@case(open_sizes=True, x=f(3), n=np.int32(4))
def while_of_a_count(x: Any, n: Any) -> Any:
    w = tf.constant(f(3, 3))
    step = lambda i, y: (i + 1, tf.tanh(tf.linalg.matvec(w, y) + x))
    return v1.while_loop(lambda i, y: i < n, step, [tf.constant(0), x])[1]


@case(x=f(3), n=np.int32(0))
def while_of_no_iteration(x: Any, n: Any) -> Any:
    return v1.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y + x), [tf.constant(0), x])[1]


@case(x=f(3))
def while_in_while(x: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        more = lambda j, z: (j + 1, z * 1.1 + x + tf.cast(i, tf.float32))
        return i + 1, v1.while_loop(lambda j, z: j < i + 1, more, [tf.constant(0), y])[1]

    return v1.while_loop(lambda i, y: i < 4, step, [tf.constant(0), x])[1]


@case(x=f(4, 3))
def map_fn(x: Any) -> Any:
    return v1.map_fn(lambda r: (tf.nn.softmax(r) * 2.0, tf.argmax(r)), x, dtype=(tf.float32, tf.int64))


@case(open_sizes=True, x=f(4, 3))
def scan(x: Any) -> Any:
    return v1.scan(lambda a, r: a * 0.5 + r, x), v1.foldl(lambda a, r: a * 0.5 + r, x)


def boxes(count: int) -> Any:
    corners = R.random((2, count, 2, 2)).astype(np.float32)
    return np.sort(corners, 2).reshape(2, count, 4)


@case(b=boxes(6), s=np.abs(f(2, 6)))
def map_of_boxes(b: Any, s: Any) -> Any:
    def one(given: Any) -> Any:
        kept = tf.image.non_max_suppression(*given, 3, 0.5)
        missing = 3 - tf.shape(kept)[0]
        return tf.pad(tf.gather(given[0], kept), [[0, missing], [0, 0]]), tf.pad(
            tf.gather(given[1], kept), [[0, missing]]
        )

    return v1.map_fn(one, (b, s), dtype=(tf.float32, tf.float32))


@case(x=f(6))
def array_of_parts(x: Any) -> Any:
    found = tf.TensorArray(tf.float32, 3, clear_after_read=False, element_shape=(2,))
    found = found.scatter([2, 0], tf.reshape(x[:4], (2, 2))).write(1, x[4:])
    return found.gather([1, 2]), found.concat(), found.size(), found.read(0)


class Lstm:
    """A cell as `dynamic_rnn` calls one."""

    def __init__(self, inputs: int, size: int) -> None:
        self.w, self.b, self.output_size, self.state_size = f(inputs + size, 4 * size), f(4 * size), size, (size, size)

    def zero_state(self, batch: Any, dtype: Any) -> Any:
        return tf.zeros((batch, self.output_size)), tf.zeros((batch, self.output_size))

    def __call__(self, x: Any, state: Any, scope: Any = None) -> Any:
        c, h = state
        i, j, g, o = tf.split(tf.concat([x, h], 1) @ self.w + self.b, 4, 1)
        c = c * tf.sigmoid(g + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
        return h, (c, h)


@case(x=f(2, 5, 3))
def dynamic_rnn(x: Any) -> Any:
    return v1.nn.dynamic_rnn(Lstm(3, 4), x, dtype=tf.float32)


@case(x=f(2, 5, 3), n=np.array([3, 5], np.int32))
def bidirectional_dynamic_rnn(x: Any, n: Any) -> Any:
    return v1.nn.bidirectional_dynamic_rnn(Lstm(3, 4), Lstm(3, 4), x, n, dtype=tf.float32)


@case(
    open_sizes={"x": (None, None, 3), "n": (None,), "c": (None, 4), "h": (None, 4)},
    x=f(5, 2, 3), n=np.array([3, 5], np.int32), c=f(2, 4), h=f(2, 4),
)  # fmt: skip
def dynamic_rnn_of_open_sizes(x: Any, n: Any, c: Any, h: Any) -> Any:
    """Its batch is that of four inputs, which only the run shows to be the same."""
    return v1.nn.dynamic_rnn(Lstm(3, 4), x, n, (c, h), time_major=True)


# -- branches ---------------------------------------------------------------------------------------------------------


@case(x=f(3), p=np.array(True))
def cond(x: Any, p: Any) -> Any:
    return v1.cond(p, lambda: (x * 2, x[0]), lambda: (x - 1, x[1]))


@case(x=f(3), p=np.array(False))
def cond_of_a_constant(x: Any, p: Any) -> Any:
    return v1.cond(p, lambda: tf.constant([1.0, 2, 3]), lambda: x - 1)


@case(x=f(3), p=np.array(False), q=np.array(True))
def cond_in_cond(x: Any, p: Any, q: Any) -> Any:
    return v1.cond(p, lambda: x * 2, lambda: v1.cond(q, lambda: x - 1, lambda: tf.exp(x)))


@case(open_sizes=True, x=np.abs(f(3)))
def cond_of_other_sizes(x: Any) -> Any:
    return v1.cond(tf.reduce_sum(x) > 0, lambda: tf.concat([x, x], 0), lambda: x) + 1.0


@case(x=f(4, 3))
def cond_in_while(x: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return i + 1, v1.cond(tf.reduce_sum(x[i]) > 0, lambda: y + x[i], lambda: y * 0.5)

    return v1.while_loop(lambda i, y: i < 4, step, [tf.constant(0), x[0]])[1]


@case(x=f(4, 3))
def writes_in_cond(x: Any) -> Any:
    found = tf.TensorArray(tf.float32, 4, element_shape=(3,))

    def step(i: Any, found: Any) -> Any:
        flow = v1.cond(x[i][0] > 0, lambda: found.write(i, x[i] * 2).flow, lambda: found.write(i, -x[i]).flow)
        return i + 1, tf.TensorArray(tf.float32, flow=flow, handle=found.handle)

    return v1.while_loop(lambda i, _: i < 4, step, [tf.constant(0), found])[1].stack()


@case(x=f(3), p=np.array(True))
def while_in_cond(x: Any, p: Any) -> Any:
    loop = lambda: v1.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.5 + x), [tf.constant(0), x])[1]
    return v1.cond(p, loop, lambda: x - 1)


@case(x=np.int32(2), y=f(3))
def case_(x: Any, y: Any) -> Any:
    branches = {tf.equal(x, 1): lambda: y * 2, tf.equal(x, 2): lambda: y * 3}
    return v1.case(branches, default=lambda: y * 4, exclusive=True)


@case(x=f(3))
def known_condition(x: Any) -> Any:
    training = v1.placeholder_with_default(False, ())
    which = tf.raw_ops.Switch(data=x, pred=training)
    return v1.cond(training, lambda: x * 2, lambda: x - 1), which.output_false + 1.0


@case(x=f(3), p=np.array(True))
def which_branch(x: Any, p: Any) -> Any:
    a, b = tf.raw_ops.Switch(data=x, pred=p)
    joined = tf.raw_ops.Merge(inputs=[b * 2.0, a + 1.0])
    return joined.output, joined.value_index


@case(x=f(3))
def asserted(x: Any) -> Any:
    with tf.control_dependencies([v1.Assert(tf.reduce_sum(x) < 100.0, [x])]):
        return x * 2


# -- writing ----------------------------------------------------------------------------------------------------------


def arrays(given: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, **given)
    return sink.getvalue()


def made(function: Callable[..., Any], inputs: dict[str, Any], open_sizes: Any) -> tuple[bytes, dict[str, Any]]:
    """A frozen graph, and what the session computes of it."""
    with v1.Session(graph=tf.Graph()) as session:
        shapes = {n: [None] * a.ndim if open_sizes is True else a.shape for n, a in inputs.items()}
        shapes |= open_sizes if isinstance(open_sizes, dict) else {}
        given = {n: v1.placeholder(a.dtype, shapes[n], n) for n, a in inputs.items()}
        found = tf.nest.flatten(function(*given.values()))
        names = [f"result{k}" for k in range(len(found))]
        outputs = [tf.identity(v, n) for n, v in zip(names, found)]
        values = session.run(outputs, {given[n]: a for n, a in inputs.items()})
        graph = v1.graph_util.extract_sub_graph(session.graph.as_graph_def(), names)
    return graph.SerializeToString(deterministic=True), dict(zip(names, values))


def main() -> None:
    path = Path(__file__).with_name("first_version.zip")
    listed = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for k, (name, (function, inputs, open_sizes)) in enumerate(CASES.items()):
            graph, outputs = made(function, inputs, open_sizes)
            archive.writestr(f"{k}/graph.pb", graph)
            archive.writestr(f"{k}/inputs.npz", arrays(inputs))
            archive.writestr(f"{k}/outputs.npz", arrays(outputs))
            listed.append({"name": name, "kind": "graph", "outputs": list(outputs)})
        archive.writestr("cases.json", json.dumps(listed))
    print(f"{len(listed)} cases, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
