"""sruserve: an inference server for trained recurrent models of the SRU family."""

__version__ = "0.1.0"
