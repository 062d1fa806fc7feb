"""Makes fixtures.zip: a program in both formats, its parameters, inputs, PaddlePaddle's answer, and what paddle2onnx makes
of it. Runs where `pip install paddlepaddle==3.3.1 paddle2onnx==2.1.0` is:

    python tests/frontends/paddle/make_fixtures.py
"""

# ruff: noqa: E501

import io
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import paddle
import paddle2onnx

paddle.seed(0)


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = paddle.nn.Conv2D(3, 8, 3, stride=2, padding=1), paddle.nn.BatchNorm2D(8)
        self.norm._mean.set_value(paddle.rand([8]))
        self.norm._variance.set_value(paddle.rand([8]) + 0.5)
        self.dense = paddle.nn.Linear(8, 5)

    def forward(self, x):
        y = paddle.nn.functional.relu(self.norm(self.conv(x)))
        return paddle.nn.functional.softmax(self.dense(paddle.nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)))


net = Net()
net.eval()
x = np.random.RandomState(0).randn(2, 3, 8, 8).astype("float32")
with (
    tempfile.TemporaryDirectory() as folder,
    zipfile.ZipFile(Path(__file__).with_name("fixtures.zip"), "w", 8) as archive,
):
    path = Path(folder) / "model"
    paddle.jit.save(net, str(path), input_spec=[paddle.static.InputSpec([None, 3, 8, 8], "float32", name="x")])
    model, params, result = (str(path.with_suffix(s)) for s in (".json", ".pdiparams", ".onnx"))
    paddle2onnx.export(model, params, result, optimize_tool="None", verbose=False)
    for file in (model, params, result):
        archive.write(file, os.path.basename(file))
    arrays = io.BytesIO()
    np.savez(arrays, x=x, y=net(paddle.to_tensor(x)).numpy())
    archive.writestr("arrays.npz", arrays.getvalue())
