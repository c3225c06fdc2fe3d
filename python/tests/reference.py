"""The operator as NumPy expressions in float64 that store n x n: what the tests hold the package against."""

import numpy as np


def scores_and_mask(q, k, *, scale=None, softcap=0.0, causal=False, window=(-1, -1), alignment=None, key_length=None,
                    query_length=None, offset=None, mask=None, bias=None, alibi_slopes=None, query_segment_ids=None,
                    key_segment_ids=None, shard=(0, 0, 0, 0, 0, 0), **_):
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    B, H, Lq, D = q.shape
    k = np.repeat(k, H // k.shape[1], axis=1)
    Lk = k.shape[2]
    s = np.einsum("bhid,bhjd->bhij", q, k) * (1 / np.sqrt(D) if scale is None else scale)
    if softcap > 0:
        s = softcap * np.tanh(s / softcap)
    _, _, first_query, first_key, queries, keys = shard
    queries, keys = queries or first_query + Lq, keys or first_key + Lk
    lengths = np.full(B, keys) if key_length is None else np.asarray(key_length)
    first = np.zeros(B, int)
    if alignment == "bottom_right":
        first = lengths - (np.full(B, queries) if query_length is None else np.asarray(query_length))
    elif alignment == "offset":
        first = np.asarray(offset)
    p = np.arange(first_query, first_query + Lq)[None, None, :, None] + first[:, None, None, None]
    j = np.arange(first_key, first_key + Lk)[None, None, None, :]
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


def linear_attention(q, k, v, *, scale=None, log_decay=None, beta=None, delta=False, l2norm=False, l2norm_epsilon=1e-6,
                     normalize=False, initial_state=None, cu_seqlens=None, work=np.float64):
    """out [B, Hv, L, Dv] and the states [N, Hv, Dk, Dv]: the recurrence, token by token, in the type `work`."""
    q, k, v = (np.asarray(x, work) for x in (q, k, v))
    B, H, L, Dk = q.shape
    q, k = (np.repeat(x, v.shape[1] // H, axis=1) for x in (q, k))
    if l2norm:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + work(l2norm_epsilon)) for x in (q, k))
    if normalize:
        v = np.concatenate([v, np.ones_like(v[..., :1])], -1)
    Hv, columns = v.shape[1], v.shape[3]
    decay = np.exp(np.broadcast_to(np.zeros((), work) if log_decay is None else np.asarray(log_decay, work),
                                   (B, Hv, L, Dk)))
    beta = np.ones((B, Hv, L), work) if beta is None else np.asarray(beta, work)
    rows = [(b, 0, L) for b in range(B)] if cu_seqlens is None else [
        (0, begin, end) for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:])]
    states = np.zeros((len(rows), Hv, Dk, columns), work)
    if initial_state is not None:
        states += np.asarray(initial_state, work)
    out = np.zeros((B, Hv, L, columns), work)
    for state, (b, begin, end) in zip(states, rows):
        for t in range(begin, end):
            state *= decay[b, :, t, :, None]
            value = v[b, :, t] - np.einsum("hkv,hk->hv", state, k[b, :, t]) if delta else v[b, :, t]
            state += np.einsum("hk,hv->hkv", k[b, :, t], beta[b, :, t, None] * value)
            out[b, :, t] = np.einsum("hkv,hk->hv", state, q[b, :, t])
    out *= work(1 / np.sqrt(Dk) if scale is None else scale)
    if normalize:
        weights = out[..., -1:]
        out = np.where(weights == 0, 0, out[..., :-1] / np.where(weights == 0, 1, weights))
    return out, states
