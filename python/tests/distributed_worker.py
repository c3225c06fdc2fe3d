"""One rank of test_torch_distributed.py, which starts several by python -m torch.distributed.run."""

import sys

import torch
import torch.distributed as dist

import attention_cpp
import attention_cpp.torch as drop_in
from attention_cpp.torch import distributed
from attention_cpp.torch.distributed import DistributedAttention, Placement

B, H, HK, D = 2, 6, 3, 8
CLOSE = dict(rtol=1e-10, atol=1e-11)  # float64


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shards(placement, *tensors):
    return [placement.take(x, 2).requires_grad_() for x in tensors]


def error_of(call):
    try:
        call()
    except (attention_cpp.Error, TypeError) as error:
        return str(error)
    return ""


def expect(placement, name, mine, whole, dim=2):
    torch.testing.assert_close(mine, placement.take(whole, dim), **CLOSE, msg=lambda text: f"{name}: {text}")


def case_options():
    """Every option of the whole, whatever its shape, against one process."""
    L = 40
    bias, rows = draw(B, H, L, L, seed=5), draw(1, H, 1, L, seed=6)
    table = {
        "plain": {}, "causal": {"causal": True}, "window": {"window": (5, 2)}, "softcap": {"softcap": 1.5},
        "lengths": {"key_length": [17, 40]}, "sink": {"sink": draw(H, seed=7).float()},
        "slopes": {"alibi_slopes": draw(H, seed=8).abs().float()}, "dropout": {"dropout": 0.3, "seed": 5},
        "segments": {"query_segment_ids": torch.arange(L) // 13, "key_segment_ids": torch.arange(L) // 13},
        "bias": {"bias": bias}, "bias of keys": {"bias": rows},
        "mask": {"mask": draw(1, 1, L, L, seed=9) > -1},
        "blocks": {"blocks": (draw(1, H, 5, 5, seed=10) > -0.5, 8, 8)},
    }
    for kind in ("contiguous", "zigzag", "striped"):
        placement = Placement(kind, L, 4)
        for schedule in ("ring", "gather", "heads"):
            for name, options in table.items():
                check_options(placement, schedule, name, options)


def check_options(placement, schedule, name, options):
    L = placement.tokens
    whole = [draw(B, heads, L, D, seed=seed).requires_grad_() for seed, heads in enumerate((H, HK, HK))]
    given, of_rank = dict(options), dict(options)
    sources, own = list(whole), shards(placement, *(x.detach() for x in whole))
    if "bias" in options:
        given["bias"] = options["bias"].clone().requires_grad_()
        has_rows = options["bias"].shape[2] == L
        of_rank["bias"] = (placement.take(options["bias"], 2) if has_rows else options["bias"].clone()).requires_grad_()
        sources.append(given["bias"])
    if "mask" in options:
        of_rank["mask"] = placement.take(options["mask"], 2)
    out, lse = drop_in.attention(*whole, return_lse=True, **given)
    mine, mine_lse = distributed.attention(*own, placement, schedule=schedule, return_lse=True, **of_rank)
    expect(placement, name, mine, out.detach())
    expect(placement, name, mine_lse, lse.detach())
    gradient, of_lse = draw(*out.shape, seed=20), draw(*lse.shape, seed=21)
    torch.autograd.backward([out, lse], [gradient, of_lse])
    torch.autograd.backward([mine, mine_lse], [placement.take(gradient, 2), placement.take(of_lse, 2)])
    for x, x_own in zip(whole, own):
        expect(placement, f"gradient with {name}", x_own.grad, x.grad)
    if "bias" in options:
        grad = given["bias"].grad
        torch.testing.assert_close(of_rank["bias"].grad, placement.take(grad, 2) if has_rows else grad, **CLOSE)


def case_ring_functions():
    """The placements of ring-flash-attention: parts of equal length by rank, of each sequence."""
    rank, size = dist.get_rank(), dist.get_world_size()
    n = 12
    q, k, v = (draw(B, n * size, heads, D, seed=seed) for seed, heads in enumerate((H, HK, HK)))
    gradient = draw(*q.shape, seed=4)
    for name, part in (("ring", [rank]), ("zigzag_ring", [rank, 2 * size - 1 - rank]), ("stripe", None)):
        def own(x, part=part):
            if part is None:
                return x[:, rank::size].contiguous()
            pieces = x.chunk(len(part) * size, 1)
            return torch.cat([pieces[piece] for piece in part], 1)

        for causal in (False, True):
            inputs = [x.clone().requires_grad_() for x in (q, k, v)]
            out = attention_cpp.flash_attn.flash_attn_func(*inputs, causal=causal)
            out.backward(gradient)
            mine = [own(x).requires_grad_() for x in (q, k, v)]
            function = getattr(distributed, f"{name}_flash_attn_func")
            result, lse, _ = function(*mine, causal=causal, return_attn_probs=True)
            result.backward(own(gradient))
            torch.testing.assert_close(result, own(out.detach()), **CLOSE)
            whole_lse = attention_cpp.flash_attn.flash_attn_func(q, k, v, causal=causal, return_attn_probs=True)[1]
            torch.testing.assert_close(lse, own(whole_lse.transpose(1, 2)).transpose(1, 2), **CLOSE)
            for x, x_own in zip(inputs, mine):
                torch.testing.assert_close(x_own.grad, own(x.grad), **CLOSE)
            packed = torch.stack([own(x) for x in (q, q, q)], 2)
            torch.testing.assert_close(
                getattr(distributed, f"{name}_flash_attn_qkvpacked_func")(packed, causal=causal),
                own(attention_cpp.flash_attn.flash_attn_func(q, q, q, causal=causal)), **CLOSE)


    for shape in ((0, n), (B, 0)):
        empty = draw(*shape, H, D).requires_grad_()
        distributed.stripe_flash_attn_func(empty, empty, empty).sum().backward()
        assert empty.grad.shape == empty.shape
    odd = draw(B, 5 * size, H, D)
    torch.testing.assert_close(distributed.stripe_flash_attn_func(*[odd[:, rank::size]] * 3, causal=True),
                               attention_cpp.flash_attn.flash_attn_func(odd, odd, odd, causal=True)[:, rank::size],
                               **CLOSE)


def case_varlen():
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [4, 10, 2]  # on each rank
    starts = torch.tensor([0, 4, 14, 16], dtype=torch.int32)
    whole = [[draw(length * size, heads, D, seed=10 * n + seed) for seed, heads in enumerate((H, HK, HK))]
             for n, length in enumerate(lengths)]
    for name, part in (("ring", [rank]), ("zigzag_ring", [rank, 2 * size - 1 - rank])):
        def own(x, part=part):
            pieces = x.chunk(len(part) * size, 0)
            return torch.cat([pieces[piece] for piece in part])

        inputs = [torch.cat([own(sequence[n]) for sequence in whole]).requires_grad_() for n in range(3)]
        out = getattr(distributed, f"{name}_flash_attn_varlen_func")(*inputs, starts, 10, causal=True)
        expected = torch.cat([own(attention_cpp.flash_attn.flash_attn_func(*(x[None] for x in sequence),
                                                                           causal=True)[0]) for sequence in whole])
        torch.testing.assert_close(out, expected, **CLOSE)
        out.sum().backward()
        assert all(x.grad is not None for x in inputs)


PACKED = [0, 5, 5, 17, 30, 36]


def case_llama3():
    """Packed sequences that ranks share, one of them empty."""
    rank, size = dist.get_rank(), dist.get_world_size()
    starts = torch.tensor(PACKED, dtype=torch.int32)
    q, k, v = (draw(36, heads, D, seed=seed).requires_grad_() for seed, heads in enumerate((H, HK, HK)))
    for causal in (False, True):
        out = attention_cpp.flash_attn.flash_attn_varlen_func(q, k, v, starts, starts, 13, 13, causal=causal)
        of_whole = torch.autograd.grad(out.sin().sum(), (q, k, v))
        mine = [x.detach().chunk(size)[rank].clone().requires_grad_() for x in (q, k, v)]
        *prepared, keys = distributed.llama3_flash_attn_prepare_cu_seqlens(starts, causal, rank, size)
        assert keys.start <= rank * 36 // size and keys.stop >= (rank + 1) * 36 // size
        result = distributed.llama3_flash_attn_varlen_func(*mine, *prepared, 1, keys, causal=causal)
        torch.testing.assert_close(result, out.detach().chunk(size)[rank], **CLOSE)
        for x, whole in zip(torch.autograd.grad(result.sin().sum(), mine), of_whole):
            torch.testing.assert_close(x, whole.chunk(size)[rank], **CLOSE)


def case_transformers():
    """A model of transformers whose sequence the ranks share: logits and gradients of one process."""
    import transformers

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).double()
    ids = torch.randint(50, (1, 36))
    positions = torch.cat([torch.arange(b - a) for a, b in zip(PACKED, PACKED[1:])])[None]
    sequences = [model(ids[:, a:b]).logits for a, b in zip(PACKED, PACKED[1:]) if a < b]
    whole = torch.cat(sequences, 1)
    whole.sin().sum().backward()
    expected = {name: x.grad.clone() for name, x in model.named_parameters()}
    model.zero_grad()
    distributed.substitute_hf_flash_attn()
    model.set_attn_implementation("ring_attention")
    distributed.update_ring_flash_attn_params(torch.tensor(PACKED))
    logits = model(input_ids=ids.chunk(size, 1)[rank], position_ids=positions.chunk(size, 1)[rank]).logits
    torch.testing.assert_close(logits, whole.detach().chunk(size, 1)[rank], rtol=1e-8, atol=1e-9)
    logits.sin().sum().backward()
    for name, x in model.named_parameters():
        dist.all_reduce(x.grad)
        torch.testing.assert_close(x.grad, expected[name], rtol=1e-7, atol=1e-8, msg=lambda text: f"{name}: {text}")


