"""After enable() inside what torch runs models in: compilers, checkpoints, distributed training, workers, no memory."""

import copy
import multiprocessing
import pickle

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import attention_cpp.torch as drop_in  # noqa: E402

torch_sdpa = F.scaled_dot_product_attention
TIMEOUT = 300


def draw(*shape, seed=0, dtype=torch.float32, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def qkv(length=6, **kind):
    return tuple(draw(2, 4, length, 8, seed=seed, **kind) for seed in range(3))


def same(actual, expected):
    """One formula in another order of operations: 64 roundings of the largest value."""
    largest = max(expected.abs().max().item(), 1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=64 * torch.finfo(expected.dtype).eps * largest)


class Block(torch.nn.Module):
    """A layer with grouped heads and a bias that is learned."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(32, 64)
        self.bias = torch.nn.Parameter(draw(4, 1, 1))

    def forward(self, x, is_causal=True):
        q, k, v = self.project(x).split([32, 16, 16], -1)
        q, k, v = (t.unflatten(-1, (-1, 8)).transpose(1, 2) for t in (q, k, v))
        bias = self.bias * torch.arange(x.shape[1])
        out = F.scaled_dot_product_attention(q, k, v, bias, is_causal=is_causal, enable_gqa=True)
        return out.transpose(1, 2).flatten(2)


def block():
    torch.manual_seed(0)
    return Block()


def gradients(module, *inputs):
    module.zero_grad()
    module(*inputs).sin().sum().backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


@pytest.fixture
def enabled():
    with drop_in.enabled(strict=True):
        yield


# ------------------------------------------------------------------------------------------------------------ compilers

def test_compiled_by_inductor(enabled):
    """One graph for all lengths, forward and backward."""
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (6, 9, 17):
            inputs = qkv(length, grad=True)
            upstream = draw(2, 4, length, 8, seed=7)
            actual, expected = compiled(*inputs), attend(*inputs)
            assert torch.equal(actual, expected) and actual.stride() == expected.stride()
            gradients = (torch.autograd.grad(out, inputs, upstream) for out in (actual, expected))
            assert all(map(torch.equal, *gradients))


def test_packed_by_aot_inductor(enabled, tmp_path):
    """torch's operator in the package, which other programs load."""
    q, k, v = qkv()

    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    with drop_in.enabled():
        program = torch.export.export(Attend(), (q, k, v))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "attend.pt2"))
    same(torch._inductor.aoti_load_package(path)(q, k, v), torch_sdpa(q, k, v, is_causal=True))


# ------------------------------------------------------------------------------------------------------------- training

@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_repeats_the_dropout(use_reentrant, enabled):
    q, k, v = qkv(grad=True)
    results = []
    for recompute in (False, True):
        torch.manual_seed(5)
        function = lambda *x: F.scaled_dot_product_attention(*x, dropout_p=0.4)  # noqa: E731
        out = checkpoint(function, q, k, v, use_reentrant=use_reentrant) if recompute else function(q, k, v)
        out.sum().backward()
        results.append([x.grad for x in (q, k, v)])
        for x in (q, k, v):
            x.grad = None
    assert all(map(torch.equal, *results))


@pytest.fixture
def group():
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield
    torch.distributed.destroy_process_group()


def test_distributed_training_with_a_hook(enabled, group):
    buckets = []

    def hook(state, bucket):
        buckets.append(bucket.buffer().numel())
        future = torch.futures.Future()
        future.set_result(bucket.buffer() * 2)
        return future

    module, x = block(), draw(2, 6, 32)
    expected = gradients(module, x)
    parallel = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(module))
    parallel.register_comm_hook(None, hook)
    for actual, wanted in zip(gradients(parallel, x), expected):
        same(actual, 2 * wanted)
    assert sum(buckets) == sum(parameter.numel() for parameter in module.parameters())


