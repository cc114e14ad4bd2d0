"""Small models of every kind, loaded in this process, and a server of the same folders."""

from tests.api.conftest import folders, local, serve, undeclared

__all__ = ["folders", "local", "serve", "undeclared"]
