"""Completions: what a person who reads them sees."""

from deploy.grafana.generate.panels import Board, Panel, Query, Row
from deploy.grafana.generate.queries import objective, quantiles, rate, total

_COMPLETIONS = 'route=~"/v1/(completions|responses)"'

_READER = Row(
    "What a reader sees",
    [
        Panel(
            "Time to the first character", "s",
            "From a streamed completion read to its first text: the queue, the prompt and a token. "
            "If it grows, look at the wait on the dashboard of batching: add replicas.",
            [*quantiles("sru_first_character_seconds"), objective("first_character")],
        ),
        Panel(
            "Inter-character gap", "s",
            "From one piece of a streamed text to the next; the characters of one event arrive "
            "together. It is between SRUSERVE_FLUSH_MS and SRUSERVE_FLUSH_MAX_MS. Above: the steps "
            "are too slow for all running streams, so add replicas.",
            quantiles("sru_character_gap_seconds"),
        ),
    ],
)  # fmt: skip

_OUTPUT = Row(
    "Output",
    [
        Panel(
            "Characters", "ops",
            "Characters generated in a second. If it falls while completions run, the steps are "
            "slower: look at Step time on the dashboard of batching.",
            [Query(rate("sru_generated_characters_total", by="model"), "{{model}}")],
        ),
        Panel(
            "Tokens", "ops",
            "Tokens generated in a second, and tokens read from prompts and texts. Much more read "
            "than generated: clients send long prompts again, so let them send the state instead.",
            [
                Query(rate("sru_generated_tokens_total"), "generated"),
                Query(rate("sru_input_tokens_total"), "read"),
            ],
        ),
        Panel(
            "Completions by outcome", "reqps",
            "Completions that ended in a second, without those over KServe. `cancelled`: the "
            "client left before the end. Many of them: texts are longer than clients want, so "
            "lower their `max_tokens`, or arrive too slowly, so add replicas.",
            [Query(rate("sru_requests_total", _COMPLETIONS, by="outcome"), "{{outcome}}")],
        ),
        Panel(
            "Running sequences", "short",
            "Sequences that are computed now. Each generating one gets a smaller part of a step as "
            "their number grows: if the gap above is too long, add replicas.",
            [Query(total("sru_running", by="model"), "{{model}}")],
        ),
    ],
)  # fmt: skip

GENERATION = Board(
    "generation",
    "sruserve: generation",
    "Completions: time to the first character, gaps, and characters in a second.",
    (_READER, _OUTPUT),
)
