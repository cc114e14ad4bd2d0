"""Errors of exports."""

from sruserve.model.errors import ModelError


class ExportError(ModelError):
    """A network that cannot be exported, or whose exported form disagrees with it."""

    code = "invalid_export"


class RuntimePlacementError(ModelError):
    """A graph that ONNX Runtime cannot run on the device."""

    code = "invalid_device"
