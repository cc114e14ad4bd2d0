"""The first dashboard to look at: traffic, errors, latency, saturation."""

from deploy.grafana.generate.panels import Board, Panel, Query, Row
from deploy.grafana.generate.queries import (
    INSTANCE,
    active,
    largest,
    latencies,
    latency,
    objective,
    quantile,
    quantiles,
    rate,
    selected,
    share,
    total,
)

_CURRENT = 'state="current"'
_SERVED = rate("sru_requests_total", 'outcome="ok"')
_REFUSED = rate("sru_requests_total", 'outcome=~"refused|error"')
_NOT_COUNTED = rate("sru_refusals_total", 'reason=~"rate_limited|state_quota_exceeded|draining"')
_NOT_SERVED = f"clamp_min({_REFUSED} - {_NOT_COUNTED}, 0)"
_ALERTS = 'ALERTS{alertname=~"Sruserve.+", alertstate="firing"}'

_AT_A_GLANCE = Row(
    "At a glance",
    [
        Panel(
            "Firing alerts", "short",
            "Alerts of sruserve that are firing now. If any: open the list of alerts in "
            "Prometheus and follow the runbook of each.",
            [Query(f"count({_ALERTS}) or vector(0)", "alerts")], number=True, limit=1,
        ),
        Panel(
            "Requests", "reqps",
            "Requests finished in a second, with any outcome. If it falls to zero while clients "
            "are active, they do not reach the server: look at the load balancer and at Instances.",
            [Query(rate("sru_requests_total"), "requests")], number=True,
        ),
        Panel(
            "Not served", "percentunit",
            "Share of the requests that the server refused (429, 503, 504) or failed (500). "
            "Invalid requests, clients that left, clients over a limit of their own key and "
            "requests that a stopping server leaves to others (`draining`) do not count. Above "
            "0.1 %: look at Refusals by reason.",
            [
                Query(
                    f"{_NOT_SERVED} / ({_NOT_SERVED} + {_SERVED})",
                    "share",
                )
            ],
            number=True, limit=0.001,
        ),
        Panel(
            "Latency, p99", "s",
            "99 of 100 requests that generate no text are answered faster. Completions and held "
            "streams last as long as their text, so they are left out. Above the objective of half "
            "a second: look at Latency by route, then at Queue time.",
            [Query(latency(0.99), "p99")], number=True, limit=0.5,
        ),
        Panel(
            "Error budget burn, 1 h", "short",
            "How many times faster than allowed the error budget is used up; 1 uses it up exactly "
            "in its 30 days. Above 14.4 an alert pages: follow its runbook. Of all instances.",
            [
                Query(
                    "max(sruserve:not_served:ratio_rate1h) / scalar(sruserve:error_budget:ratio)",
                    "burn rate",
                )
            ],
            number=True, limit=1,
        ),
        Panel(
            "Version and kernel", "short",
            "`c-avx512`, `c-avx2`, `c-baseline` and `triton` are compiled kernels. With "
            "`reference` the compiled one is missing and the server is many times slower: install "
            "it again with a C compiler.",
            [
                Query(
                    f"max by (version, kernel) ({selected('sru_build_info', of_models=False)})",
                    "{{version}} {{kernel}}",
                )
            ],
            number=True, names=True,
        ),
    ],
)  # fmt: skip

_TRAFFIC = Row(
    "Traffic and errors",
    [
        Panel(
            "Requests by route", "reqps",
            "Requests finished in a second. A route that falls to zero alone: its clients have a "
            "fault. A route that grows alone: find the client, and limit it with "
            "`requests_per_second` of its API key.",
            [
                Query(
                    active(rate("sru_requests_total", by="route"), "sru_requests_total", "route"),
                    "{{route}}",
                )
            ],
        ),
        Panel(
            "Requests by outcome", "reqps",
            "`ok`: served. `invalid`: the request was wrong (4xx). `refused`: no room or time, or "
            "a limit of the client's own key (429, 503, 504): look at Refusals by reason. "
            "`cancelled`: the client left. `error`: the server failed (500), which must not "
            "happen: read the log.",
            [Query(rate("sru_requests_total", by="outcome"), "{{outcome}}")],
        ),
        Panel(
            "Refusals by reason", "reqps",
            "The code of every request that ended in an error. `overloaded`: the queue is full, so "
            "add a replica. `rate_limited`, `state_quota_exceeded`: a client is at a limit of its "
            "own key, which no replica changes. `draining`: a server is stopping, and another one "
            "serves them. `engine_failure`, `internal_error`: read the log. Other `state_…`: see "
            "the dashboard of streams. All others: the client's mistakes.",
            [
                Query(
                    active(rate("sru_refusals_total", by="reason"), "sru_refusals_total", "reason"),
                    "{{reason}}",
                )
            ],
        ),
        Panel(
            "Clients that left", "reqps",
            "Connections that clients closed before their reply. Many of them beside a high "
            "latency: clients give up waiting, so raise their time limit or add replicas.",
            [Query(rate("sru_client_disconnects_total", by="model"), "{{model}}")],
        ),
    ],
)  # fmt: skip

