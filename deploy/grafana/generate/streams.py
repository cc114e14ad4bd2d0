"""Streams and their states: in memory, in tokens that clients keep, and held by the server."""

from deploy.grafana.generate.panels import Board, Panel, Query, Row
from deploy.grafana.generate.queries import active, quantiles, rate, share, total

_STATES = Row(
    "States in memory",
    [
        Panel(
            "Resident states", "short",
            "Streams whose state is in memory, by tier: `pool` on a CPU, `device` on a GPU, `host` "
            "beyond it. A state that went to its client as a token takes no memory. Growing "
            "without end: clients do not end their held streams, so lower "
            "SRUSERVE_STREAM_IDLE_SECONDS.",
            [Query(total("sru_streams", by="tier"), "{{tier}}")],
        ),
        Panel(
            "Memory of states", "bytes",
            "Memory of these states. Every stream of a model has the same size, however long its "
            "text. If it nears the limit beside it, raise SRUSERVE_STATE_HOST_BYTES.",
            [Query(total("sru_state_bytes", by="tier"), "{{tier}}")],
        ),
        Panel(
            "Memory of states, share of its limit", "percentunit",
            "By tier, of all workers and versions together; the overview has the fullest of them. "
            "The pool fills before states move to the host, so a full pool is normal. A full host "
            "tier is not: new streams get 429, so raise SRUSERVE_STATE_HOST_BYTES or add replicas.",
            [
                Query(
                    share("sru_state_bytes", "sru_state_limit_bytes", by="model, tier"),
                    "{{model}} {{tier}}",
                )
            ],
            limit=0.9,
        ),
        Panel(
            "Replays", "ops",
            "Streams that were computed again up to a stop string inside a burst, so that their "
            "state ends where their text does. Many of them waste steps: lower SRUSERVE_BURST.",
            [Query(rate("sru_replays_total", by="model"), "{{model}}")],
        ),
    ],
)  # fmt: skip

_TOKENS = Row(
    "State tokens",
    [
        Panel(
            "Tokens minted and opened", "ops",
            "States sealed for a client or for Redis, and states that came back. Opened far below "
            "minted: clients ask for states that they never use, so let them leave out "
            "`return_state`.",
            [
                Query(rate("sru_state_mint_seconds_count"), "minted"),
                Query(rate("sru_state_open_seconds_count"), "opened"),
            ],
        ),
        Panel(
            "Time to seal and to restore", "s",
            "Sealing a state into a token, and restoring one from a token. Both are far below a "
            "millisecond. If not, the cores are busy: look at CPU on the dashboard of processes.",
            [
                *quantiles("sru_state_mint_seconds", (0.5, 0.99), "seal "),
                *quantiles("sru_state_open_seconds", (0.5, 0.99), "restore "),
            ],
        ),
        Panel(
            "Tokens refused, by reason", "ops",
            "`state_unknown_key`: replicas do not share SRUSERVE_STATE_KEYS, or a key was removed "
            "too early. `state_wrong_model`: the weights changed. `state_expired`: older than "
            "SRUSERVE_STATE_TTL_SECONDS. `state_tampered`: a client changed or cut it. Follow the "
            "runbook of SruserveStatesRefused.",
            [
                Query(
                    active(
                        rate("sru_state_rejected_total", by="reason"),
                        "sru_state_rejected_total",
                        "reason",
                    ),
                    "{{reason}}",
                )
            ],
        ),
    ],
)  # fmt: skip

_HELD = Row(
    "Server-held streams",
    [
        Panel(
            "Held streams", "short",
            "Streams of `/v1/streams` in the servers' memory; those in Redis are not counted. "
            "Growing without end: clients create streams and never delete them. Lower "
            "SRUSERVE_STREAM_IDLE_SECONDS, after which they end.",
            [Query(total("sru_held_streams", by="model"), "{{model}}")],
        ),
        Panel(
            "Steps", "ops",
            "Steps that were computed, and steps that were sent again and answered from the store. "
            "Many repeated ones: clients time out before their replies arrive, so raise their "
            "limit, or connections break: look at the proxies.",
            [Query(rate("sru_stream_steps_total", by="outcome"), "{{outcome}}")],
        ),
        Panel(
            "Expired streams", "ops",
            "Streams in memory that were idle for too long. Many: clients abandon streams, or "
            "return too late, so raise SRUSERVE_STREAM_IDLE_SECONDS.",
            [Query(rate("sru_streams_expired_total", by="model"), "{{model}}")],
        ),
        Panel(
            "Idle time before a step", "s",
            "How long a stream had been idle when its next step came. If p95 nears "
            "SRUSERVE_STREAM_IDLE_SECONDS, clients lose streams: raise it.",
            quantiles("sru_stream_idle_seconds", (0.5, 0.95)),
        ),
    ],
)  # fmt: skip

STREAMS = Board(
    "streams",
    "sruserve: streams and state",
    "States in memory, state tokens, and streams that the server holds.",
    (_STATES, _TOKENS, _HELD),
)
