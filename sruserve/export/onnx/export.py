"""Export a model folder as ONNX files, each of which agrees with the model on random inputs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx_ir as ir
import torch

from sruserve.export.errors import ExportError
from sruserve.export.onnx.check import GraphCheck
from sruserve.export.onnx.metadata import PREFIX, checksum, metadata_of
from sruserve.export.onnx.network import GraphKind, GraphMaker
from sruserve.model.atomic_dir import replace_directory
from sruserve.model.atomic_file import new_file
from sruserve.model.files import read_regular
from sruserve.model.folder import FolderContents, read_folder
from sruserve.model.folder_files import PRESETS_FILE
from sruserve.model.network import Network
from sruserve.model.versions import ONNX_FILE, STEP_FILE

FILES: dict[GraphKind, str] = {"sequence": ONNX_FILE, "step": STEP_FILE}
_MAX_FILE_BYTES = 2_000_000_000  # a protocol buffer ends at 2 GiB


def export_onnx(
    folder: Path,
    out: Path,
    graphs: Sequence[GraphKind] | None = None,
    step: Callable[[str], None] = lambda _: None,
    max_file_bytes: int = _MAX_FILE_BYTES,
) -> list[Path]:
    """Write the ONNX graphs of a model folder; returns their files.

    out: a file `*.onnx`, for one graph; otherwise a folder, which gets `model.onnx` with the graph
        of whole sequences, and `step.onnx`.
    graphs: None: the graph of sequences, and of one step if the model can stream.
    step: called with what is done, as it begins. max_file_bytes: of the weights of a graph.

    Every graph is first compared with the model, on random inputs of different lengths and splits.

    Raises `ExportError` if the model has no such graph or they disagree, and every error of
    `read_folder`; then it writes nothing.
    """
    step("reading the model")
    contents = read_folder(folder)
    if contents.config.reader is not None:
        raise ExportError(
            "a model of task answer has no graph: its words and features are made by the server"
        )
    network = Network(contents.config, contents.tensors, torch.float32)
    kinds = _kinds(network, graphs)
    files = _files(out, kinds)
    size = 4 * sum(tensor.numel() for tensor in contents.tensors.values())
    if size > max_file_bytes:
        raise ExportError(
            f"the weights take {size:,} bytes in float32; an ONNX file holds {max_file_bytes:,}"
        )
    models = []
    for kind in kinds:
        step(f"making the graph of {'one step' if kind == 'step' else 'sequences'}")
        models.append(_checked(contents, network, kind))
    step("writing")
    try:
        if out.suffix == ".onnx":
            _write(models[0], out)
        else:
            with replace_directory(out.resolve()) as new:
                if (out / PRESETS_FILE).exists():  # the operator's, of the files that are replaced
                    (new / PRESETS_FILE).write_bytes(read_regular(out / PRESETS_FILE))
                for content, file in zip(models, files, strict=True):
                    (new / file.name).write_bytes(content)
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror or error}") from error
    return files


def _kinds(network: Network, graphs: Sequence[GraphKind] | None) -> Sequence[GraphKind]:
    because = network.not_streamable_because
    if graphs is None:
        return ("sequence",) if because else ("sequence", "step")
    if "step" in graphs and because:
        raise ExportError(f"the model has no graph of one step: {because}; export --graph sequence")
    return graphs


def _files(out: Path, kinds: Sequence[GraphKind]) -> list[Path]:
    if out.suffix != ".onnx":
        if out.exists() and not out.is_dir():
            raise ExportError(f"{out} is a file; choose a folder, or a name that ends in .onnx")
        names = {entry.name for entry in out.iterdir()} if out.exists() else set()
        if other := names - {*FILES.values(), PRESETS_FILE}:
            raise ExportError(
                f"{out} holds {sorted(other)[0][:80]}, so it is not replaced: choose a new folder, "
                "or one of ONNX files"
            )
        return [out / FILES[kind] for kind in kinds]
    if len(kinds) > 1:
        raise ExportError(
            f"{out} is one file, but there are two graphs: name a folder, or choose one graph with "
            "--graph step or --graph sequence"
        )
    if out.is_dir():
        raise ExportError(f"{out} is a folder; choose a file, or a folder without .onnx")
    return [out]


def _checked(contents: FolderContents, network: Network, kind: GraphKind) -> bytes:
    """Return the file of a graph that agrees with the network."""
    if contents.config.weights is not None:
        _check_in_floats(contents, kind)
    maker = GraphMaker(contents.config, contents.tensors)
    model = maker.graph(kind, metadata_of(contents, maker.layout, kind))
    check = GraphCheck(model, network)
    check.run(kind)
    model.metadata_props[f"{PREFIX}case"] = json.dumps(check.case(kind))
    content = ir.to_proto(model)
    content.metadata_props.add(key=f"{PREFIX}checksum", value=checksum(content))
    serialized: bytes = content.SerializeToString()
    return serialized


def _check_in_floats(contents: FolderContents, kind: GraphKind) -> None:
    """Check all but the products with int8 weights, whose rounding would hide small errors."""
    config = contents.config.model_copy(update={"weights": None})
    model = GraphMaker(config, contents.tensors).graph(kind, {})
    GraphCheck(model, Network(config, contents.tensors, torch.float32)).run(kind)


def _write(content: bytes, file: Path) -> None:
    """Write a file, which appears under its name when it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with new_file(file, replace=True) as target:
        target.write(content)
