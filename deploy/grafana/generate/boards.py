"""All dashboards, and what of the metrics none of them shows."""

from deploy.grafana.generate.batching import BATCHING
from deploy.grafana.generate.generation import GENERATION
from deploy.grafana.generate.overview import OVERVIEW
from deploy.grafana.generate.processes import PROCESSES
from deploy.grafana.generate.streams import STREAMS

BOARDS = (OVERVIEW, BATCHING, STREAMS, GENERATION, PROCESSES)

_ONE_WORKER = "of servers with one worker only; the sru_worker_… metrics say the same"
_PYTHON = "of servers with one worker only, and of interest to developers"
# Metrics without a panel, with the reason.
NOT_SHOWN = {
    "process_cpu_seconds_total": _ONE_WORKER,
    "process_max_fds": "of servers with one worker only; sru_connections_limit follows from it",
    "process_open_fds": _ONE_WORKER,
    "process_resident_memory_bytes": _ONE_WORKER,
    "process_start_time_seconds": "of servers with one worker only, as sru_start_time_seconds",
    "process_virtual_memory_bytes": "of servers with one worker only, and no measure of memory use",
    "python_gc_collections_total": _PYTHON,
    "python_gc_objects_collected_total": _PYTHON,
    "python_gc_objects_uncollectable_total": _PYTHON,
    "python_info": _PYTHON,
    "sru_tls_certificate_expiry_seconds": "zero without TLS; the alert "
    "SruserveCertificateEnds says how long it lasts",
    "sru_queue_limit_requests": "of all versions and workers together; each has its own limit, "
    "which sru_queue_fill_ratio compares with its queue",
}
