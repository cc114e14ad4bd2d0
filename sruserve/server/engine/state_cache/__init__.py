"""Storage of states on the device and in host memory, and the transfers between them."""
