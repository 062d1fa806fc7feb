"""Files that are found, files that are wrong, and networks that use what is not supported: every message is read."""

from __future__ import annotations

import ast
import os
import re
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.counting import code_lines
from tests.frontends.darknet.reference import Network, cfg

import weft
import weft_darknet
from weft.errors import FrontendError, UnsupportedError, WeftError
from weft.graph.evaluate import evaluate
from weft_darknet import plugin

HEADER = struct.pack("<3iQ", 0, 2, 5, 0)
NET = "[net]\nchannels=3\nheight=8\nwidth=6\n"
CONV = "[convolutional]\nfilters=2\nsize=3\npad=1\nactivation=leaky\n"
CONV_BYTES = 20 + 4 * (2 + 2 * 3 * 9)


def load(text: str, weights: Any = None, floats: int = 0) -> Any:
    return weft.load(
        text.encode(), frontend="darknet", weights=HEADER + bytes(4 * floats) if weights is None else weights
    )


def refused(text: str, weights: Any = None, floats: int = 0, error: type[WeftError] = FrontendError) -> str:
    with pytest.raises(error) as caught:
        load(text, weights, floats)
    assert type(caught.value) is error
    return str(caught.value)


def pair(folder: Path) -> tuple[Path, Network, np.ndarray[Any, Any]]:
    layers = (
        ("convolutional", {"filters": 2, "size": 3, "activation": "leaky"}),
        ("maxpool", {"size": 2, "stride": 2}),
    )
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 6)).astype(np.float32)
    network = Network(x, *layers)
    path = folder / "model.cfg"
    path.write_text(cfg((3, 8, 6), *layers))
    path.with_suffix(".weights").write_bytes(network.weights)
    return path, network, x


# -- files ------------------------------------------------------------------------------------------------------------


def test_the_weights_are_beside_or_named(tmp_path: Path) -> None:
    path, network, x = pair(tmp_path)
    other = tmp_path / "model_final.weights"
    other.write_bytes(network.weights)
    for graph in (
        weft.load(path), weft.load(str(path)), weft.load(path, weights=other), weft.load(path, weights=str(other)),
        weft.load(path, weights=network.weights),
        weft.load(path.read_bytes(), weights=other), weft.load(bytearray(path.read_bytes()),
            weights=bytearray(network.weights)),
    ):  # fmt: skip
        np.testing.assert_allclose(evaluate(graph, [x])[0], network.x, rtol=1e-5, atol=1e-5)


def test_weights_stay_in_the_file(tmp_path: Path) -> None:
    path, _, _ = pair(tmp_path)
    for value in weft.load(path).constants():
        assert value.constant is not None and not value.constant.flags.writeable and not value.constant.flags.owndata


@pytest.mark.needs("weft_llvm")
def test_the_cache_knows_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    path, network, x = pair(tmp_path)
    before = weft.compile(path, target="llvm -threads=1").run({"x": x})
    file = path.with_suffix(".weights")
    file.write_bytes(network.weights[:-4] + struct.pack("<f", 9.0))
    os.utime(file, ns=(1, 1))
    after = weft.compile(path, target="llvm -threads=1").run({"x": x})
    assert not np.array_equal(before["maxpool_1"], after["maxpool_1"])


def test_sniff_and_accepts() -> None:
    frontend = plugin.frontends()[0]
    assert (
        frontend.sniff(b"# tiny\n[net]\nbatch=1")
        and frontend.sniff(b"[network]")
        and not frontend.sniff(b"\x08\x0a\x12")
        and not frontend.sniff(b"")
    )
    assert not frontend.accepts({"net": 1})


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, weft_darknet.plugin as p; p.frontends(); assert not {'numpy', 'weft_ops', 'weft_darknet.layers'} &"
        " set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.needs("weft_llvm")
def test_the_input_may_have_another_size(tmp_path: Path) -> None:
    path, network, _ = pair(tmp_path)
    assert weft.load(path).inputs[0].shape[1:] == (3, 8, 6)
    graph = weft.load(path, width=12, height=10)
    assert graph.inputs[0].shape[1:] == (3, 10, 12)
    x = np.random.default_rng(1).standard_normal((2, 3, 10, 12)).astype(np.float32)
    layers = (
        ("convolutional", {"filters": 2, "size": 3, "activation": "leaky"}),
        ("maxpool", {"size": 2, "stride": 2}),
    )
    again = weft.load(cfg((3, 10, 12), *layers).encode(), weights=network.weights)
    np.testing.assert_array_equal(evaluate(graph, [x])[0], evaluate(again, [x])[0])
    exe = weft.compile(path, "llvm -threads=1", frontend="darknet -width=12 -height=10", cache=False)
    np.testing.assert_allclose(exe(x), evaluate(graph, [x])[0], rtol=1e-5, atol=1e-6)