def case_context_parallel():
    """torch's context_parallel after enable(), which torch itself cannot run on CPUs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    rank, size = dist.get_rank(), dist.get_world_size()
    mesh, n = init_device_mesh("cpu", (size,)), 24
    for causal, gqa, scale in ((True, False, None), (False, False, 0.3), (True, True, None)):
        whole = [draw(B, heads if gqa else H, n * size, D, seed=seed).requires_grad_()
                 for seed, heads in enumerate((H, HK, HK))]
        arguments = {"is_causal": causal, "scale": scale, "enable_gqa": gqa}
        out = torch.nn.functional.scaled_dot_product_attention(*whole, **arguments)
        gradient = draw(*out.shape, seed=7)
        out.backward(gradient)
        expected = [out.detach(), *(x.grad for x in whole)]
        own = [x.detach().clone() for x in (*whole, gradient, *expected)]
        drop_in.enable()
        with context_parallel(mesh, buffers=own, buffer_seq_dims=[2] * len(own)):
            inputs = [x.detach().clone().requires_grad_() for x in own[:3]]
            mine = torch.nn.functional.scaled_dot_product_attention(*inputs, **arguments)
            mine.backward(own[3])
            for name, result, of_whole in zip("out dq dk dv".split(), (mine, *(x.grad for x in inputs)), own[4:]):
                assert type(result) is torch.Tensor and result.shape[2] == n
                torch.testing.assert_close(result, of_whole, **CLOSE, msg=lambda text: f"{name}: {text}")
            assert "has no attn_mask" in error_of(lambda: torch.nn.functional.scaled_dot_product_attention(
                *inputs, torch.ones(1, 1, n, n * size) if rank == size - 1 else None, enable_gqa=gqa))
        drop_in.disable()


def case_context_parallel_options():
    """Dropout with the weights of one process, and the order of tokens without torch's balance."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention, context_parallel

    rank, size = dist.get_rank(), dist.get_world_size()
    mesh, whole = init_device_mesh("cpu", (size,)), draw(B, H, 8 * size, D)
    torch.manual_seed(3)
    seed = int(torch.randint(2**62, ()))
    for balanced in (True, False):
        expected = drop_in.attention(whole, whole, whole, causal=True, dropout=0.4, seed=seed)
        own = whole.clone()
        torch.manual_seed(3 + rank)
        _attention._cp_options.enable_load_balance = balanced
        drop_in.enable()
        with context_parallel(mesh, buffers=[own, expected], buffer_seq_dims=[2, 2]):
            mine = torch.nn.functional.scaled_dot_product_attention(own, own, own, dropout_p=0.4, is_causal=True)
            torch.testing.assert_close(mine, expected, **CLOSE)
            assert balanced or torch.equal(own, whole.chunk(size, 2)[rank])
        drop_in.disable()
    _attention._cp_options.enable_load_balance = True


