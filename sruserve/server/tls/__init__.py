"""The certificate of HTTP and gRPC."""