def test_sizes_that_cannot_be(tmp_path: Path) -> None:
    path, _, _ = pair(tmp_path)
    for size in (0, -3):
        with pytest.raises(
            FrontendError,
            match=rf"model.cfg, line 1: \[net\]\n  why: its size is \(3, 8, {size}\); Darknet counts from 1",
        ):
            weft.load(path, width=size)
    with pytest.raises(FrontendError, match="option 'width' of frontend 'darknet' takes an integer, got '12'"):
        weft.load(path, width="12")
    text, flat = "[net]\ninputs=4\n[connected]\noutput=2\nactivation=linear\n", HEADER + bytes(4 * 10)
    assert weft.load(text.encode(), weights=flat).inputs[0].shape[1:] == (4, 1, 1)
    with pytest.raises(FrontendError, match=r"its size is \(0, 0, 2\)"):
        weft.load(text.encode(), weights=flat, width=2)


@pytest.mark.needs("weft_llvm")
def test_other_weights_are_another_model_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    path, network, x = pair(tmp_path)
    other = tmp_path / "other.weights"
    other.write_bytes(network.weights[:20] + bytes(len(network.weights) - 20))
    first = weft.compile(path, "llvm -threads=1")(x)
    zero = weft.compile(path, "llvm -threads=1", frontend=f"darknet -weights={other}")(x)
    assert np.abs(first).max() > 0 and not zero.any()
    other.write_bytes(network.weights)
    os.utime(other, ns=(1, 1))
    np.testing.assert_array_equal(weft.compile(path, "llvm -threads=1", frontend=f"darknet -weights={other}")(x), first)


# Modules that docs/plugin-author-guide.md uses (of whose operators `ops` is the sum), and what is taken from each.
PUBLIC = {
    "weft": {"ops"}, "weft.errors": {"FrontendError", "UnsupportedError"}, "weft.expr.nodes": {"Var"},
    "weft.hooks": {"Frontend", "hookimpl"},
    "weft.graph.nodes": {"Graph", "GraphBuilder", "Value", "tensor_type"},
}  # fmt: skip


def test_only_public_names_are_imported_and_the_package_is_small() -> None:
    page = (Path(__file__).parents[3] / "docs" / "plugin-author-guide.md").read_text()
    assert set(PUBLIC) - {"weft"} <= set(re.findall(r"^from (weft[\w.]*) import", page, re.MULTILINE))
    files = sorted(Path(weft_darknet.__file__ or "").parent.glob("*.py"))
    assert len(files) == 6
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not any(a.name.split(".")[0] in ("weft", "weft_onnx", "weft_llvm") for a in node.names)
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.startswith("weft")
                and not node.module.startswith("weft_darknet")
            ):
                assert {a.name for a in node.names} <= PUBLIC[node.module], f"{file.name}:{node.lineno}"
    assert sum(code_lines(file.read_text()) for file in files) < 660


def test_other_sources_and_options(tmp_path: Path) -> None:
    with pytest.raises(
        FrontendError, match=r"frontend 'darknet' has no option 'fast'\n  hint: 'darknet' has weights, width, height"
    ):
        weft.load(NET.encode(), fast=True, frontend="darknet")
    with pytest.raises(
        FrontendError,
        match=r"cannot read a Darknet network from a float\n  hint: give the path of a .cfg, or its bytes",
    ):
        weft.load(1.5, frontend="darknet")
    with pytest.raises(
        FrontendError,
        match=r"a network of bytes has no weights beside it\n  hint: name them: weft.load\(model, weights=…\)",
    ):
        weft.load((NET + CONV).encode())
    with pytest.raises(FrontendError, match=r"cannot read '.*gone.cfg'\n  why: No such file"):
        plugin.load(tmp_path / "gone.cfg", plugin.DarknetOptions())
    path, _, _ = pair(tmp_path)
    path.with_suffix(".weights").unlink()
    with pytest.raises(
        FrontendError,
        match=(
            r"cannot read '.*model.weights'\n  why: No such file.*\n  hint: put the .weights beside the .cfg, or name"
            r" it: weights=…"
        ),
    ):
        weft.load(path)
    with pytest.raises(FrontendError, match=r"cannot read '.*'\n  why: Is a directory"):
        weft.load(path, weights=tmp_path)


# -- weights ----------------------------------------------------------------------------------------------------------


