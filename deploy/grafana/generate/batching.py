"""How the engines put requests together into steps, and what waiting for that costs."""

from deploy.grafana.generate.panels import Board, Panel, Query, Row
from deploy.grafana.generate.queries import mean, quantile, quantiles, rate, total

_STEPS = Row(
    "Steps",
    [
        Panel(
            "Steps", "ops",
            "Turns of the engines in a second. When it falls while tokens per step rise, batching "
            "does its work. When both fall while requests wait: look at Step time.",
            [Query(rate("sru_step_seconds_count", by="model"), "{{model}}")],
        ),
        Panel(
            "Step time", "s",
            "One turn: a forward pass over everything that is ready, or a burst of up to "
            "SRUSERVE_BURST tokens while nobody waits. A new request waits for one turn. If p99 "
            "exceeds 50 ms, other programs take the cores, or SRUSERVE_THREADS "
            "is too high: lower it.",
            quantiles("sru_step_seconds"),
        ),
        Panel(
            "Engine busy", "percentunit",
            "Share of the time in steps; each worker adds up to 100 %. Low while requests are "
            "slow: the bottleneck is not the model but HTTP, so add workers.",
            [Query(rate("sru_step_seconds_sum", by="model"), "{{model}}")],
        ),
    ],
)  # fmt: skip

_BATCHES = Row(
    "Batches",
    [
        Panel(
            "Batch size", "short",
            "Sequences in one step. It grows by itself with the load; nobody waits for a batch to "
            "fill. Near 1 under load: requests arrive one after another from few connections, so "
            "let clients send several at a time.",
            [
                Query(mean("sru_batch_size"), "mean"),
                Query(quantile(0.95, "sru_batch_size"), "p95"),
            ],
        ),
        Panel(
            "Tokens per step", "short",
            "Tokens in one step, over all its sequences. A generating stream adds one, or up to "
            "SRUSERVE_BURST; a text that is read adds all its tokens. At SRUSERVE_MAX_BATCH_TOKENS "
            "long texts take turns: lower their number, or add replicas.",
            [
                Query(mean("sru_step_tokens"), "mean"),
                Query(quantile(0.95, "sru_step_tokens"), "p95"),
            ],
        ),
        Panel(
            "Time of one token in a step", "s",
            "Step time divided by tokens. It falls as batches grow. If it rises at the same batch "
            "size, the machine is slower: look for other programs, or a lower clock.",
            [Query(f"{rate('sru_step_seconds_sum')} / {rate('sru_step_tokens_sum')}", "mean")],
        ),
    ],
)  # fmt: skip

_WAITING = Row(
    "Waiting",
    [
        Panel(
            "Wait for the first step", "s",
            "From a request submitted to its first step. On a server with room it is at most the "
            "step that runs. If it grows steadily, more work arrives than is done: add replicas.",
            quantiles("sru_queue_seconds"),
        ),
        Panel(
            "Waiting and running", "short",
            "Requests that wait for their first step, and sequences that are computed. A queue "
            "that stays means more work than the server does: add replicas.",
            [
                Query(total("sru_queue_requests"), "waiting"),
                Query(total("sru_running"), "running"),
            ],
        ),
        Panel(
            "Tokens", "ops",
            "Tokens read from requests and generated in a second. If both fall while requests "
            "wait, the steps are slower: look at Step time.",
            [
                Query(rate("sru_input_tokens_total"), "read"),
                Query(rate("sru_generated_tokens_total"), "generated"),
            ],
        ),
    ],
)  # fmt: skip

BATCHING = Board(
    "batching",
    "sruserve: batching",
    "Steps of the engines: how many sequences and tokens each has, and how long requests wait.",
    (_STEPS, _BATCHES, _WAITING),
)
