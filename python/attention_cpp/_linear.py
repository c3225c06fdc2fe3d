"""Linear attention on arrays: a recurrence with a state of fixed size in place of keys and values."""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, Sequence, TypedDict, Unpack, overload

from . import _core
from ._arrays import FLOATING, as_array, dtype_name, empty, exported, finished, refuse_unknown, wrong_types
from ._operator import A
from ._options import Array, Integers


class LinearOptionArguments(TypedDict, total=False):
    """The options of linear_attention(), for type checkers."""

    scale: float | None
    log_decay: Array | None
    beta: Array | None
    delta: bool
    l2norm: bool
    l2norm_epsilon: float
    normalize: bool
    initial_state: Array | None
    cu_seqlens: Integers | None


class LinearGradients(NamedTuple, Generic[A]):
    """The result of linear_attention_backward(): arrays of the library of q. A gradient that was not wanted is None,
    and so is that of an array that was not given."""

    dq: A | None
    dk: A | None
    dv: A | None
    dlog_decay: A | None  # the shape of log_decay: summed over the axes that were broadcast
    dbeta: A | None
    dinitial_state: A | None


def _options_of(operation: str, given: dict[str, Any]) -> dict[str, Any]:
    """Options as the extension reads them."""
    refuse_unknown(operation, given, LinearOptionArguments.__annotations__)
    return {name: exported(value, name) for name, value in given.items() if value is not None}


def _state_shape(q: Any, v: Any, given: dict[str, Any]) -> tuple[int, ...]:
    """[N, Hv, Dk, Dv] of arrays that may lack leading axes."""
    starts = given.get("cu_seqlens")
    of_q, of_v = ((1,) * (4 - len(x.shape)) + tuple(x.shape) for x in (q, v))
    count = len(starts) - 1 if starts is not None and hasattr(starts, "__len__") else of_v[0]
    return max(count, 0), of_v[1], of_q[3], of_v[3] + bool(given.get("normalize"))


def _are_arrays(*arrays: Any) -> bool:
    """Whether results can be allocated; otherwise the extension says what is wrong."""
    return all(2 <= len(getattr(array, "shape", ())) <= 4 and dtype_name(array) in FLOATING for array in arrays)


@overload
def linear_attention(q: A, k: Array, v: Array, *, return_state: Literal[False] = False,
                     **options: Unpack[LinearOptionArguments]) -> A: ...


@overload
def linear_attention(q: A, k: Array, v: Array, *, return_state: Literal[True],
                     **options: Unpack[LinearOptionArguments]) -> tuple[A, A]: ...


@overload
def linear_attention(q: A, k: Array, v: Array, *, return_state: bool, **options: Unpack[LinearOptionArguments]
                     ) -> A | tuple[A, A]: ...