def case_context_parallel_model():
    """A model of transformers inside of context_parallel: the logits of one process."""
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).double()
    ids, places = torch.randint(50, (1, 32)), torch.arange(32)[None]
    expected = model(ids).logits.detach()
    for layer in model.model.layers:  # a rank's positions have gaps, of which transformers makes a mask
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: (args, kwargs | {"attention_mask": None, "is_causal": True}), with_kwargs=True)
    drop_in.enable()
    with context_parallel(init_device_mesh("cpu", (dist.get_world_size(),)), buffers=[ids, places, expected],
                          buffer_seq_dims=[1, 1, 1]):
        logits = model(input_ids=ids, position_ids=places, use_cache=False).logits
        torch.testing.assert_close(logits, expected, rtol=1e-8, atol=1e-9)
        logits.sum().backward()
    drop_in.disable()
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in model.parameters())


class Attentive(torch.nn.Module):
    """A layer whose sequence the ranks of a group share."""

    def __init__(self, group=None):
        super().__init__()
        torch.manual_seed(2)
        self.group = group
        self.qkv, self.out = (torch.nn.Linear(H * D, width, dtype=torch.float64) for width in (3 * H * D, H * D))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (H, D)) for part in self.qkv(x).chunk(3, -1))
        attend = distributed.ring_flash_attn_func if self.group else attention_cpp.flash_attn.flash_attn_func
        more = {"group": self.group} if self.group else {}
        return self.out(attend(q, k, v, causal=True, **more).flatten(-2))


