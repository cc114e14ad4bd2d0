"""The processes of the server and their resources, and the memory of the GPU."""

from deploy.grafana.generate.panels import Board, Panel, Query, Row
from deploy.grafana.generate.queries import rate, selected, total

_START = selected("sru_start_time_seconds", of_models=False)

_LIFE = Row(
    "Life",
    [
        Panel(
            "Uptime", "s",
            "How long the instance that started last has been running. If it is short and nobody "
            "deployed, the server was restarted: read its log.",
            [Query(f"time() - max({_START})", "uptime")], number=True,
        ),
        Panel(
            "Starts, 1 h", "short",
            "How often instances started again in the last hour. More than a deployment explains: "
            "the server ends itself or is killed, so read its log and look at its memory.",
            [Query(f"sum(changes({_START}[1h]))", "starts")], number=True, limit=3,
        ),
        Panel(
            "Replaced workers, 1 h", "short",
            "Workers that ended and were replaced in the last hour. Any of them: the log says with "
            "which exit code. -9 is the kernel, out of memory: give the server more.",
            [
                Query(
                    "sum(increase("
                    f"{selected('sru_worker_restarts_total', of_models=False)}[1h]))",
                    "workers",
                )
            ],
            number=True, limit=1,
        ),
        Panel(
            "Workers", "short",
            "Living workers of all instances. Fewer than SRUSERVE_WORKERS for each instance: one "
            "is being replaced, or cannot start: read the log.",
            [Query(f"count({selected('sru_worker_memory_bytes', of_models=False)})", "workers")],
            number=True,
        ),
    ],
)  # fmt: skip

_RESOURCES = Row(
    "Workers",
    [
        Panel(
            "CPU", "short",
            "Cores that each worker uses. At the number of SRUSERVE_THREADS and one more, the "
            "worker has no reserve: add replicas, or cores and threads.",
            [
                Query(
                    rate("sru_worker_cpu_seconds_total", by="instance, worker", of_models=False),
                    "{{instance}} {{worker}}",
                )
            ],
        ),
        Panel(
            "Memory", "bytes",
            "Resident memory of each worker. It levels off when pools and caches are filled. If it "
            "nears the container's limit, lower SRUSERVE_STATE_HOST_BYTES or raise the limit.",
            [
                Query(
                    total("sru_worker_memory_bytes", by="instance, worker", of_models=False),
                    "{{instance}} {{worker}}",
                )
            ],
        ),
        Panel(
            "Open files", "short",
            "Files and sockets of each worker. Near the limit of open files the server closes idle "
            "connections: raise the limit (`ulimit -n`, LimitNOFILE).",
            [
                Query(
                    total("sru_worker_open_files", by="instance, worker", of_models=False),
                    "{{instance}} {{worker}}",
                )
            ],
        ),
    ],
)  # fmt: skip

_CONNECTIONS = Row(
    "Connections and GPU",
    [
        Panel(
            "Connections", "short",
            "Open connections, WebSockets among them. Many more than clients: let them reuse "
            "connections. The overview has their share of the limit.",
            [
                Query(total("sru_connections", of_models=False), "connections"),
                Query(total("sru_sockets", of_models=False), "WebSockets"),
            ],
        ),
        Panel(
            "Scrapes", "s",
            "How long Prometheus waits for `/metrics`. Above a second, the server is overloaded, "
            "or other programs take its cores: look at CPU.",
            [
                Query(
                    f"max({selected('scrape_duration_seconds', of_models=False)})",
                    "slowest instance",
                )
            ],
        ),
        Panel(
            "GPU memory", "bytes",
            "The workers' limit of GPU memory, what PyTorch has reserved, and what of it is in "
            "use. Zero on a CPU. If the part in use nears the limit, requests get `out_of_memory`: "
            "raise SRUSERVE_GPU_MEMORY_BYTES, or lower SRUSERVE_STATE_POOL_BYTES.",
            [Query(total("sru_gpu_memory_bytes", by="kind", of_models=False), "{{kind}}")],
        ),
    ],
)  # fmt: skip

PROCESSES = Board(
    "processes",
    "sruserve: processes and GPU",
    "Restarts, CPU, memory and connections of the workers, and the memory of the GPU.",
    (_LIFE, _RESOURCES, _CONNECTIONS),
)
