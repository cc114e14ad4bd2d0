"""The Triton kernels for NVIDIA GPUs."""