def test_short_weights() -> None:
    at = (
        f"these bytes, line 5: layer 0, [convolutional]\n  why: {CONV_BYTES} bytes are wanted up to here,"
        f" {CONV_BYTES - 4} are there"
    )
    assert refused(NET + CONV, floats=55) == f"the .weights is too short\n  {at}"
    load(NET + CONV, floats=56)


def test_long_weights() -> None:
    assert (
        refused(NET + CONV, floats=57)
        == f"the .weights does not end with the network\n  why: {CONV_BYTES} bytes are wanted, {CONV_BYTES + 4} are"
        " there"
    )
    assert "20 bytes are wanted, 16 are there" in refused(NET + "[maxpool]\n", weights=HEADER[:16])


@pytest.mark.parametrize("size", [0, 1, 15])
def test_no_header(size: int, tmp_path: Path) -> None:
    said = f"no Darknet weights: a header of 16 or 20 bytes is wanted, {size} are there\n  hint: is it whole[?]"
    assert said.replace("[?]", "?") in refused(NET + CONV, weights=bytes(size))
    path, _, _ = pair(tmp_path)
    path.with_suffix(".weights").write_bytes(bytes(size))
    with pytest.raises(FrontendError, match=said):
        weft.load(path)


@pytest.mark.parametrize("version", [(0, 1), (0, 2), (1, 0), (2, 5), (1001, 0)])
def test_versions(version: tuple[int, int]) -> None:
    """32 bits of images seen before version 0.2; the matrix of a version beyond 1000 is transposed."""
    layers = (("convolutional", {"filters": 2}), ("connected", {"output": 5, "activation": "linear"}))
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 2)).astype(np.float32)
    network = Network(x, *layers, version=version if version in ((0, 1), (1001, 0)) else (0, 2))
    data = struct.pack("<2i", *version) + network.weights[8:]
    graph = load(cfg((3, 4, 2), *layers), weights=data)
    np.testing.assert_allclose(evaluate(graph, [x])[0], network.x, rtol=1e-5, atol=1e-5)


# -- sections and keys ------------------------------------------------------------------------------------------------


def test_spaces_comments_and_what_trains() -> None:
    text = (
        "\ufeff# a network\r\n[ net ]\r\n; training\r\nbatch = 64\nwidth= 6\nchan nels"
        " =3\nheight=8#8\nlearning_rate=0.001\nunheard_of=1\n"
    )
    text += (
        "[convolutional]\n filters = 2 \nsize=3 # small\npad=1\nactivation ="
        " leaky\nstopbackward=1\nxnor=0\n\n[cost]\ntype=sse\n"
    )
    graph = load(text, floats=56)
    assert str(graph.outputs[0].type) == "float32[batch, 2, 8, 6]" and graph.output_names == ["convolutional_0"]


def test_the_first_of_two_in_net_counts_as_in_darknet() -> None:
    assert load("[net]\nbatch=1\nbatch=64\nwidth=6\nwidth=9\nheight=1\nchannels=3\n[dropout]\n").inputs[0].shape[3] == 6


def test_vectors() -> None:
    graph = load("[net]\ninputs=12\n[connected]\noutput=3\nactivation=linear\n", floats=3 + 36)
    assert [str(v.type) for v in (*graph.inputs, *graph.outputs)] == [
        "float32[batch, 12, 1, 1]",
        "float32[batch, 3, 1, 1]",
    ]


def test_everything_malformed_at_once() -> None:
    said = refused(
        "[net]\nwidth=wide\nheight=8\nchannels\n[convolutional]\nfilters=-4\nfilters=5\nstride=0\npad=-1\n=3\n[softmax]\ntemperature=nan\ngroups=1.5\n"
    )
    assert said.splitlines() == [
        "'these bytes' is not a Darknet network",
        "  line 4: 'channels' is no key=value of a section",
        "  line 7: filters=5, and another filters in line 6",
        "  line 10: '=3' is no key=value of a section",
        "  line 2: width=wide in [net]: expected an integer from 0 to 2147483647",
        "  line 6: filters=-4 in [convolutional]: expected an integer from 1 to 2147483647",
        "  line 8: stride=0 in [convolutional]: expected an integer from 1 to 2147483647",
        "  line 9: pad=-1 in [convolutional]: expected an integer from 0 to 2147483647",
        "  line 12: temperature=nan in [softmax]: expected a number from -2147483647 to 2147483647",
        "  line 13: groups=1.5 in [softmax]: expected an integer from 1 to 2147483647",
        "  hint: is it complete?",
    ]
    assert "line 6: layers=1,,2 in [route]: expected integers from -2147483647 to 2147483647" in refused(
        NET + "[route]\nlayers=1,,2\n"
    )
    assert "size=99999999999 in [maxpool]: expected an integer" in refused(NET + "[maxpool]\nsize=99999999999\n")
    assert f"stride={'9' * 60} in [maxpool]: expected an integer" in refused(NET + f"[maxpool]\nstride={'9' * 5000}\n")


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "[net]\nwidth=3\n", "[convolutional]\nsize=3\n[net]\n", "just words", "\0\1\2\xff", "key=1\n"],
)
def test_no_network(text: str) -> None:
    assert "is not a Darknet network\n" in refused(text)
    assert "it is not a section [net] and sections of layers" in refused(text)


