"""The checks, one file each. Each asks one question of a `Server`."""
