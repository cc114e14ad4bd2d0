"""Measurements against the peers. `make bench` runs all of them; the package does not ship them."""
