"""A black-box examination of any inference server, over the protocols of `protocols/`."""
