"""The kernels on a GPU, against their floors: `python -m bench.gpu`."""
