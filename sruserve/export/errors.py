"""Errors of exports."""

from sruserve.model.errors import ModelError


class ExportError(ModelError):
    """A network that cannot be exported, or whose exported form disagrees with it."""

    code = "invalid_export"
