"""Make a model of ONNX files: their sessions, their vocabulary, and a trial of both graphs."""

from pathlib import Path
from typing import Any

import onnxruntime
import torch

from sruserve.export.onnx.signature import answer_of, layout_of
from sruserve.export.runtime.file import OnnxFile, read_onnx
from sruserve.export.runtime.network import OnnxNetwork
from sruserve.export.runtime.session import GraphSession
from sruserve.model.errors import CheckpointError, DTypeError, FolderError
from sruserve.model.folder import Model
from sruserve.model.heads.crf import LinearChain, crf_shapes
from sruserve.model.text.codec import WORDS_FILE, make_codec
from sruserve.model.text.tokenizer_trial import check_tokenizer
from sruserve.model.versions import FIRST, ONNX_FILE, STEP_FILE, newest

_TOLERANCE = 1e-4  # between machines: a graph that is another one differs by more


def load_onnx(path: Path, dtype: str | None, device: torch.device, allow_cpu: bool) -> Model:
    """Load an ONNX file, or a folder with `model.onnx` and, if the model streams, `step.onnx`.

    Raises `FolderError`, `CheckpointError`, `ConfigError`, `DTypeError` or
    `RuntimePlacementError`.
    """
    path = path.resolve()
    version, folder = (FIRST, path.parent) if path.is_file() else newest(path)
    sequence = read_onnx(path if path.is_file() else folder / ONNX_FILE)
    if sequence.kind != "sequence":
        raise CheckpointError(
            f"{sequence.path} is a graph of one step: a model needs the graph of sequences, too; "
            "run `sruserve export onnx` without --graph step"
        )
    if dtype not in (None, "float32"):
        raise DTypeError(f"{path.name} is an ONNX model, which computes in float32, not in {dtype}")
    step = None
    if not path.is_file() and (folder / STEP_FILE).is_file():
        step = read_onnx(folder / STEP_FILE)
        if step.kind != "step" or step.digest != sequence.digest:
            raise FolderError(
                f"{step.path} is not the graph of one step of {ONNX_FILE}: export the model again"
            )
    network = _network(sequence, step, device, allow_cpu)
    if WORDS_FILE in sequence.vocabulary:
        check_tokenizer(sequence.vocabulary[WORDS_FILE], sequence.path)
    codec = make_codec(sequence.vocabulary, sequence.path)
    if codec is not None and codec.size != sequence.config.vocab_size:
        raise FolderError(f"{sequence.path}: its vocabulary does not fit its config")
    return Model(
        path.stem if path.is_file() else path.name,
        version,
        folder,
        sequence.config,
        network,
        codec,
        sequence.digest,
        sequence.numbers,
    )


def _network(
    sequence: OnnxFile, step: OnnxFile | None, device: torch.device, allow_cpu: bool
) -> OnnxNetwork:
    threads = torch.get_num_threads()
    sessions = {}
    for file in filter(None, (sequence, step)):
        session = GraphSession(file.content, device, threads, allow_cpu)
        _try(file, session)
        sessions[file.kind] = session
    config, crf = sequence.config, None
    if config.head.crf:
        assert config.outputs is not None
        tensors = {name: sequence.tensor(name) for name in crf_shapes(config.outputs)}
        crf = LinearChain(tensors, config.head.crf_window)
    return OnnxNetwork(
        config,
        sessions["sequence"],
        sessions.get("step"),
        sequence.numbers,
        crf,
        onnxruntime.__version__,
    )


def _try(file: OnnxFile, session: GraphSession) -> None:
    """Run the file's own case; raises `CheckpointError` if the answer is another one."""
    try:
        inputs = {name: _tensor(name, value) for name, value in file.case["inputs"].items()}
        expected = torch.tensor(file.case["answer"], dtype=torch.float32)
        sizes = dict(file.case["sizes"])
        if file.config.task != "pair":
            inputs["state"] = layout_of(file.config).allocate(sizes["batch"])
        moved = {name: value.to(session.device) for name, value in inputs.items()}
        given = session.run(moved, sizes)[answer_of(file.config)].cpu()
        ours = given.flatten()[: len(expected)]
        agrees = torch.allclose(ours, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file.path}: its case cannot run: {str(error)[:200]}") from error
    if not agrees:
        raise CheckpointError(
            f"{file.path}: on this machine the graph answers its own case otherwise than the model "
            "that it was exported from: export the model again"
        )


def _tensor(name: str, value: Any) -> torch.Tensor:
    whole = name.startswith(("ids", "lengths"))
    return torch.tensor(value, dtype=torch.int64 if whole else torch.float32)
