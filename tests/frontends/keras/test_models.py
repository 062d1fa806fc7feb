"""Models: of every kind, saved and read again, and those of keras.applications; errors."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.keras.nets import answer, data, filled, of_layer, the_keras

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.graph.evaluate import evaluate
from weft_testing.changed import check_changed_bytes
from weft_testing.frontend import FrontendCase, check_frontend

pytestmark = pytest.mark.needs("keras")


def convolutional(keras: Any) -> Any:
    return filled(keras.Sequential([
        keras.Input((8, 8, 3), name="image"),
        keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(5, activation="softmax"),
    ]))  # fmt: skip


def shared(keras: Any) -> Any:
    """Two inputs, a layer that is used twice, a model inside, two outputs by name."""
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    inner_x = keras.Input((4,))
    inner = keras.Model(inner_x, keras.layers.Dense(4, activation="tanh")(inner_x))
    dense = keras.layers.Dense(3)
    y = keras.layers.Concatenate()([dense(inner(a)), dense(inner(b))])
    return filled(keras.Model({"a": a, "b": b}, {"sum": y + 1.0, "product": dense(a) * 2.0}))


def attention(keras: Any) -> Any:
    """A block of a transformer, whose number of steps is open."""
    x = keras.Input((None, 8), name="x")
    y = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 4)(x, x))
    y = keras.layers.LayerNormalization()(y + keras.layers.Dense(8)(keras.layers.Dense(16, activation="gelu")(y)))
    return filled(keras.Model(x, y))


def custom(keras: Any) -> Any:
    """A layer of its own, whose sizes come from its operand, in a subclassed model."""

    class Heads(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(6)

        def call(self, x: Any, training: bool = False) -> Any:
            ops = keras.ops
            batch = ops.shape(x)[0]
            y = ops.reshape(self.dense(x), (batch, -1, 2, 3))
            y = ops.transpose(y, (0, 2, 1, 3))
            y = ops.softmax(ops.matmul(y, ops.transpose(y, (0, 1, 3, 2))), axis=-1) @ y
            return ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (batch, -1, 6))

    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.drop = Heads(), keras.layers.Dropout(0.5)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.drop(self.heads(x)) * 2.0

    model = Net()
    model(np.zeros((2, 5, 4), np.float32))
    return filled(model)


def masked(keras: Any) -> Any:
    """Words of which zeros do not count, in two recurrent layers."""
    x = keras.Input((None,), dtype="int32", name="words")
    y = keras.layers.Embedding(5, 3, mask_zero=True)(x)
    y = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True))(y)
    return filled(keras.Model(x, keras.layers.Dense(2)(keras.layers.GRU(3)(y))))


MODELS: dict[str, tuple[Callable[[Any], Any], dict[str, tuple[int, ...]]]] = {
    "convolutional": (convolutional, {"image": (8, 8, 3)}),
    "shared": (shared, {"a": (4,), "b": (4,)}),
    "attention": (attention, {"x": (5, 8)}),
    "custom": (custom, {"input": (5, 4)}),
    "masked": (masked, {"words": (6,)}),
}


def arrays(shapes: dict[str, tuple[int, ...]], batch: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch)
    if "words" in shapes:
        return {"words": rng.integers(0, 5, (batch, *shapes["words"])).astype(np.int32)}
    return {name: rng.standard_normal((batch, *shape)).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_keras(name: str) -> None:
    make, shapes = MODELS[name]
    model = make(the_keras())
    case = FrontendCase(model, arrays(shapes, 2), answer(model), others=[arrays(shapes, 3)])
    graph, _ = check_frontend(case)
    assert {v.name for v in graph.inputs} == set(shapes)
    if name == "shared":
        assert set(graph.output_names) == {"sum", "product"}


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".bin"])
def test_files_agree_with_keras(suffix: str, tmp_path: Path) -> None:
    """The content decides what a file is."""
    model = convolutional(the_keras())
    path = tmp_path / f"m{suffix}"
    saved = path.with_suffix(".keras") if suffix == ".bin" else path
    model.save(saved)
    saved.rename(path)
    given = arrays({"image": (8, 8, 3)}, 2)
    graph = weft.load(path, frontend="keras" if suffix == ".bin" else None)
    np.testing.assert_allclose(evaluate(graph, given)[0], answer(model)(given)[0], rtol=1e-4, atol=1e-6)


def as_keras_2(path: Path, convolutions: dict[str, Any], recurrent: dict[str, Any]) -> Path:
    """A file whose layers have settings that Keras 2 wrote."""
    import h5py

    def changed(config: Any) -> Any:
        for one in config["config"]["layers"]:
            settings = {"DepthwiseConv2D": convolutions, "Conv2DTranspose": convolutions, "LSTM": recurrent}
            kernel = {"kernel_initializer": None} if one["class_name"] == "SeparableConv2D" else {}
            one["config"] |= settings.get(one["class_name"], convolutions if kernel else {}) | kernel
        return config

    if path.suffix == ".keras":
        return changed_config(path, changed)
    with h5py.File(path, "r+") as file:
        file.attrs["model_config"] = json.dumps(changed(json.loads(file.attrs["model_config"])))
    return path


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_settings_of_keras_2_that_change_nothing(suffix: str, tmp_path: Path) -> None:
    keras = the_keras()
    model = filled(keras.Sequential([
        keras.Input((8, 8, 3), name="image"),
        keras.layers.DepthwiseConv2D(3),
        keras.layers.SeparableConv2D(4, 3),
        keras.layers.Conv2DTranspose(4, 3),
        keras.layers.Reshape((-1, 4)),
        keras.layers.LSTM(3),
    ]))  # fmt: skip
    path = tmp_path / f"m{suffix}"
    model.save(path)
    given = arrays({"image": (8, 8, 3)}, 2)
    other = as_keras_2(path, {"groups": 1}, {"time_major": False})
    with pytest.raises(Exception, match="Unrecognized keyword arguments"):
        keras.saving.load_model(other)
    np.testing.assert_allclose(evaluate(weft.load(other), given)[0], answer(model)(given)[0], rtol=1e-4, atol=1e-6)
    with pytest.raises(FrontendError, match="time_major"):
        weft.load(as_keras_2(path, {"groups": 1}, {"time_major": True}))


def test_the_batch_is_open_or_given() -> None:
    model = convolutional(the_keras())
    assert str(weft.load(model).inputs[0].type) == "float32[batch, 8, 8, 3]"
    assert weft.load(model, frontend="keras -batch=4").inputs[0].shape == (4, 8, 8, 3)


def test_a_model_is_as_it_was_after_it_was_read() -> None:
    keras = the_keras()
    model = attention(keras)
    before = [len(layer._inbound_nodes) for layer in model._flatten_layers()]
    weft.load(model)
    assert [len(layer._inbound_nodes) for layer in model._flatten_layers()] == before


def test_what_backends_of_keras_cannot_run_is_right_by_numpy() -> None:
    """The torch backend normalises over first axes wrongly, and has no negative steps."""
    model = of_layer(lambda k: k.layers.LayerNormalization(axis=1), [(5, 4)])
    x = data([(5, 4)])["x0"]
    gamma, beta = (np.asarray(w)[None, :, None] for w in model.get_weights())
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3) * gamma + beta
    np.testing.assert_allclose(evaluate(weft.load(model), {"x0": x})[0], want, rtol=1e-4, atol=1e-5)
    model = of_layer(lambda k: lambda x: x[:, ::-2], [(5, 4)])
    np.testing.assert_array_equal(evaluate(weft.load(model), {"x0": x})[0], x[:, ::-2])


def test_no_gradient_passes_where_it_is_stopped() -> None:
    keras = the_keras()
    model = of_layer(lambda k: lambda x: x * keras.ops.stop_gradient(keras.ops.tanh(x)), [(5, 4)])
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    slope = weft.vjp(weft.load(model))
    feeds = {i.name: x if i.name == "x0" else np.ones_like(x) for i in slope.inputs}
    np.testing.assert_allclose(evaluate(slope, feeds)[0], np.tanh(x), rtol=1e-5)


# -- errors -----------------------------------------------------------------------------------------------------------


def test_everything_unsupported_is_listed_at_once() -> None:
    keras = the_keras()
    x = keras.Input(batch_shape=(2, 5, 4), name="x")
    y = keras.layers.LSTM(3, stateful=True)(x)
    z = keras.ops.erfinv(keras.ops.i0(x))
    with pytest.raises(UnsupportedError) as caught:
        weft.load(keras.Model(x, [y, z]))
    text = str(caught.value)
    assert "3 things that the Keras frontend does not support" in text
    assert (
        "LSTM: states that are kept from one call to the next (stateful): 'lstm" in text
        and "operation keras.ops I0: 'i0" in text
    )


def test_a_model_that_was_never_called() -> None:
    keras = the_keras()
    with pytest.raises(FrontendError, match="a model that was never called") as caught:
        weft.load(keras.Sequential([keras.layers.Dense(3)]))
    assert "model.build" in str(caught.value)


def test_a_layer_that_computes_outside_of_keras_ops() -> None:
    keras = the_keras()

    class Outside(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x.abs()

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    with pytest.raises(
        UnsupportedError, match=r"layer outside.* cannot be called on symbolic tensors \(AttributeError"
    ):
        weft.load(of_layer(lambda k: Outside(), [(4,)]))


def test_a_layer_that_writes_its_variables() -> None:
    keras = the_keras()

    class Counting(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.count = self.add_weight(shape=(), name="count", trainable=False)

        def call(self, x: Any) -> Any:
            self.count.assign_add(1.0)
            return x * 2.0

    model = of_layer(lambda k: Counting(), [(4,)])
    before = float(model.layers[-1].count)
    with pytest.raises(UnsupportedError, match="it assigns to the variable 'counting/count'"):
        weft.load(model)
    assert float(model.layers[-1].count) == before


def changed_config(path: Path, change: Callable[[Any], Any]) -> Path:
    """A copy of an archive with another configuration."""
    other = path.with_name("other.keras")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, json.dumps(change(json.loads(content))) if name == "config.json" else content)
    return other


def test_files_are_checked_before_keras_sees_them(tmp_path: Path) -> None:
    model = convolutional(the_keras())
    path = tmp_path / "m.keras"
    model.save(path)

    def foreign(config: Any) -> Any:
        config["config"]["layers"][1] |= {"module": "os", "class_name": "system", "registered_name": None}
        return config

    def named(name: str) -> Callable[[Any], Any]:
        def change(config: Any) -> Any:
            config["config"]["layers"][1] |= {"class_name": name}
            return config

        return change

    def huge(config: Any) -> Any:
        config["config"]["layers"][1]["config"]["filters"] = 1 << 40
        return config

    for change, error, text in (
        (foreign, UnsupportedError, "classes that are not Keras' own"),
        (named("Lambda"), UnsupportedError, "has layers of code: Lambda"),
        (named("TorchModuleWrapper"), UnsupportedError, "has layers of code: TorchModuleWrapper"),
        (named("TFSMLayer"), UnsupportedError, "has layers of code: TFSMLayer"),
        (named("StringLookup"), UnsupportedError, "a table of its own"),
        (huge, FrontendError, "its configuration has the number"),
        (lambda config: [], FrontendError, "its configuration is no object"),
    ):
        with pytest.raises(error, match=text):
            weft.load(changed_config(path, change))


def test_classes_that_would_take_gigabytes() -> None:
    keras = the_keras()
    x = keras.Input((3,), dtype="int32")
    model = keras.Model(x, keras.ops.one_hot(x, 1 << 30))
    with pytest.raises(FrontendError, match="the classes would be 1073741824 numbers"):
        weft.load(model)


def test_weights_alone_and_damaged_files(tmp_path: Path) -> None:
    model = convolutional(the_keras())
    weights = tmp_path / "w.weights.h5"
    model.save_weights(weights)
    with pytest.raises(FrontendError, match="holds weights alone") as caught:
        weft.load(weights)
    assert "save the model whole" in str(caught.value)
    path = tmp_path / "m.keras"
    model.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FrontendError, match="it is no whole zip archive"):
        weft.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", "{}")
    with pytest.raises(FrontendError, match=r"it has no member 'config\.json'"):
        weft.load(path)
    old = tmp_path / "m.h5"
    old.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(FrontendError, match="is damaged"):
        weft.load(old)


def test_hdf5_whose_groups_contain_each_other(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        file["a/b"] = file.create_group("c")
        file["c/d"] = file["a"]
    with pytest.raises(FrontendError, match="its groups contain each other"):
        weft.load(path)


def test_hdf5_that_its_library_cannot_get_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_keras import files

    script = tmp_path / "hdf5.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    path = tmp_path / "m.h5"
    convolutional(the_keras()).save(path)
    monkeypatch.setattr(files, "__file__", str(tmp_path / "files.py"))
    with pytest.raises(FrontendError, match="HDF5's library ends with status -9"):
        weft.load(path)


def test_hdf5_that_links_to_other_files(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        file["model_weights"] = h5py.ExternalLink("/etc/passwd", "/")
    with pytest.raises(FrontendError, match="'model_weights' is a link: ExternalLink"):
        weft.load(path)


@pytest.mark.needs("weft_llvm")
def test_keras_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = convolutional(the_keras())
    model.save(tmp_path / "m.keras")
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(FrontendError, match="Keras cannot be imported") as caught:
        weft.load(tmp_path / "m.keras")
    assert 'pip install "weft-keras[keras]"' in str(caught.value)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_changed_bytes_are_refused_or_read(suffix: str, tmp_path: Path) -> None:
    keras = the_keras()
    model = filled(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu")]))
    path = tmp_path / f"m{suffix}"
    model.save(path)
    assert check_changed_bytes(path, frontend="keras", count=60) == 60


def test_bytes_are_read(tmp_path: Path) -> None:
    model = convolutional(the_keras())
    model.save(tmp_path / "m.keras")
    graph = weft.load((tmp_path / "m.keras").read_bytes(), frontend="keras")
    assert [v.name for v in graph.inputs] == ["image"]
