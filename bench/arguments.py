"""The command line of a benchmark: what its module says of itself, and where results go."""

import argparse
from pathlib import Path

from bench.machine import ROOT


def command_line(module: str, doc: str | None) -> argparse.ArgumentParser:
    """For `python -m module`, described by the docstring, with `--results`."""
    description, _, more = (doc or "").partition("\n")
    made = argparse.ArgumentParser(
        f"python -m {module}",
        description=description,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--results", type=Path, default=ROOT / "bench" / "results", help="folder for the results"
    )
    return made
