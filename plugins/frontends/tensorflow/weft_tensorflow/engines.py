"""TensorFlow as a peer, on the CPU, through its sessions: they read models of every version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from weft.hooks import EngineKind
from weft_tensorflow.model_file import Signature, read_model
from weft_tensorflow.plugin import TensorflowOptions

Run = Callable[[Mapping[str, Any]], list[Any]]


def _version() -> str | None:
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _session(path: str, threads: int = 0) -> tuple[Any, Signature]:
    """A session with a model in it, and the signature that the frontend reads of it."""
    import tensorflow as tf

    from weft_tensorflow.importer import Importer

    options = TensorflowOptions()
    model = read_model(Path(path), options)
    v1 = tf.compat.v1
    config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=min(threads, 1))
    session = v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        if model.signature is not None:
            folder = Path(path) if Path(path).is_dir() else Path(path).parent
            v1.saved_model.load(session, list(model.tags), str(folder))
            return session, model.signature
        graph = v1.GraphDef.FromString(model.graph.SerializeToString())
        tf.import_graph_def(graph, name="")
    return session, Importer(model, options).frozen()


def _port(where: str) -> str:
    return where if ":" in where else f"{where}:0"


def open_tensorflow(path: str, threads: int) -> Run:
    """A session's run of the signature."""
    session, signature = _session(path, threads)
    inputs = {name: _port(ref.where) for name, ref in signature.inputs.items()}
    run = session.make_callable([_port(r.where) for r in signature.outputs.values()], list(inputs.values()))
    return lambda given: list(run(*(np.asarray(given[name]) for name in inputs)))


def tensorflow_values(path: str) -> Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]]:
    """Values between a model's nodes; those of functions in a copy of the graph in which they are put where they are
    called, as the frontend does."""
    session, signature = _session(path)
    prefix = _inlined(session, signature)

    def ask(names: Sequence[str], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        graph = session.graph
        known = {op.name for op in graph.get_operations() if op.outputs}
        wanted = {n: f"{prefix}{n}:0" for n in names if f"{prefix}{n}" in known}
        feeds = {prefix + _port(r.where): np.asarray(inputs[n]) for n, r in signature.inputs.items()}
        kinds = {n: graph.get_tensor_by_name(t).dtype for n, t in wanted.items()}
        wanted = {n: t for n, t in wanted.items() if kinds[n].name not in ("resource", "variant")}
        found: Mapping[str, Any] = session.run(wanted, feeds)
        return found

    return ask


def _inlined(session: Any, signature: Signature) -> str:
    """Puts a copy of the graph without calls into a session; the prefix of its names."""
    import tensorflow as tf
    from tensorflow.python.grappler import tf_optimizer

    v1, graph = tf.compat.v1, session.graph
    if not graph.as_graph_def().library.function:
        return ""
    meta = v1.train.export_meta_graph(graph_def=graph.as_graph_def(add_shapes=True), graph=graph)
    kept = [r.where.split(":")[0] for r in (*signature.outputs.values(), *signature.inputs.values())]
    meta.collection_def["train_op"].node_list.value.extend(_port(name) for name in kept)
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    config.graph_options.rewrite_options.optimizers.append("function")
    with graph.as_default():
        tf.import_graph_def(tf_optimizer.OptimizeGraph(config, meta), name="calls")
    return "calls/"


ENGINES = [EngineKind("tensorflow", _version, open_tensorflow, tensorflow_values, ("tensorflow",))]
