"""`/v1/streams`: server-held streams over HTTP."""
