"""The server: engines that schedule work on models, and the protocols in front of them."""
