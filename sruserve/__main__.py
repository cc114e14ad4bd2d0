"""Run `sruserve` as `python -m sruserve`."""

from sruserve.cli import main

main()
