"""The command that examines any server: check."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sruserve.cli_shared import fail, progress_bar
from sruserve.cli_signals import cleaning_up

if TYPE_CHECKING:
    from sruserve.check.checks.examination import Check

KEY_VARIABLE = "SRUSERVE_CHECK_API_KEY"


class ProtocolName(StrEnum):
    """The choice of protocols."""

    AUTO = "auto"
    OPENAI = "openai"
    KSERVE = "kserve"
    SRUSERVE = "sruserve"


def check(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of a server: http://HOST:PORT.")
    ],
    replica: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Address of another replica of the server, which must continue the same states.",
            show_default=False,
        ),
    ] = None,
    protocol: Annotated[
        ProtocolName, typer.Option(help="Protocol of the server; auto asks the server.")
    ] = ProtocolName.AUTO,
    model: Annotated[
        str | None,
        typer.Option(help="Model to examine; default: the only one.", show_default=False),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help=f"API key of the server. Better set {KEY_VARIABLE}: other users of the machine "
            "can read the arguments of a program.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="Largest allowed difference of two numbers; 0: bit for bit."),
    ] = 0.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds for each request and its reply.")
    ] = 60.0,
    concurrency: Annotated[
        int, typer.Option(min=2, max=64, help="Most requests at the same time.")
    ] = 8,
    inputs: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            help="Own texts, one a line in UTF-8, of different lengths; at most 8 are used.",
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE.pem",
            help="Authority that signed the server's certificate; default: those of the system.",
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON instead of a table.")
    ] = False,
) -> None:
    """Examine any server: is every result the same, however it is asked for?

    Sends a bounded number of requests, which it announces, and compares the replies: an input in
    chunks, beside other requests, with a seed under load, a step that is sent again, a state that
    is used later. Works with sruserve, KServe v2 (Triton) and OpenAI's completions (vLLM,
    llama.cpp). Exits with 0 if all checks pass or do not apply, 1 if a result differs, 2 if the
    server does not answer or an option is wrong.
    """
    from sruserve.check.errors import CheckError
    from sruserve.check.examine import CHECKS
    from sruserve.check.report import as_json, print_table
    from sruserve.check.session import Options, check_server

    options = Options(
        urls=(url,) if replica is None else (url, replica),
        protocol=None if protocol is ProtocolName.AUTO else str(protocol),
        model=model,
        key=api_key or os.environ.get(KEY_VARIABLE, ""),
        tolerance=tolerance,
        timeout_seconds=timeout,
        concurrency=concurrency,
        inputs=inputs,
        ca_file=ca_file,
    )
    try:
        with cleaning_up(), progress_bar() as progress:
            bar = progress.add_task("finding out the protocol", total=len(CHECKS) + 1)

            def begin(check: "Check") -> None:
                progress.update(bar, description=check.question, advance=1)

            outcome = check_server(options, lambda text: typer.echo(text, err=True), begin)
    except CheckError as error:
        fail(error, code=2)
    if json_output:
        typer.echo(json.dumps(as_json(outcome)))
    else:
        print_table(outcome)
    raise typer.Exit(outcome.exit_code)