def test_tensors_made_of_others_are_torchs():
    """As those of torch.distributed are, which share out operators of torch's alone."""
    from torch.testing._internal.two_tensor import TwoTensor

    pairs = [TwoTensor(x, x * 2) for x in qkv()]
    with drop_in.enabled():
        assert drop_in.explain(*pairs) == "left to torch: query is a TwoTensor"
        out = F.scaled_dot_product_attention(*pairs)
    same(out.b, torch_sdpa(*(x * 2 for x in qkv())))


def test_hooks_that_keep_saved_tensors(enabled):
    q, k, v = qkv(grad=True)
    expected = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v).sin().sum(), (q, k, v))
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x.clone(), lambda x: x):
        out = F.scaled_dot_product_attention(q, k, v)
    assert all(map(torch.equal, torch.autograd.grad(out.sin().sum(), (q, k, v)), expected)) and len(packed) >= 5


# ------------------------------------------------------------------------------------------------------ without memory

def test_inference_mode_has_the_same_results(enabled):
    q, k, v = qkv(grad=True)
    with torch.inference_mode():
        out = F.scaled_dot_product_attention(q, k, v)
        assert out.is_inference()
        again = F.scaled_dot_product_attention(out, k, v)
    assert torch.equal(out, F.scaled_dot_product_attention(q, k, v).detach())
    assert torch.equal(again, F.scaled_dot_product_attention(out, k.detach(), v.detach()))


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)],
                         ids=["contiguous", "heads joined"])
def test_meta_and_fake_tensors_have_the_form_of_real_ones(layout):
    real = drop_in.scaled_dot_product_attention(*map(layout, qkv()))
    with drop_in.enabled():
        meta = F.scaled_dot_product_attention(*(layout(x.to("meta")) for x in qkv()))
        with torch.device("meta"):
            x = torch.empty(2, 6, 32)
            assert block()(x, is_causal=False).shape == (2, 6, 32)
    with drop_in.enabled(strict=True), FakeTensorMode() as mode:
        fake = F.scaled_dot_product_attention(*(layout(mode.from_tensor(x)) for x in qkv()))
    for other in (meta, fake):
        assert other.shape == real.shape and other.dtype == real.dtype
    assert meta.is_meta and fake.stride() == real.stride()


def test_other_devices_are_torchs():
    with FakeTensorMode(allow_non_fake_inputs=True), drop_in.enabled():
        x = torch.empty(2, 4, 6, 8, device="cuda", dtype=torch.float16)
        assert drop_in.explain(x, x, x) == "left to torch: query is on cuda:0"
        out = F.scaled_dot_product_attention(x, x, x)
    assert out.device.type == "cuda" and out.shape == x.shape


# -------------------------------------------------------------------------------------------------------------- workers

def test_functions_and_modules_can_be_pickled():
    assert pickle.loads(pickle.dumps(drop_in.scaled_dot_product_attention)) is drop_in.scaled_dot_product_attention
    with drop_in.enabled():
        assert pickle.loads(pickle.dumps(F.scaled_dot_product_attention)) is drop_in.scaled_dot_product_attention
        module = block()
        twin = pickle.loads(pickle.dumps(copy.deepcopy(module)))
        x = draw(2, 6, 32)
        assert torch.equal(module(x), twin(x))


def work(length):
    """In a worker, which has to enable() for itself if it is a new process."""
    with drop_in.enabled(strict=True):
        q, k, v = qkv(length, grad=True)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradient, = torch.autograd.grad(out.sum(), q)
        return out.detach().numpy(), gradient.numpy()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_have_the_same_results(method):
    expected = [work(length) for length in (6, 200)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.map_async(work, (6, 200)).get(TIMEOUT)
    for result, wanted in zip(results, expected):
        assert all((a == b).all() for a, b in zip(result, wanted))


class Attended(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.from_numpy(work(4 + index)[0][0, 0, :4])


def test_workers_of_a_data_loader_have_the_same_results():
    expected = torch.stack([Attended()[index] for index in range(4)])
    loader = torch.utils.data.DataLoader(Attended(), batch_size=4, num_workers=2, timeout=TIMEOUT)
    assert torch.equal(next(iter(loader)), expected)
