"""Protocols that an examination speaks, one file each."""
