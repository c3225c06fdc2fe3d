"""ONNX Runtime's fused operators: MultiHeadAttention and GroupQueryAttention."""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from .peers import Prepared, fastest, version_of
from .tensors import Tensors, allowed
from .workloads import Workload

TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}


def tokens_first(x: np.ndarray) -> np.ndarray:
    """[B, H, L, D] as the [B, L, H * D] that the operators read."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1)


class OnnxRuntime:
    """One session of one operator; inputs and outputs bound once."""

    name = "onnxruntime"

    def __init__(self) -> None:
        self._threads = 1

    def version(self) -> str:
        return version_of("onnxruntime")

    def set_threads(self, threads: int) -> None:
        self._threads = threads

    def supports(self, w: Workload) -> str | None:
        if not w.is_forward:
            return "has no backward"
        if w.dtype != "float32":
            return "has no bfloat16 on the CPU"
        return None

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        ways = {}
        if w.causal and not w.packed:
            ways["GroupQueryAttention"] = lambda: self._group_query(w, t)
        if w.group == 1 and not w.window and w.Lq > 1:
            ways["MultiHeadAttention"] = lambda: self._multi_head(w, t)
        return fastest(ways)

    def _multi_head(self, w: Workload, t: Tensors) -> Prepared:
        inputs = {name: tokens_first(x.numpy()) for name, x in
                  (("query", t.q), ("key", t.k), ("value", t.v))}
        names = ["query", "key", "value"]
        if t.padding is not None:
            inputs["padding"] = t.padding.numpy().reshape(w.B, w.Lk).astype(np.int32)
            names += ["", "padding"]
        if t.bias is not None:
            inputs["bias"] = t.bias.numpy()
            names += ["", "", "bias"]
        if w.packed:
            inputs["bias"] = np.where(allowed(w, 0), np.float32(0), np.float32(-1e30))[None, None]
            names += ["", "", "bias"]
        unidirectional = int(w.causal and not w.packed)
        node = helper.make_node("MultiHeadAttention", names, ["out"], domain="com.microsoft",
                                num_heads=w.H, unidirectional=unidirectional)
        out = np.empty((w.B, w.Lq, w.H * w.Dv), np.float32)
        return self._session(w, node, inputs, {"out": out})

    def _group_query(self, w: Workload, t: Tensors) -> Prepared:
        """New tokens at the end of a cache that past and present share, as in generation."""
        new = w.Lk - w.Lq
        inputs = {
            "query": tokens_first(t.q.numpy()),
            "key": tokens_first(t.k.numpy()[:, :, new:]),
            "value": tokens_first(t.v.numpy()[:, :, new:]),
            "past_key": np.ascontiguousarray(t.k.numpy()),
            "past_value": np.ascontiguousarray(t.v.numpy()),
            "seqlens_k": np.full(w.B, w.Lk - 1, np.int32),
            "total": np.full(1, w.Lk, np.int32),
        }
        outputs = {"out": np.empty((w.B, w.Lq, w.H * w.Dv), np.float32),
                   "present_key": inputs["past_key"], "present_value": inputs["past_value"]}
        node = helper.make_node(
            "GroupQueryAttention", list(inputs), list(outputs), domain="com.microsoft",
            num_heads=w.H, kv_num_heads=w.Hk, local_window_size=w.window or -1)
        return self._session(w, node, inputs, outputs)

    def _session(self, w: Workload, node: onnx.NodeProto, inputs: dict[str, np.ndarray],
                 outputs: dict[str, np.ndarray]) -> Prepared:
        def described(arrays: dict[str, np.ndarray]) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(name, TYPES[x.dtype], x.shape)
                    for name, x in arrays.items()]

        graph = helper.make_graph([node], "attention", described(inputs), described(outputs))
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 4  # failures arrive as exceptions
        session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        binding = session.io_binding()
        values = {id(x): ort.OrtValue.ortvalue_from_numpy(x)
                  for x in (*inputs.values(), *outputs.values())}
        for name, x in inputs.items():
            binding.bind_ortvalue_input(name, values[id(x)])
        for name, x in outputs.items():
            binding.bind_ortvalue_output(name, values[id(x)])

        def fetch(_: object) -> dict[str, np.ndarray]:
            return {"out": outputs["out"].reshape(w.B, w.Lq, w.H, w.Dv).swapaxes(1, 2)}

        return Prepared(lambda: session.run_with_iobinding(binding), fetch,
                        kept=[session, binding, values, inputs, outputs])
