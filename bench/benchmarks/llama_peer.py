"""llama.cpp's flash attention: the operator of its tensor library ggml, called directly."""

import ctypes
import importlib.util
from ctypes import c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import torch

from .peers import Prepared, version_of
from .results import readable_bytes
from .tensors import Tensors, whole_mask
from .workloads import Workload

FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 30  # enum ggml_type
OVERHEAD_BYTES = 16 << 20  # of a graph of one operator, and of alignment


class InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


def load_libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Tensors and graphs; the CPU backend. From the installed package, without its Python part."""
    found = importlib.util.find_spec("llama_cpp")
    if found is None:
        raise ImportError("llama-cpp-python, see --with-llama")
    folder = Path(found.submodule_search_locations[0]) / "lib"
    base, cpu = (ctypes.CDLL(str(folder / f"libggml-{part}.so"), ctypes.RTLD_GLOBAL)
                 for part in ("base", "cpu"))
    signatures = [
        (base.ggml_init, c_void_p, [InitParams]),
        (base.ggml_free, None, [c_void_p]),
        (base.ggml_new_tensor_4d, c_void_p, [c_void_p, c_int] + 4 * [c_int64]),
        (base.ggml_get_data, c_void_p, [c_void_p]),
        (base.ggml_flash_attn_ext, c_void_p, 5 * [c_void_p] + 3 * [c_float]),
        (base.ggml_new_graph, c_void_p, [c_void_p]),
        (base.ggml_build_forward_expand, None, [c_void_p, c_void_p]),
        (base.ggml_backend_graph_compute, c_int, [c_void_p, c_void_p]),
        (cpu.ggml_backend_cpu_init, c_void_p, []),
        (cpu.ggml_backend_cpu_set_n_threads, None, [c_void_p, c_int]),
    ]
    for function, result, arguments in signatures:
        function.restype, function.argtypes = result, arguments
    return base, cpu


class Context:
    """Memory for the tensors and the graph of one call."""

    def __init__(self, base: ctypes.CDLL, size: int) -> None:
        self._base = base
        self.pointer = base.ggml_init(InitParams(size, None, False))

    def __del__(self) -> None:
        self._base.ggml_free(self.pointer)


class LlamaCpp:
    """Queries and results are float32, keys and values of the workload's type, as in its cache."""

    name = "llama.cpp"

    def __init__(self) -> None:
        self._base, self._cpu = load_libraries()
        self._backend = self._cpu.ggml_backend_cpu_init()

    def version(self) -> str:
        return f"llama-cpp-python {version_of('llama-cpp-python')}"

    def set_threads(self, threads: int) -> None:
        self._cpu.ggml_backend_cpu_set_n_threads(self._backend, threads)

    def supports(self, w: Workload) -> str | None:
        if not w.is_forward:
            return "has no backward"
        if w.option == "bias":
            return "has biases in float16 only"
        return None

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        base = self._base
        inputs = [(t.q.float().numpy(), FLOAT32)]
        inputs += [(x.numpy(), FLOAT32) if w.dtype == "float32" else (x.view(torch.int16).numpy(), BFLOAT16)
                   for x in (t.k, t.v)]
        if w.masked and w.Lq > 1:  # the only query, the last one, sees all keys
            inputs.append((np.where(whole_mask(w).numpy(), np.float16(0), np.float16(-np.inf)), FLOAT16))
        out_bytes = w.B * w.H * w.Lq * w.Dv * 4
        context = Context(base, OVERHEAD_BYTES + out_bytes + sum(x.nbytes for x, _ in inputs))

        def tensor(values: np.ndarray, dtype: int) -> int:
            """Sizes go from the fastest axis to the slowest here."""
            made = base.ggml_new_tensor_4d(context.pointer, dtype, *reversed(values.shape))
            source = np.ascontiguousarray(values)
            ctypes.memmove(base.ggml_get_data(made), source.ctypes.data, source.nbytes)
            return made

        tensors = [tensor(*described) for described in inputs]
        q, k, v, mask_tensor = tensors + [None] * (4 - len(tensors))
        out = base.ggml_flash_attn_ext(context.pointer, q, k, v, mask_tensor, w.D**-0.5, 0, 0)
        graph = base.ggml_new_graph(context.pointer)
        base.ggml_build_forward_expand(graph, out)

        def run() -> None:
            if base.ggml_backend_graph_compute(self._backend, graph):
                raise RuntimeError("ggml_backend_graph_compute failed")

        def fetch(_: object) -> dict[str, np.ndarray]:
            address = ctypes.cast(base.ggml_get_data(out), ctypes.POINTER(c_float))
            values = np.ctypeslib.as_array(address, (w.B, w.Lq, w.H, w.Dv))
            return {"out": values.swapaxes(1, 2)}

        note = "ggml_flash_attn_ext"
        if mask_tensor:
            note += f"; n x n float16 mask of the caller: {readable_bytes(inputs[3][0].nbytes)}"
        return Prepared(run, fetch, note, kept=context)
