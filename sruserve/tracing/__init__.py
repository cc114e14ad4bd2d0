"""Read a live `torch.nn.Module`, and write the model folder that gives its answers."""
