"""OpenTelemetry's metrics of completions: duration, time to the first token, time per token."""

from opentelemetry.metrics import Meter

from sruserve.server.observation.observation import Observation
from sruserve.server.observation.spans import PROVIDER

# The boundaries that OpenTelemetry asks for, and shorter ones: a step may take 50 µs.
_DURATIONS = (0.001, 0.002, 0.005, *(0.01 * 2**i for i in range(14)))
_FIRST = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)
_PER_TOKEN = (
    *(0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)


class GenerationMetrics:
    """Records completions; the tokens of streamed ones have times of their own."""

    def __init__(self, meter: Meter) -> None:
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration", "s", "Duration of a completion.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )  # fmt: skip
        self._first = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", "Time until a stream's first token.",
            explicit_bucket_boundaries_advisory=_FIRST,
        )  # fmt: skip
        self._per_token = meter.create_histogram(
            "gen_ai.server.time_per_output_token", "s", "Time of each further token of a stream.",
            explicit_bucket_boundaries_advisory=_PER_TOKEN,
        )  # fmt: skip

    def __call__(self, observation: Observation) -> None:
        """Record one request, if it is a completion."""
        if observation.kind is None or not observation.kind.samples:
            return
        attributes = {
            "gen_ai.operation.name": observation.kind.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": observation.model,
            "gen_ai.response.model": observation.model,
        }
        if observation.reason is not None:
            attributes["error.type"] = observation.reason
        self._duration.record(observation.seconds, attributes)
        if observation.outcome != "ok" or not observation.first:
            return
        self._first.record(observation.first - observation.begin, attributes)
        if observation.output_tokens > 1:
            seconds = observation.last - observation.first
            self._per_token.record(seconds / (observation.output_tokens - 1), attributes)
