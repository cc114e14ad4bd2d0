"""`python -m sruserve` is `sruserve`."""

from sruserve.cli import main

main()
