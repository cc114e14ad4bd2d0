"""Make a model of ONNX files: their sessions, their vocabulary, and a trial of both graphs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import onnxruntime
import torch

from sruserve.export.onnx.integer import INTEGER_TOLERANCE
from sruserve.export.onnx.metadata import CASE_NUMBERS
from sruserve.export.onnx.signature import answer_of, signature_of
from sruserve.export.runtime.file import OnnxFile, read_onnx
from sruserve.export.runtime.network import MAX_STEP_NUMBERS, OnnxNetwork
from sruserve.export.runtime.session import GraphSession, runs_on_cpu
from sruserve.model.errors import CheckpointError, DTypeError, FolderError
from sruserve.model.folder import Model
from sruserve.model.heads.crf import LinearChain, crf_shapes
from sruserve.model.text.tokenizer_trial import check_tokenizer
from sruserve.model.text.vocabulary_files import WORDS_FILE, make_codec
from sruserve.model.versions import FIRST, ONNX_FILE, STEP_FILE, newest

_TRIAL_SECONDS = 60.0  # of a file's case, which has some steps of some streams
_TOLERANCE = 1e-4  # between machines: a graph that is another one differs by more


def load_onnx(
    path: Path,
    dtype: str | None,
    device: torch.device,
    allow_cpu: bool,
    threads: int,
    max_step_numbers: int = MAX_STEP_NUMBERS,
    trial_seconds: float = _TRIAL_SECONDS,
) -> Model:
    """Load an ONNX file, or a folder with `model.onnx` and, if the model streams, `step.onnx`.

    max_step_numbers: see `OnnxNetwork`. trial_seconds: the limit of each file's own case.

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
        raise DTypeError(
            f"{path.name} is an ONNX model, which computes in float32, not in {dtype}: set no "
            "dtype for it"
        )
    step = None
    if not path.is_file() and (folder / STEP_FILE).is_file():
        step = read_onnx(folder / STEP_FILE)
        if step.kind != "step" or step.digest != sequence.digest:
            raise FolderError(
                f"{step.path} is not the graph of one step of {ONNX_FILE}: export the model again"
            )
    sessions: dict[str, GraphSession] = {}
    for file in filter(None, (sequence, step)):
        session = GraphSession(file.served(runs_on_cpu(device)), device, threads, allow_cpu)
        _try(file, session, trial_seconds)
        sessions[file.kind] = session
    network = _network(sequence, sessions, max_step_numbers)
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
        sequence.parameters,
        tuple(file.checksum for file in (sequence, step) if file is not None),
    )


def _network(
    sequence: OnnxFile, sessions: Mapping[str, GraphSession], max_step_numbers: int
) -> OnnxNetwork:
    config, crf = sequence.config, None
    if config.head.crf:
        assert config.outputs is not None
        tensors = {name: sequence.tensor(name) for name in crf_shapes(config.outputs)}
        crf = LinearChain(tensors, config.head.crf_window)
    return OnnxNetwork(
        config,
        sessions["sequence"],
        sessions.get("step"),
        sequence.parameters,
        crf,
        onnxruntime.__version__,
        max_step_numbers,
    )


def _try(file: OnnxFile, session: GraphSession, seconds: float) -> None:
    """Run the file's own case; raises `CheckpointError` if the answer is another one."""
    case, signature = file.case, signature_of(file.config, file.kind)
    options = onnxruntime.RunOptions()
    try:
        inputs = {
            name: torch.tensor(case.inputs[name], dtype=signature.dtype(name))
            for name in signature.inputs
            if name != "state"
        }
        if "state" in signature.inputs:
            inputs["state"] = file.config.layout.allocate(case.sizes["batch"])
        on_device = {name: value.to(session.device) for name, value in inputs.items()}
        with _time_limit(options, seconds):
            results = session.run(on_device, case.sizes, options)
        answer = results[answer_of(file.config)].cpu().flatten()
        expected = torch.tensor(case.answer)
        if len(expected) != min(len(answer), CASE_NUMBERS):
            raise ValueError(f"it has {len(expected)} numbers of an answer")
        first = answer[: len(expected)]
        tolerance = _TOLERANCE if file.config.weights is None else INTEGER_TOLERANCE
        agrees = torch.allclose(first, expected, rtol=tolerance, atol=tolerance)
    except Exception as error:  # of a case that does not fit the graph, too
        if options.terminate:
            raise CheckpointError(
                f"{file.path}: its case takes more than {seconds:g} seconds"
            ) from error
        raise CheckpointError(f"{file.path}: its case cannot run: {str(error)[:200]}") from error
    if not agrees:
        raise CheckpointError(
            f"{file.path}: on this machine the graph gives a different answer to its built-in test "
            "case than the exported model did: export the model again"
        )


@contextmanager
def _time_limit(options: onnxruntime.RunOptions, seconds: float) -> Iterator[None]:
    """End a run with these options after some time, with an error."""
    timer = Timer(seconds, setattr, (options, "terminate", True))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
