"""Attention of com.microsoft, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.contrib import contrib_model, same_as_onnxruntime

import weft
from weft.errors import UnsupportedError

F, I32 = np.float32, np.int32
random = np.random.default_rng(7)
B, S, H, D = 2, 5, 4, 8
WIDE = H * D


def floats(*shape: int) -> Any:
    return random.standard_normal(shape).astype(F)


def attention_inputs(b: int = B, s: int = S) -> list[Any]:
    return [floats(b, s, 24), floats(24, 3 * WIDE) / 4, floats(3 * WIDE)]


RIGHT = np.array([5, 3], I32)
MASKS: dict[str, Any] = {
    "none": None,
    "tokens": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], I32),
    "ends": RIGHT,
    "both_ends": np.array([5, 4, 0, 1], I32),
    "pairs": np.tril(np.ones((B, S, S), I32)),
}


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", list(MASKS))
def test_attention(mask: str, causal: int) -> None:
    inputs = attention_inputs() + ([] if mask == "none" else [MASKS[mask]])
    same_as_onnxruntime("Attention", inputs, num_heads=H, unidirectional=causal, outputs=1)


def test_attention_of_open_sizes() -> None:
    inputs = [*attention_inputs(), MASKS["tokens"]]
    more = [floats(1, 7, 24), *inputs[1:3], np.array([[0, 1, 1, 1, 1, 1, 1]], I32)]
    dims = {0: ["batch", "seq", 24], 3: ["batch", "seq"]}
    same_as_onnxruntime("Attention", inputs, num_heads=H, dims=dims, further=[more])


def test_attention_with_a_bias_and_a_scale() -> None:
    inputs = [*attention_inputs(), None, None, floats(1, H, S, S)]
    same_as_onnxruntime("Attention", inputs, num_heads=H, scale=0.25)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_states(causal: int) -> None:
    inputs = [*attention_inputs(), None, floats(2, B, H, 3, D)]
    same_as_onnxruntime("Attention", inputs, num_heads=H, unidirectional=causal, outputs=2)
    inputs = [*attention_inputs(), np.ones((B, S + 3), I32), floats(2, B, H, 3, D)]
    same_as_onnxruntime("Attention", inputs, num_heads=H, unidirectional=causal, outputs=2)


def test_attention_of_values_of_another_width() -> None:
    inputs = [floats(B, S, 24), floats(24, 2 * WIDE + 2 * WIDE) / 4, floats(4 * WIDE)]
    same_as_onnxruntime("Attention", inputs, num_heads=H, qkv_hidden_sizes=[WIDE, WIDE, 2 * WIDE])


@pytest.mark.parametrize("name", ["do_rotary", "past_present_share_buffer"])
def test_attention_of_what_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"Attention: attribute '{name}' = 1"):
        weft.load(contrib_model("Attention", attention_inputs(), num_heads=H, **{name: 1}))


def triple(b: int = B, s: int = S, t: int = 6) -> list[Any]:
    return [floats(b, s, WIDE), floats(b, t, WIDE), floats(b, t, WIDE)]


@pytest.mark.parametrize(
    ("rest", "attributes"),
    [
        ([], {}),
        ([floats(3 * WIDE)], {}),
        ([None, np.array([[1] * 6, [1, 1, 1, 1, 0, 0]], I32)], {}),
        ([None, np.array([6, 2], I32)], {"mask_filter_value": -1e4}),
        ([None, None, floats(1, 1, S, 6)], {"scale": 0.5}),
        ([floats(3 * WIDE), np.array([[1] * 6, [1, 1, 1, 0, 0, 0]], I32), floats(B, H, S, 6)], {}),
    ],
)
def test_multi_head_attention(rest: Any, attributes: Any) -> None:
    same_as_onnxruntime("MultiHeadAttention", [*triple(), *rest], num_heads=H, **attributes)


def test_multi_head_attention_of_open_sizes() -> None:
    dims = {k: ["batch", n, WIDE] for k, n in enumerate(("s", "t", "t"))}
    same_as_onnxruntime("MultiHeadAttention", triple(), num_heads=H, dims=dims, further=[triple(1, 1, 9)])


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention_with_states(causal: int) -> None:
    past = [None, None, None, floats(B, H, 3, D), floats(B, H, 3, D)]
    same_as_onnxruntime("MultiHeadAttention", [*triple(t=S), *past], num_heads=H, outputs=3, unidirectional=causal)


def test_multi_head_attention_of_packed_operands() -> None:
    """ONNX Runtime has them on GPUs only: as the same operands, not packed, which it has here."""
    q, k, v = triple(t=S)
    (wanted,) = same_as_onnxruntime("MultiHeadAttention", [q, k, v], num_heads=H)
    apart = [x.reshape(B, S, H, D) for x in (q, k, v)]
    for packed in ([np.stack(apart, 3)], [q, np.stack(apart[1:], 3)]):
        proto = contrib_model("MultiHeadAttention", packed, num_heads=H)
        found = weft.compile(proto).run({f"x{n}": x for n, x in enumerate(packed)})["y0"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_multi_head_attention_over_states() -> None:
    same_as_onnxruntime("MultiHeadAttention", [floats(B, S, WIDE), floats(B, H, 6, D), floats(B, H, 6, D)], num_heads=H)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", [(B, S, WIDE), (B, H, S, D)])
def test_rotary_embedding(shape: tuple[int, ...], interleaved: int) -> None:
    tables = [floats(16, D // 2), floats(16, D // 2)]
    for positions in (np.array([3], np.int64), np.array([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]], np.int64)):
        inputs = [floats(*shape), positions, *tables]
        same_as_onnxruntime("RotaryEmbedding", inputs, interleaved=interleaved)


def test_rotary_embedding_of_a_part() -> None:
    inputs = [floats(B, S, WIDE), np.array([0], np.int64), floats(16, 2), floats(16, 2)]
    same_as_onnxruntime("RotaryEmbedding", inputs, num_heads=H, rotary_embedding_dim=4)


# -- GroupQueryAttention ----------------------------------------------------------------------------------------------


def group_query(b: int, s: int, past: int, lengths: list[int], room: int | None = None, d: int = D) -> list[Any]:
    """Operands of four heads and two groups."""
    states = [floats(b, 2, past if room is None else room, d) for _ in range(2)]
    counts = [np.array(lengths, I32) - 1, np.array(max(lengths), I32)]
    return [floats(b, s, H * d), floats(b, s, 2 * d), floats(b, s, 2 * d), *states, *counts]


@pytest.mark.parametrize(
    "attributes", [{}, {"scale": 0.2}, {"softcap": 5.0}, {"local_window_size": 2}, {"local_window_size": 4}]
)
@pytest.mark.parametrize(("s", "past"), [(5, 0), (1, 4), (3, 4)])
def test_group_query_attention(s: int, past: int, attributes: Any) -> None:
    inputs = group_query(B if past == 0 or s == 1 else 1, s, past, [s + past] * (B if past == 0 or s == 1 else 1))
    same_as_onnxruntime("GroupQueryAttention", inputs, num_heads=H, kv_num_heads=2, outputs=3, **attributes)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("s", "past"), [(5, 0), (1, 4)])
def test_group_query_attention_with_rotations(s: int, past: int, interleaved: int) -> None:
    inputs = [*group_query(B, s, past, [s + past] * B, d=16), floats(12, 8), floats(12, 8)]
    same_as_onnxruntime(
        "GroupQueryAttention", inputs, num_heads=H, kv_num_heads=2, outputs=3, do_rotary=1,
        rotary_interleaved=interleaved,
    )  # fmt: skip


def test_group_query_attention_of_sequences_of_other_lengths() -> None:
    """Each sequence of the batch writes behind its own keys."""
    inputs = group_query(B, 1, 0, [6, 4], room=8)
    y, keys, _ = same_as_onnxruntime("GroupQueryAttention", inputs, num_heads=H, kv_num_heads=2, outputs=3)
    assert y.shape == (B, 1, WIDE) and keys.shape == (B, 2, 8, D)


def test_group_query_attention_of_packed_operands() -> None:
    inputs = group_query(B, 5, 0, [5, 5])
    inputs = [floats(B, 5, WIDE + 4 * D), None, None, *inputs[3:]]
    same_as_onnxruntime("GroupQueryAttention", inputs, num_heads=H, kv_num_heads=2, outputs=3)


def test_group_query_attention_of_open_sizes() -> None:
    """A prompt, then a token at a time."""
    dims: dict[int, Any] = {0: ["batch", "seq", WIDE], 5: ["batch"]}
    for k in (1, 2, 3, 4):
        dims[k] = ["batch", "seq", 2 * D] if k < 3 else ["batch", 2, "past", D]
    further = [group_query(1, 1, n, [n + 1]) for n in (5, 6)]
    same_as_onnxruntime(
        "GroupQueryAttention", group_query(1, 5, 0, [5]), num_heads=H, kv_num_heads=2, outputs=3, dims=dims,
        further=further,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ({"smooth_softmax": 1}, "attribute 'smooth_softmax' = 1"),
        ({"k_quant_type": "PER_TENSOR"}, "attribute 'k_quant_type' = PER_TENSOR"),
        ({"causal": 0}, "attribute 'causal' = 0"),
    ],
)
def test_group_query_attention_of_what_is_refused(attributes: Any, wanted: str) -> None:
    proto = contrib_model("GroupQueryAttention", group_query(1, 2, 0, [2]), num_heads=H, kv_num_heads=2, **attributes)
    with pytest.raises(UnsupportedError, match=f"GroupQueryAttention: {wanted}"):
        weft.load(proto)


# -- integers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, RIGHT])
def test_quantised_attention(mask: Any) -> None:
    x = random.integers(0, 256, (B, S, 24)).astype(np.uint8)
    w = random.integers(-128, 128, (24, 3 * WIDE)).astype(np.int8)
    zeros = [np.array(128, np.uint8), np.array(0, np.int8)]
    inputs = [x, w, floats(3 * WIDE), np.array(0.02, F), np.array(0.01, F), mask, *zeros]
    same_as_onnxruntime("QAttention", inputs, constants=[1, 3, 4, 6, 7], num_heads=H, tolerance=1e-4)
