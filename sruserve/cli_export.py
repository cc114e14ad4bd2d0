"""The commands that write a model or a state in another form: onnx, quantize, state."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sruserve.cli_models import FolderArgument, ModelArgument
from sruserve.cli_quantize import quantize
from sruserve.cli_shared import fail, progress_bar
from sruserve.cli_signals import cleaning_up

if TYPE_CHECKING:
    from sruserve.export.onnx.network import GraphKind

app = typer.Typer(
    name="export", help="Write a model or a state in another form.", no_args_is_help=True
)
_PACKAGES = ("onnx", "onnx_ir", "onnxruntime", "onnxscript")


class Graphs(StrEnum):
    """The choice of graphs."""

    STEP = "step"
    SEQUENCE = "sequence"
    BOTH = "both"


_KINDS: dict[Graphs, "Sequence[GraphKind]"] = {
    Graphs.STEP: ("step",),
    Graphs.SEQUENCE: ("sequence",),
    Graphs.BOTH: ("sequence", "step"),
}


@app.command(epilog="Example: sruserve export onnx my-model my-model.onnx --graph step")
def onnx(
    model: FolderArgument,
    out: Annotated[
        Path,
        typer.Argument(
            readable=False,
            help="The file to write, *.onnx; or a folder, which gets model.onnx and step.onnx.",
        ),
    ],
    graph: Annotated[
        Graphs | None,
        typer.Option(
            help="step: one step of many streams, without control flow. sequence: whole inputs of "
            "different lengths. Default: both, or sequence for a model that cannot stream.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write ONNX graphs of a model, in float32, for any runtime of ONNX.

    The state of a stream is an input and an output of a graph. The files hold labels, vocabulary
    and config as metadata. Each graph is compared with the model first: a file that is written
    agrees with it to 1e-5. A model with int8 weights gets graphs with int8 weights, which agree
    with it to the rounding of int8.
    """
    from sruserve.model.errors import ModelError

    try:
        from sruserve.export.onnx.export import export_onnx
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        fail(ModelError(f"exports need {error.name}: pip install 'sruserve[onnx]'"))
    try:
        with cleaning_up(), progress_bar() as progress:
            bar = progress.add_task("", total=None)
            files = export_onnx(
                model,
                out,
                None if graph is None else _KINDS[graph],
                lambda name: progress.update(bar, description=name),
            )
    except ModelError as error:
        fail(error)
    for file in files:
        typer.echo(f"wrote {file}: {file.stat().st_size:,} bytes")


@app.command(epilog="Example: sruserve export state shakespeare < token > state.json")
def state(
    model: ModelArgument,
) -> None:
    """Open a state token, and write it as JSON for programs that run an exported graph.

    Reads the token from the standard input. Needs the SRUSERVE_STATE_KEYS of the server that
    returned it, and opens the tokens of all tenants.
    """
    from sruserve.export.runtime.load import load_any
    from sruserve.model.errors import ModelError
    from sruserve.server.errors import StateRefused
    from sruserve.server.settings import SettingsError, key_ring, load_settings
    from sruserve.server.state.plain import open_for_operator, plain_state
    from sruserve.server.state.token import StateSealer

    try:
        settings = load_settings()
        if settings.state_keys is None:
            raise SettingsError("SRUSERVE_STATE_KEYS: set it to the keys of the server")
        limit = settings.max_state_token_bytes
        sealer = StateSealer(key_ring(settings), settings.state_ttl_seconds, limit)
        loaded = load_any(model)
        token = sys.stdin.buffer.read(2 * limit).decode("ascii", "replace").strip()
        snapshot = open_for_operator(token, sealer, loaded)
    except SettingsError as error:
        fail(error, code=2)
    except (ModelError, StateRefused) as error:
        fail(error)
    typer.echo(json.dumps(plain_state(snapshot, loaded.digest)))


app.command(
    epilog="Example: sruserve export quantize my-model my-model-int8 --weights int8 --text "
    "held-out.txt"
)(quantize)
