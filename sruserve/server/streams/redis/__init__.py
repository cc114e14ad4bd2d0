"""Streams that live in Redis, for several workers and replicas."""
