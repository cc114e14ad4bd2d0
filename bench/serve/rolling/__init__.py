"""A rolling restart of replicas behind HAProxy, under load: `python -m bench.serve.rolling`."""
