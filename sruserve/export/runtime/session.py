"""Run a graph by ONNX Runtime, with tensors of torch as its inputs and outputs."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from sruserve.export.errors import RuntimePlacementError
from sruserve.export.onnx.signature import Signature
from sruserve.export.runtime.arena import bound_memory
from sruserve.model.errors import CheckpointError

_CUDA = "CUDAExecutionProvider"
_NUMPY = {torch.float32: np.float32, torch.int64: np.int64}


class GraphSession:
    """A loaded graph.

    content: of an ONNX file. device: where its inputs and outputs lie, too.
    allow_cpu: nodes, or the whole graph, may run on the CPU if the GPU cannot run them.

    provider: the one that runs the graph.

    Raises `RuntimePlacementError` if the device cannot run the graph, and `CheckpointError` if
    ONNX Runtime cannot load it.
    """

    def __init__(
        self, content: bytes, device: torch.device, threads: int = 0, allow_cpu: bool = False
    ) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that spin would take the cores from the event loop.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # What runs take is bounded; weights, which the file bounds, are freed with the session.
        bound_memory()
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        providers: list[Any] = ["CPUExecutionProvider"]
        if device.type == "cuda":
            providers = _gpu_providers(options, device, allow_cpu)
        try:
            self._session = onnxruntime.InferenceSession(
                content, options, providers=providers, disabled_optimizers=["ConstantFolding"]
            )
        except Exception as error:  # the library has no base class of its own
            reason = _explain(error)
            if device.type == "cuda" and "fallback" in reason.lower():
                raise RuntimePlacementError(
                    f"ONNX Runtime cannot place all nodes on {device}: {reason}; set "
                    "SRUSERVE_ONNX_ALLOW_CPU=true to let the CPU run the others"
                ) from error
            raise CheckpointError(f"ONNX Runtime cannot load the graph: {reason}") from error
        self.provider: str = self._session.get_providers()[0]
        self._device = device if "CPU" not in self.provider else torch.device("cpu")
        self.outputs = {o.name: o.shape for o in self._session.get_outputs()}

    @property
    def device(self) -> torch.device:
        """Where inputs and outputs lie."""
        return self._device

    def run(
        self,
        inputs: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        options: onnxruntime.RunOptions | None = None,
    ) -> dict[str, Tensor]:
        """Run the graph.

        inputs: contiguous, on the session's device. sizes: the dynamic dimensions of the outputs.
        options: whose `terminate` ends the run.

        Returns new tensors on the session's device. They never share memory with an input, so a
        state that is read is not written. Raises `RuntimeError` if the graph cannot run.
        """
        binding = self._session.io_binding()
        kind, index = self._device.type, self._device.index or 0
        own = {name: tensor.contiguous() for name, tensor in inputs.items()}
        for name, tensor in own.items():
            binding.bind_input(
                name, kind, index, _NUMPY[tensor.dtype], tuple(tensor.shape), tensor.data_ptr()
            )
        results = {}
        for name, shape in self.outputs.items():
            dtype = Signature.dtype(name)
            size = [sizes[dim] if isinstance(dim, str) else dim for dim in shape]
            results[name] = torch.empty(size, dtype=dtype, device=self._device)
            binding.bind_output(
                name, kind, index, _NUMPY[dtype], tuple(size), results[name].data_ptr()
            )
        if kind == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        try:
            self._session.run_with_iobinding(binding, options)
        except Exception as error:  # the library has no base class of its own
            raise RuntimeError(_explain(error)) from error
        return results


def runs_on_cpu(device: torch.device) -> bool:
    """Whether the CPU runs the graphs for a device, as it does without a build for the GPU."""
    return device.type == "cpu" or _CUDA not in onnxruntime.get_available_providers()


def _explain(error: Exception) -> str:
    """Return one line of an error of ONNX Runtime."""
    text = str(error)
    if "bfc_arena" in text and "vailable memory" in text:
        node = re.search(r"running (\w+) node", text)
        return (
            f"{'it' if node is None else f'a node {node[1]}'} takes more memory than all ONNX "
            "graphs together may take, which is half of this machine's memory"
        )
    return text.splitlines()[0][:300]


def _gpu_providers(
    options: onnxruntime.SessionOptions, device: torch.device, allow_cpu: bool
) -> list[Any]:
    """Return the providers for a GPU; raises `RuntimePlacementError` without a build for it."""
    if runs_on_cpu(device):
        if allow_cpu:
            return ["CPUExecutionProvider"]
        raise RuntimePlacementError(
            "this build of ONNX Runtime has no CUDA: pip install 'sruserve[onnx-gpu]', set "
            "SRUSERVE_DEVICE=cpu, or set SRUSERVE_ONNX_ALLOW_CPU=true"
        )
    # Without TF32, whose products have 10 bits.
    gpu = (_CUDA, {"device_id": device.index or 0, "use_tf32": "0"})
    if not allow_cpu:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        return [gpu]
    return [gpu, "CPUExecutionProvider"]
