"""The old place of `in_own_thread`."""

from sruserve.server.offload import in_own_thread as in_own_thread