def test_everything_unsupported_at_once() -> None:
    text = (
        NET
        + "[deconvolutional]\noutput=3\n[convolutional]\nactivation=stair\nxnor=1\nstrid=2\n[crop]\n[net]\n"
        + "[shortcut]\nweights_type=per_channel\nfrom=-2\n"
    )
    said = refused(text, error=UnsupportedError)
    functions = "linear, logistic, relu, relu6, leaky, relie, elu, selu, gelu, tanh, hardtan, mish, swish, silu"
    assert said.splitlines() == [
        "'these bytes' uses what is not supported",
        "  line 5: [deconvolutional]",
        f"  line 8: activation=stair in [convolutional]; functions: {functions}",
        "  line 9: xnor=1 in [convolutional]",
        "  line 10: strid=2 in [convolutional]",
        "  line 11: [crop]",
        "  line 12: [net]",
        "  line 14: weights_type=per_channel in [shortcut]",
        "  hint: leave it out",
    ]


@pytest.mark.parametrize(
    "section",
    [
        "normalization",
        "deconvolutional",
        "Gaussian_yolo",
        "detection",
        "_x",
        "add",
    ],
)
def test_other_sections(section: str) -> None:
    assert f"line 5: [{section}]" in refused(NET + f"[{section}]\n", error=UnsupportedError)


# -- layers that do not fit -------------------------------------------------------------------------------------------

FITS = {
    "channels": ("[convolutional]\nfilters=4\ngroups=2\n", "3 channels and 4 filters cannot be cut into groups=2"),
    "filters": ("[convolutional]\nfilters=4\ngroups=3\n", "3 channels and 4 filters cannot be cut into groups=3"),
    "dilation": ("[convolutional]\nsize=3\ndilation=2\n", "dilation=2 and size=3 need a padding of 1, it is 0"),
    "window": ("[convolutional]\nsize=7\n", "its size is (1, 2, 0); Darknet counts from 1 to 2147483647"),
    "local": ("[local]\nsize=7\n", "size=7 is greater than its input of [8, 6] with a padding of 0"),
    "local_pad": ("[local]\nsize=5\npad=1\n", "pad=1 and size=5: Darknet pads by nothing or by half the kernel"),
    "pool": ("[maxpool]\nsize=9\npadding=0\n", "its size is (3, 0, -2); Darknet counts from 1 to 2147483647"),
    "empty_windows": ("[maxpool]\nsize=2\npadding=4\n", "padding=4 makes windows of size=2 that hold nothing"),
    "groups": ("[softmax]\ngroups=5\n", "groups=5 or temperature=1 cannot divide its 144 elements"),
    "zero": ("[softmax]\ntemperature=0\n", "groups=1 or temperature=0.0 cannot divide its 144 elements"),
    "reorg_channels": ("[reorg]\nstride=2\n", "3 channels cannot be cut by stride=2 twice"),
    "reorg_places": ("[reorg3d]\nstride=4\n", "its input of 8 × 6 cannot be cut by stride=4"),
    "reorg_reverse": ("[reorg3d]\nreverse=1\n", "reverse=1 has no meaning in [reorg3d]"),
    "no_layers": ("[route]\n", "it should name layers before layer 0, it names []"),
    "itself": ("[dropout]\n[route]\nlayers=1\n", "it should name layers before layer 1, it names [1]"),
    "too_early": ("[dropout]\n[route]\nlayers=-1,-2\n", "it should name layers before layer 1, it names [-1, -2]"),
    "sizes": ("[maxpool]\nstride=2\n[upsample]\n[route]\nlayers=0,1\n", "its layers differ: (3, 4, 3), (3, 8, 6)"),
    "group_id": ("[dropout]\n[route]\nlayers=0\ngroups=3\ngroup_id=3\n", "group_id=3 of groups=3 cuts no channels"),
    "route_groups": ("[dropout]\n[route]\nlayers=0\ngroups=2\n", "group_id=0 of groups=2 cuts no channels"),
    "shortcut": ("[maxpool]\nstride=2\n[upsample]\n[shortcut]\nfrom=0\n", "its input is 8 × 6, a layer to add 4 × 3"),
    "no_from": ("[dropout]\n[shortcut]\n", "it should name layers before layer 1, it names []"),
    "scale": (
        "[dropout]\n[maxpool]\n[scale_channels]\nfrom=0\n",
        "its input is (3, 8, 6), to scale one layer it should be (3, 1, 1)",
    ),
    "scale_two": (
        "[dropout]\n[avgpool]\n[scale_channels]\nfrom=0,0\n",
        "its input is (3, 1, 1), to scale one layer it should be (3, 1, 1)",
    ),
    "sam": (
        "[dropout]\n[avgpool]\n[sam]\nfrom=0\n",
        "its input is (3, 1, 1), to scale one layer it should be (3, 8, 6)",
    ),
    "yolo": ("[yolo]\nclasses=2\nmask=0,1\n", "2 boxes of 7 numbers are 14 channels, its input has 3"),
    "region": ("[region]\nclasses=2\nnum=3\n", "3 boxes of 7 numbers are 21 channels, its input has 3"),
    "coords": ("[region]\ncoords=1\nclasses=1\n", "coords=1: a box has at least x and y"),
    "great": ("[upsample]\nstride=100000\n", "its size is (3, 800000, 600000); Darknet counts from 1 to 2147483647"),
    "many_filters": ("[convolutional]\nfilters=2147483647\nsize=2147483647\npad=1\n", None),
    "many_outputs": ("[connected]\noutput=2147483647\n", None),
    "great_local": ("[upsample]\nstride=1000\n[local]\nfilters=2000000000\nsize=5999\n", None),
}


