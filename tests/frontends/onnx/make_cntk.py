"""Makes cntk.zip: models that CNTK 2.7 exports to ONNX, with inputs and what CNTK computes of them. Runs under Python
3.6 with `pip install cntk==2.7.post2`:

    python tests/frontends/onnx/make_cntk.py
"""

import io
import os
import tempfile
import zipfile

import cntk as C
import numpy as np

C.cntk_py.set_fixed_random_seed(1)
R = np.random.RandomState(1)


def convolutional():
    x = C.input_variable((3, 12, 12), name="x")
    with C.layers.default_options(activation=C.relu):
        y = C.layers.Convolution2D((3, 3), 8, pad=True, strides=2)(x)
        y = C.layers.BatchNormalization(map_rank=1)(y)
        y = C.layers.MaxPooling((2, 2), strides=2)(y)
        y = C.layers.Convolution2D((3, 3), 8, pad=True)(y)
        y = C.layers.AveragePooling((3, 3))(y)
        y = C.layers.Dropout(0.5)(y)
        y = C.layers.Dense(10, activation=None)(y)
    return C.softmax(y), R.randn(1, 3, 12, 12)


def dense():
    x = C.input_variable(8, name="x")
    y = C.layers.Dense(16, activation=C.tanh)(x)
    y = C.layers.Dense(16, activation=C.elu)(y) * 2.0 - C.sigmoid(y)
    y = C.layers.LayerNormalization()(y)
    return C.log_softmax(C.layers.Dense(4, activation=C.leaky_relu)(y)), R.randn(1, 8)


def movement():
    x = C.input_variable((4, 6), name="x")
    a = C.reshape(C.transpose(x, (1, 0)), (2, 12))
    y = C.splice(a, C.reduce_max(a, axis=1) + C.clip(a, -0.5, 0.5), axis=0)
    sums = C.reduce_sum(C.square(C.slice(y, 1, 2, 9)), axis=0)
    return C.hardmax(sums) + C.exp(-C.abs(C.floor(y[0, 2:9]))) * sums, R.randn(1, 4, 6)


def lstm():
    x = C.sequence.input_variable(5, name="x")
    return C.layers.Dense(3)(C.layers.Recurrence(C.layers.LSTM(7))(x)), R.randn(1, 4, 5)


def gru():
    x = C.sequence.input_variable(5, name="x")
    return C.layers.Dense(3)(C.layers.Recurrence(C.layers.GRU(6))(x)), R.randn(1, 4, 5)


def main(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, tempfile.TemporaryDirectory() as folder:
        for make in (convolutional, dense, movement, lstm, gru):
            model, x = make()
            x = x.astype(np.float32)
            for c in model.constants:
                if c.name in ("aggregate_mean", "aggregate_variance"):
                    c.value = (0.5 + R.rand(*c.shape)).astype(np.float32)
            file = os.path.join(folder, "model.onnx")
            model.save(file, format=C.ModelFormat.ONNX)
            arrays = io.BytesIO()
            np.savez(arrays, x=x, y=np.asarray(model.eval({model.arguments[0]: x})))
            with open(file, "rb") as f:
                archive.writestr(make.__name__ + ".onnx", f.read())
            archive.writestr(make.__name__ + ".npz", arrays.getvalue())


main(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cntk.zip"))