def linear_attention(q: Array, k: Array, v: Array, *, scale: float | None = None, log_decay: Array | None = None,
                     beta: Array | None = None, delta: bool = False, l2norm: bool = False,
                     l2norm_epsilon: float = 1e-6, normalize: bool = False, initial_state: Array | None = None,
                     cu_seqlens: Integers | None = None, return_state: bool = False) -> Any:
    """Computes the recurrence S_t = A_t S_{t-1} + k_t u_t^T, out_t = scale S_t^T q_t, in time linear in the length.

    u_t = beta_t v_t, or beta_t (v_t - (A_t S_{t-1})^T k_t) with the delta rule.

        >>> out, state = linear_attention(q, k, v, log_decay=g, beta=beta, delta=True, l2norm=True, return_state=True)

    Arguments
        q, k            [B, H, L, Dk]; v [B, Hv, L, Dv]: float32, float64, bfloat16 or float16, one type for all, any
                        strides. Hv is a multiple of H: value head h reads query and key head h / (Hv / H). All three
                        may lack leading axes. Dk and Dv are at most 1024
        scale           of the output, default 1 / sqrt(Dk)
        log_decay       log A_t, at most 0, floating [B|1, Hv|1, L|1, Dk|1]: [1, Hv, 1, 1] is a constant a head,
                        [B, Hv, L, 1] a number a token, [B, Hv, L, Dk] one for each row of the state. None: A_t = 1
        beta            floating [B, Hv, L]. None: 1
        delta           the delta rule: a token writes what its value differs by from what the state returns for its key
        l2norm          divides q and k by sqrt(sum of squares + l2norm_epsilon) first
        normalize       divides the output by the sum of its weights, which is one more column of the state:
                        [N, Hv, Dk, Dv + 1]. q and k should be positive features
        initial_state   [N, Hv, Dk, Dv] float32 (float64 for float64). None: 0. N is B, or how many packed sequences
        cu_seqlens      [N + 1] whole numbers: packed sequences, B = 1; the start of each in L, then the end of the last
        return_state    also return the state after the last token, of the shape and type of initial_state

    Returns out [B, Hv, L, Dv], or (out, state): arrays of the library of q. Tokens of no sequence get out = 0.

    Raises Error (a ValueError) or TypeError. The message names everything that is wrong, and nothing is written.
    """
    q, k, v = as_array(q), as_array(k), as_array(v)
    wrong_types("linear_attention", return_state=(return_state, "True or False"))
    given = _options_of("linear_attention", {
        "scale": scale, "log_decay": log_decay, "beta": beta, "delta": delta, "l2norm": l2norm,
        "l2norm_epsilon": l2norm_epsilon, "normalize": normalize, "initial_state": initial_state,
        "cu_seqlens": cu_seqlens})
    out = state = None
    if _are_arrays(q, v):
        out = empty(q, tuple(v.shape), dtype_name(q))
        if return_state:
            kind = "float64" if dtype_name(q) == "float64" else "float32"
            state = empty(q, _state_shape(q, v, given), kind)
    _core.linear_forward(exported(q, "q"), exported(k, "k"), exported(v, "v"), exported(out), exported(state), given)
    return (finished(out, q), finished(state, q)) if return_state else finished(out, q)


def linear_attention_backward(q: A, k: Array, v: Array, dout: Array, *, dstate: Array | None = None,
                              wanted: Sequence[str] = LinearGradients._fields,
                              **options: Unpack[LinearOptionArguments]) -> LinearGradients[A]:
    """Computes the gradients of linear_attention(), which recomputes the states of 64 tokens at a time.

        >>> dq, dk, dv, dlog_decay, dbeta, _ = linear_attention_backward(q, k, v, dout, log_decay=g, beta=beta)

    Arguments
        q, k, v     the arrays of the forward
        dout        [B, Hv, L, Dv], the gradient of the loss with respect to out; dstate [N, Hv, Dk, Dv], the one with
                    respect to the state that was returned, or None
        wanted      the names of the gradients to compute; dlog_decay, dbeta and dinitial_state need their arrays
        options     the options of the forward

    Returns LinearGradients(dq, dk, dv, dlog_decay, dbeta, dinitial_state), each of the type and shape of its array.

    Raises as linear_attention() does.
    """
    operation = "linear_attention_backward"
    q, k, v = as_array(q), as_array(k), as_array(v)
    given = _options_of(operation, dict(options))
    wrong_types(operation, wanted=(wanted, "list of strings"))
    unknown = sorted(set(wanted) - set(LinearGradients._fields))
    if unknown:
        raise _core.Error(f"[{operation}] there is no gradient " + ", ".join(map(repr, unknown)))
    sources = {"dq": q, "dk": k, "dv": v, **{"d" + name: as_array(options.get(name)) for name in (
        "log_decay", "beta", "initial_state")}}
    results = {name: empty(q, tuple(array.shape), dtype_name(array)) for name, array in sources.items()
               if name in wanted and 1 <= len(getattr(array, "shape", ())) <= (3 if name == "dbeta" else 4)
               and dtype_name(array) in FLOATING}
    _core.linear_backward(exported(q, "q"), exported(k, "k"), exported(v, "v"), exported(dout, "dout"),
                          exported(dstate, "dstate"), {name: exported(array) for name, array in results.items()}, given)
    return LinearGradients(*(finished(results[name], q) if name in results else None
                             for name in LinearGradients._fields))