@pytest.mark.parametrize("name", FITS)
def test_layers_that_do_not_fit(name: str) -> None:
    text, why = FITS[name]
    tracemalloc.start()
    said = refused(NET + text, floats=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20, "what a network asks for is not allocated before it is known to be there"
    section, index = text.count("[") - 1, text[: text.rindex("[")].count("\n")
    place = f"these bytes, line {5 + index}: layer {section}, [{text[text.rindex('[') + 1 : text.rindex(']')]}]"
    assert place in said
    assert why is None or f"a layer does not fit the network\n  {place}\n  why: {why}" == said
    assert why is not None or "bytes are wanted up to here, 4020 are there" in said


def test_an_input_that_is_no_size() -> None:
    said = (
        "a layer does not fit the network\n  these bytes, line 1: [net]\n  why: its size is {}; Darknet counts from 1"
        " to 2147483647"
    )
    assert refused("[net]\nwidth=6\n[dropout]\n") == said.format("(0, 0, 6)")
    assert refused("[net]\nwidth=2000000\nheight=2000000\nchannels=3\n[maxpool]\n") == said.format(
        "(3, 2000000, 2000000)"
    )


def test_sizes_that_grow_are_stopped() -> None:
    """Every route doubles its channels: 40 lines would ask for petabytes."""
    assert "Darknet counts from 1 to 2147483647" in refused(NET + "[dropout]\n" + "[route]\nlayers=-1,-1\n" * 40)


KINDS = (
    "net",
    "convolutional",
    "maxpool",
    "route",
    "shortcut",
    "yolo",
    "region",
    "upsample",
    "reorg",
    "softmax",
    "local",
    "connected",
    "avgpool",
    "",
    "[x]",
)
KEYS = (
    "filters=2", "filters=0", "size=3", "size=99", "stride=2", "stride=-1", "pad=1", "padding=3", "groups=3",
    "groups=0", "layers=-1,-2", "layers=0",
    "layers=,", "from=-1", "from=99", "activation=mish", "classes=1", "num=1", "mask=0", "temperature=0", "scale=1e300",
    "scale=inf", "batch_normalize=1",
    "output=4", "=",
)  # fmt: skip
LINES = st.sampled_from([*(f"[{kind}]" for kind in KINDS), *KEYS])


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, max_size=14), st.integers(0, 400))
def test_any_lines_give_a_graph_or_a_message(lines: list[str], floats: int) -> None:
    try:
        graph = load(NET + "\n".join(lines), floats=floats)
    except FrontendError as error:
        assert len(str(error).splitlines()) > 1
    else:
        x = np.zeros((1, 3, 8, 6), np.float32)
        assert evaluate(graph, [x])[0].shape[0] == 1


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=60))
def test_any_bytes_give_a_message(text: bytes, weights: bytes) -> None:
    with pytest.raises(FrontendError):
        weft.load(text, frontend="darknet", weights=weights)