def case_wrappers():
    """Batches and sequences over ranks at a time: DistributedDataParallel and FSDP around a model whose sequences a
    group shares. Both average the gradients of all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]  # all ranks make all of them
    batches = draw(size // 2, B, 24, H * D, seed=3)
    whole = Attentive()
    for x in batches:
        whole(x).sin().sum().backward()
    mine = batches[rank // 2].chunk(2, 1)[rank % 2]
    for wrap in (torch.nn.parallel.DistributedDataParallel,
                 lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (size,)))):
        model = wrap(Attentive(groups[rank // 2]))
        model(mine).sin().sum().backward()
        for (name, x), expected in zip(model.named_parameters(), whole.parameters()):
            gradient = x.grad.full_tensor() if hasattr(x.grad, "full_tensor") else x.grad
            torch.testing.assert_close(gradient, expected.grad / size, **CLOSE, msg=lambda text: f"{name}: {text}")


def case_ulysses():
    rank, size = dist.get_rank(), dist.get_world_size()
    heads = 2 * size
    q, k, v = (draw(B, 8 * size, heads, D, seed=seed) for seed in range(3))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = attention_cpp.flash_attn.flash_attn_func(*inputs, causal=True)
    out.sin().sum().backward()
    mine = [x.chunk(size, 1)[rank].clone().requires_grad_() for x in (q, k, v)]
    result = DistributedAttention(attention_cpp.flash_attn.flash_attn_func)(*mine, causal=True)
    result.sin().sum().backward()
    assert torch.equal(result, out.detach().chunk(size, 1)[rank])
    for x, x_own in zip(inputs, mine):
        assert torch.equal(x_own.grad, x.grad.chunk(size, 1)[rank])


def case_merge():
    """Decoding: each rank has a third of the keys."""
    rank, size = dist.get_rank(), dist.get_world_size()
    q, k, v = draw(B, H, 1, D), draw(B, HK, 30, D, seed=1), draw(B, HK, 30, D, seed=2)
    whole, whole_lse = drop_in.attention(q, k, v, return_lse=True)
    own = [x.chunk(size, 2)[rank] for x in (k, v)]
    out, lse = distributed.merge(*drop_in.attention(q, *own, return_lse=True))
    torch.testing.assert_close(out, whole, **CLOSE)
    torch.testing.assert_close(lse, whole_lse, **CLOSE)
    one = drop_in.attention(q[:1, :1], k[:1, :1], v[:1, :1])  # fewer rows than ranks
    own = [x[:1, :1] for x in own]
    torch.testing.assert_close(distributed.merge(*drop_in.attention(q[:1, :1], *own, return_lse=True))[0], one, **CLOSE)


def case_dropout_without_seed():
    """All ranks draw the same weights: a rank's seed would make them another sum."""
    placement = Placement("zigzag", 24, 4)
    q = placement.take(draw(B, H, 24, D), 2)
    torch.manual_seed(dist.get_rank())
    first = distributed.attention(q, q, q, placement, dropout=0.5)
    torch.manual_seed(dist.get_rank())
    assert torch.equal(distributed.attention(q, q, q, placement, dropout=0.5), first)


