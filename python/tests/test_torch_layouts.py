"""Results in the form of torch's own: strides, type, device, gradient and nested layout, for each function, option."""

import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402

B, H, L, S, D = 2, 4, 5, 7, 8
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# How q is in memory, from the axes in the order in which they are.
LAYOUTS = {
    "bhld": lambda b, h, n, d, **kind: torch.randn(b, h, n, d, **kind),
    "blhd": lambda b, h, n, d, **kind: torch.randn(b, n, h, d, **kind).transpose(1, 2),
    "hbld": lambda b, h, n, d, **kind: torch.randn(h, b, n, d, **kind).transpose(0, 1),
    "lbhd": lambda b, h, n, d, **kind: torch.randn(n, b, h, d, **kind).permute(1, 2, 0, 3),
    "packed": lambda b, h, n, d, **kind: torch.randn(b, n, 3, h, d, **kind)[:, :, 1].transpose(1, 2),
    "slice": lambda b, h, n, d, **kind: torch.randn(b, h, n + 2, d + 3, **kind)[:, :, 1:n + 1, :d],
    "columns": lambda b, h, n, d, **kind: torch.randn(b, h, d, n, **kind).transpose(2, 3),
    "one head": lambda b, h, n, d, **kind: torch.randn(b, 1, n, d, **kind).expand(-1, h, -1, -1),
    "one text": lambda b, h, n, d, **kind: torch.randn(1, h, n, d, **kind).expand(b, -1, -1, -1),
}
MASKS = {
    "none": lambda dtype, queries, keys: None,
    "boolean": lambda dtype, queries, keys: torch.ones(queries, keys, dtype=torch.bool),
    "added": lambda dtype, queries, keys: torch.zeros(1, 1, queries, keys, dtype=dtype),
    "recorded": lambda dtype, queries, keys: torch.zeros(1, 1, queries, keys, dtype=dtype, requires_grad=True),
    "corner": lambda dtype, queries, keys: causal_lower_right(queries, keys),
}
SIZES = {"": (B, L, S), "one query": (B, 1, S), "no query": (B, 0, S), "no key": (B, L, 0), "no text": (0, L, S)}


def form_of(tensor):
    """All but the values. Strides along axes of one entry, or of none at all, are nobody's business."""
    empty = 0 in tensor.shape
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1 and not empty]
    return tuple(tensor.shape), strides, tensor.dtype, tensor.device, tensor.requires_grad, tensor.layout


def compare(ours, theirs, arguments, options, what):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = form_of(theirs(*arguments, **options))
        except (RuntimeError, ValueError, TypeError):
            return 0  # torch refuses it
    assert form_of(ours(*arguments, **options)) == expected, what
    return 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scaled_dot_product_attention_has_torchs_form(layout):
    count = 0
    for dtype, mask, size, dropout, grouped, width, recorded in itertools.product(
            DTYPES, MASKS, SIZES, (0.0, 0.5), (False, True), (D, 12), (False, True)):
        batch, queries, keys = SIZES[size]
        if mask in ("recorded", "corner") and 0 in (batch, queries, keys):
            continue  # torch forgets a record that no gradient flows through; a corner of nothing is none
        q = LAYOUTS[layout](batch, H, queries, D, dtype=dtype).requires_grad_(recorded)
        k, v = (LAYOUTS[other](batch, 2 if grouped else H, keys, n, dtype=dtype)
                for other, n in (("blhd", D), ("bhld", width)))
        options = {"attn_mask": MASKS[mask](dtype, queries, keys), "dropout_p": dropout, "enable_gqa": grouped}
        count += compare(drop_in.scaled_dot_product_attention, F.scaled_dot_product_attention, (q, k, v), options,
                         (dtype, mask, size, dropout, grouped, width, recorded))
    assert count > 800


@pytest.mark.parametrize("keys_as", ["columns", "one head", "one text", "packed"])
def test_the_layout_of_keys_and_values(keys_as):
    for layout, which in itertools.product(("bhld", "blhd"), (("k",), ("v",), ("k", "v"))):
        q, k, v = (LAYOUTS[keys_as if name in which else layout](B, H, n, D)
                   for name, n in (("q", L), ("k", S), ("v", S)))
        assert compare(drop_in.scaled_dot_product_attention, F.scaled_dot_product_attention, (q, k, v), {}, which)


@pytest.mark.parametrize("shapes", [
    ((L, D), (S, D)), ((H, L, D), (H, S, D)), ((3, B, H, L, D), (3, B, H, S, D)), ((B, H, L, D), (1, H, S, D)),
    ((B, H, L, D), (B, 1, S, D)), ((B, H, L, D), (H, S, D)), ((3, 1, H, L, D), (1, B, 1, S, D))])
