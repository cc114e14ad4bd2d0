"""KServe v2 with Triton's extensions: one core of tensors and models, and its transports."""
