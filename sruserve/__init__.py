"""sruserve: an inference server for trained recurrent models of the SRU family."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sruserve.tracing.save import save

__version__ = "0.1.0"
__all__ = ["save"]


def __getattr__(name: str) -> Any:
    """Import `save` when it is first used, because it needs torch."""
    if name == "save":
        from sruserve.tracing.save import save

        return save
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
