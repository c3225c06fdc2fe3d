"""The operator as NumPy expressions in float64 that store n x n: what the tests hold the package against."""

import numpy as np


def scores_and_mask(q, k, *, scale=None, softcap=0.0, causal=False, window=(-1, -1), alignment=None, key_length=None,
                    query_length=None, offset=None, mask=None, bias=None, alibi_slopes=None, query_segment_ids=None,
                    key_segment_ids=None, **_):
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    B, H, Lq, D = q.shape
    k = np.repeat(k, H // k.shape[1], axis=1)
    Lk = k.shape[2]
    s = np.einsum("bhid,bhjd->bhij", q, k) * (1 / np.sqrt(D) if scale is None else scale)
    if softcap > 0:
        s = softcap * np.tanh(s / softcap)
    lengths = np.full(B, Lk) if key_length is None else np.asarray(key_length)
    first = np.zeros(B, int)
    if alignment == "bottom_right":
        first = lengths - (np.full(B, Lq) if query_length is None else np.asarray(query_length))
    elif alignment == "offset":
        first = np.asarray(offset)
    p = np.arange(Lq)[None, None, :, None] + first[:, None, None, None]
    j = np.arange(Lk)[None, None, None, :]
    allowed = np.broadcast_to(j < lengths[:, None, None, None], s.shape)
    right = 0 if causal else window[1]
    if right >= 0:
        allowed = allowed & (j <= p + right)
    if window[0] >= 0:
        allowed = allowed & (j >= p - window[0])
    if mask is not None:
        allowed = allowed & np.asarray(mask)
    if query_segment_ids is not None:
        queries, keys = np.asarray(query_segment_ids)[:, None, :, None], np.asarray(key_segment_ids)[:, None, None]
        allowed = allowed & (queries == keys)
    if bias is not None:
        s = s + np.asarray(bias, np.float64)
    if alibi_slopes is not None:
        s = s - np.asarray(alibi_slopes, np.float64)[None, :, None, None] * abs(p - j)
    return s, allowed


def weights(q, k, *, sink=None, **options):
    """P [B, H, Lq, Lk] and lse [B, H, Lq]."""
    s, allowed = scores_and_mask(q, k, **options)
    s = np.where(allowed, s, -np.inf)
    if sink is not None:
        column = np.broadcast_to(np.asarray(sink, np.float64)[None, :, None, None], (*s.shape[:3], 1))
        s = np.concatenate([s, column], -1)
    highest = s.max(-1, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        e = np.where(np.isinf(s), 0, np.exp(s - highest))
        total = e.sum(-1, keepdims=True)
        p = np.where(total > 0, e / total, 0)
        lse = np.where(total > 0, highest + np.log(total), -np.inf)[..., 0]
    return (p if sink is None else p[..., :-1]), lse


def attention(q, k, v, *, dropout=0.0, keep=None, **options):
    """out [B, H, Lq, Dv] and lse."""
    p, lse = weights(q, k, **options)
    if keep is not None:
        p = p * keep / (1 - dropout)
    v = np.repeat(np.asarray(v, np.float64), p.shape[1] // np.shape(v)[1], axis=1)
    return np.einsum("bhij,bhjd->bhid", p, v), lse