_LATENCY = Row(
    "Latency",
    [
        Panel(
            "Latency", "s",
            "From a request read to its reply sent, for requests that generate no text. If p50 is "
            "high, too, the server is saturated. If only p99 is, a few requests are long: look at "
            "the routes. The dashboard of generation has the times of completions.",
            [*latencies(), objective("latency")],
        ),
        Panel(
            "Latency by route, p95", "s",
            "95 of 100 requests of a route are answered faster. Completions last as long as their "
            "text. Another route that grows: look at Queue time, then at the step time of "
            "Batching.",
            [
                Query(
                    # without NaN, which is not a number of at least zero: routes without requests
                    f"{quantile(0.95, 'sru_request_seconds', by='route')} >= 0",
                    "{{route}}",
                )
            ],
        ),
        Panel(
            "Queue time", "s",
            "From a request submitted to its first step. An idle server starts at once. If it "
            "grows steadily, more work arrives than is done: add replicas.",
            [*quantiles("sru_queue_seconds"), objective("queue")],
        ),
    ],
)  # fmt: skip

_SATURATION = Row(
    "Saturation",
    [
        Panel(
            "Engine busy", "percentunit",
            "Share of the time that the engines of a model spend in steps; each worker's adds up "
            "to 100 %. Near 100 % for each worker: the model is the bottleneck, so add replicas.",
            [Query(rate("sru_step_seconds_sum", by="instance, model"), "{{model}} {{instance}}")],
        ),
        Panel(
            "Queue, share of its limit", "percentunit",
            "Waiting requests as a share of SRUSERVE_MAX_QUEUE_REQUESTS, in the worker and version "
            "where it is largest. At 100 % requests get 429: add replicas. A longer queue only "
            "makes clients wait longer.",
            [Query(largest("sru_queue_fill_ratio", "instance, model"), "{{model}} {{instance}}")],
            limit=0.8,
        ),
        Panel(
            "State memory, share of its limit", "percentunit",
            "Memory of states in all tiers, as a share of SRUSERVE_STATE_POOL_BYTES and "
            "SRUSERVE_STATE_HOST_BYTES, in the worker and version where it is largest. Near 100 % "
            "new streams get 429: raise the second, or let idle streams expire sooner.",
            [Query(largest("sru_state_fill_ratio", "instance, model"), "{{model}} {{instance}}")],
            limit=0.9,
        ),
        Panel(
            "Connections, share of their limit", "percentunit",
            "Open connections as a share of what SRUSERVE_MAX_CONNECTIONS and the limit of open "
            "files allow. At 100 % idle connections are closed: raise both, or add replicas.",
            [
                Query(
                    share(
                        "sru_connections", "sru_connections_limit", by="instance", of_models=False
                    ),
                    "{{instance}}",
                )
            ],
            limit=0.8,
        ),
        Panel(
            "Instances", "short",
            "Whether Prometheus reaches each instance: 1 or 0. At 0, the instance is stopped, or "
            "its port is not reachable: look at its log.",
            [Query(f'up{{job="sruserve", {INSTANCE}}}', "{{instance}}")],
        ),
        Panel(
            "Running sequences", "short",
            "Sequences in the running batch, by model. If it stays at its highest while the queue "
            "grows, the server is at its capacity: add replicas.",
            [Query(total("sru_running", by="model"), "{{model}}")],
        ),
    ],
)  # fmt: skip

_VERSIONS = Row(
    "Versions of models",
    [
        Panel(
            "Versions in memory", "short",
            "Versions of each model, by what they do: `current`, `split` for a part of new "
            "requests, `older` for the states that belong to it, and `ending`. Many older ones "
            "take memory: lower SRUSERVE_MODEL_VERSIONS, the limit, or let states live shorter.",
            [
                Query(
                    f"max by (model, state) ({selected('sru_model_versions')})",
                    "{{model}} {{state}}",
                ),
                Query(
                    f"max({selected('sru_model_versions_limit', of_models=False)})",
                    "limit",
                ),
            ],
        ),
        Panel(
            "Replicas by version", "short",
            "Instances by the current version of each model, with its digest. Two lines of a model "
            "after a rollout, or of one number: replicas have different weights, so finish the "
            "rollout or take it back, and look at `sruserve inspect` on each.",
            [
                Query(
                    "count by (model, version, digest) "
                    f"({selected('sru_model_info', _CURRENT)})",
                    "{{model}} {{version}} {{digest}}",
                )
            ],
        ),
        Panel(
            "Versions ended", "short",
            "Older versions that are no longer served, in an hour. `over`: no state of them can "
            "arrive any more. `versions` and `memory`: they made way early, and their streams "
            "ended; give the server more memory, or raise SRUSERVE_MODEL_VERSIONS. `start`: a "
            "server that started left them out.",
            [
                Query(
                    f"sum by (reason) (increase({selected('sru_model_versions_ended_total')}[1h]))",
                    "{{reason}}",
                )
            ],
        ),
    ],
)  # fmt: skip

OVERVIEW = Board(
    "overview",
    "sruserve: overview",
    "Traffic, errors, latency and saturation of all instances.",
    (_AT_A_GLANCE, _TRAFFIC, _LATENCY, _SATURATION, _VERSIONS),
)