def case_errors():
    rank, size = dist.get_rank(), dist.get_world_size()
    placement = Placement("contiguous", 24, 4)
    q = placement.take(draw(B, H, 24, D), 2)

    wrong = q[..., :4] if rank == size - 1 else q
    error = error_of(lambda: distributed.attention(q, wrong, q, placement))
    assert "k (2, 6, 8, 4) must be (B, Hk, Lk, D) with D = 8" in error
    assert rank == size - 1 or f"rank {size - 1}: " in error
    causal = rank == 0
    assert "differ in the options" in error_of(lambda: distributed.attention(q, q, q, placement, causal=causal))
    options = {"softcap": "big"} if rank == size - 1 else {}
    assert "softcap must be" in error_of(lambda: distributed.attention(q, q, q, placement, **options))
    # A rank that refuses while the others would exchange a seed or starts; a placement that is none.
    assert "softcap must be" in error_of(lambda: distributed.attention(q, q, q, placement, dropout=0.5, **options))
    dropped = {"dropout": 0.5} if rank == 0 else {}
    assert size == 1 or error_of(lambda: distributed.attention(q, q, q, placement, **dropped))
    other = "zigzag" if rank == size - 1 else placement
    assert "placement must be a Placement, not str" in error_of(lambda: distributed.attention(q, q, q, other))
    starts = torch.tensor([0, 4, 6], dtype=torch.int32)
    keys = 3 if rank == size - 1 else slice(6 * rank, 6 * rank + 6)
    packed = draw(6, H, D)
    assert "local_k_slice must be a slice" in error_of(
        lambda: distributed.llama3_flash_attn_varlen_func(packed, packed, packed, starts, starts, 4, 4, 1, keys))
    x = draw(B, 5, H, D)
    assert "must have an even number" in error_of(lambda: distributed.zigzag_ring_flash_attn_func(x, x, x))
    assert "the name is 'star'" in error_of(lambda: distributed.attention(q, q, q, placement, schedule="star"))
    assert "kind is 'ring'" in error_of(lambda: Placement("ring", 24))
    heads = draw(B, 4, size + 1, D)
    assert size == 1 or "must be a multiple" in error_of(
        lambda: DistributedAttention(attention_cpp.flash_attn.flash_attn_func)(heads, heads, heads))
    attend = DistributedAttention(attention_cpp.flash_attn.flash_attn_func)
    heads = draw(B, 4, 2 * size + (rank == size - 1), D)
    assert size == 1 or "must be a multiple" in error_of(lambda: attend(heads, heads, heads))
    longer = draw(B, 4 + (rank == size - 1), 2 * size, D)
    assert size == 1 or "differ in the call that they make" in error_of(lambda: attend(longer, longer, longer))
    distributed.attention(q, q, q, placement)  # the ranks are still in step


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    import attention_cpp.flash_attn  # noqa: F401

    for name in sys.argv[1:]:
        globals()[f"case_{name}"]()
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"{name}: ok", flush=True)
    dist.destroy_process_group()


main()
