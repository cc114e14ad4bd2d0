"""The layers and stacks on a CPU, against peers and floors: `python -m bench.cpu`."""