def test_axes_that_are_missing_or_broadcast(shapes):
    of_q, of_k = shapes
    for dropout, is_causal, transposed in itertools.product((0.0, 0.5), (False, True), (False, True)):
        q = torch.randn(of_q)
        if transposed and q.dim() > 2:
            q = q.transpose(-2, -3).contiguous().transpose(-2, -3)
        k = torch.randn(of_k)
        assert compare(drop_in.scaled_dot_product_attention, F.scaled_dot_product_attention, (q, k, k),
                       {"dropout_p": dropout, "is_causal": is_causal}, (dropout, is_causal))


def test_autocast_has_torchs_form():
    q = LAYOUTS["blhd"](B, H, L, D)
    with torch.autocast("cpu", torch.bfloat16):
        for dropout in (0.0, 0.5):
            assert compare(drop_in.scaled_dot_product_attention, F.scaled_dot_product_attention, (q, q, q),
                           {"dropout_p": dropout}, dropout)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("lengths", [(5, 9, 2), (3, 0, 4), (1,)])
def test_nested_results_keep_their_lengths(lengths, known):
    rows = [torch.randn(n, H, D) for n in lengths]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    if not known:  # as of offsets alone
        nested = torch.nested.nested_tensor_from_jagged(nested.values(), offsets=nested.offsets())
    q = nested.transpose(1, 2)
    ours, theirs = (function(q, q, q) for function in (drop_in.scaled_dot_product_attention,
                                                       F.scaled_dot_product_attention))
    assert ours.shape == theirs.shape == q.shape and ours.layout is torch.jagged and ours.dtype == theirs.dtype
    assert ours.offsets() is theirs.offsets() is q.offsets()
    assert ours.values().stride() == theirs.values().stride()
    a, b = (result.transpose(1, 2).to_padded_tensor(0.0) for result in (ours, theirs))
    assert a.shape == b.shape == (len(lengths), max(lengths), H, D)
    torch.testing.assert_close(a, b)
    assert ours._get_max_seqlen() == theirs._get_max_seqlen() and ours._get_min_seqlen() == theirs._get_min_seqlen()


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_multihead_attention_has_torchs_form(dtype, recorded):
    for kind, batch_first, weights, average, padded in itertools.product(
            ("self", "cross"), (False, True), (False, True), (False, True), (False, True)):
        module = torch.nn.MultiheadAttention(16, 2, batch_first=batch_first, dtype=dtype).train(recorded)
        x = torch.randn(3, 3, 16, dtype=dtype)
        y = x if kind == "self" else torch.randn(3, 3, 16, dtype=dtype)
        options = {"need_weights": weights, "average_attn_weights": average,
                   "key_padding_mask": torch.tensor([[False, False, True]] * 3) if padded else None}
        with torch.set_grad_enabled(recorded):
            expected = module(x, y, y, **options)
            with drop_in.enabled():
                actual = module(x, y, y, **options)
        assert [None if t is None else form_of(t) for t in actual] == [None if t is None else form_of(t)
                                                                      for t in expected], (kind, options)


def test_flex_attention_has_torchs_form():
    for layout, dtype, width, with_lse in itertools.product(LAYOUTS, (torch.float32, torch.bfloat16), (D, 16),
                                                            (False, True)):
        q, k = (LAYOUTS[layout](B, H, n, D, dtype=dtype) for n in (L, S))
        v = torch.randn(B, H, S, width, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = torch_flex.flex_attention(q, k, v, return_lse=with_lse)
        actual = drop_in.flex_attention(q, k, v, return_lse=with_lse)
        for a, b in zip(*(result if with_lse else (result,) for result in (actual, expected))):
            assert (a.shape, a.dtype, a.device, a.requires_grad) == (b.shape, b.dtype, b.device, b.requires_grad)


def test_varlen_results_are_contiguous():
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    with drop_in.enabled():
        for dtype, transposed in itertools.product(DTYPES, (False, True)):
            x = torch.randn(H, 5, D, dtype=dtype).transpose(0, 1) if transposed else torch.randn(5, H, D, dtype=dtype)
            out = varlen.varlen_attn(x, x, x, starts, starts, 3, 3)
            assert out.shape == x.shape and out.dtype == dtype and out.is_contiguous()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_of_the_operator_have_the_memory_order_of_q(layout):
    """attention_cpp.torch.attention and attention_cpp.attention, of which torch has no counterpart."""
    for dtype, recorded in itertools.product(DTYPES, (False, True)):
        q = LAYOUTS[layout](B, H, L, D, dtype=dtype)
        k = torch.randn(B, 2, S, D, dtype=dtype)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        for attend in (drop_in.attention, attention_cpp.attention):
            if recorded and attend is drop_in.attention:
                q.requires_grad_()
            with torch.set_grad_enabled(recorded and attend is drop_in.attention):
                out, lse = attend(q, k, k, return_lse=True)
            assert out.shape == (B, H, L, D) and out.dtype == dtype and lse.shape == (B, H, L) and lse.dtype == wide
            assert attend is attention_cpp.attention or out.stride() == torch.empty_like(q).stride()
            assert out.requires_grad == lse.requires_grad == (recorded and attend is drop_in.attention)
