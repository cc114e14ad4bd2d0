"""HTTP: connections, calls, and the endpoints of `/v1`."""
