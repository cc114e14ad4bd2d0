"""The command line of a benchmark: its module's docstring as help, and the results folder."""

import argparse
from pathlib import Path

from bench.report.machine import ROOT


def command_line(module: str, doc: str | None) -> argparse.ArgumentParser:
    """Return a parser for `python -m module`, with the docstring as help and `--results`."""
    description, _, details = (doc or "").partition("\n")
    parser = argparse.ArgumentParser(
        f"python -m {module}",
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=ROOT / "bench" / "results", help="folder for the results"
    )
    return parser
