"""The PromQL of the panels, limited to the chosen models and instances."""

from collections.abc import Sequence

from deploy.grafana.generate.panels import Query

INSTANCE = 'instance=~"$instance"'
MODEL = 'model=~"$model", ' + INSTANCE
_RANGE = "[$__rate_interval]"
_QUANTILES = (0.5, 0.95, 0.99)
# Requests whose time does not depend on the length of a generated text. Over KServe one route has
# the requests of all tasks, so models that generate are left out there.
_NO_TEXT = 'route=~"/v1/(classify|tag|regress|encode|score)|/predict"'
_ALL_TASKS = 'route=~"/v2/infer|/inference.GRPCInferenceService/ModelInfer"'


def selected(metric: str, *matchers: str, of_models: bool = True) -> str:
    """The series of the chosen instances, and of the chosen models if they have any."""
    return f"{metric}{{{', '.join((MODEL if of_models else INSTANCE, *matchers))}}}"


def rate(metric: str, *matchers: str, by: str = "", of_models: bool = True) -> str:
    """A counter's growth in a second."""
    return f"{_sum(by)} (rate({selected(metric, *matchers, of_models=of_models)}{_RANGE}))"


def active(query: str, metric: str, by: str) -> str:
    """A query by a label, only for those of its values of which a counter has counted anything."""
    return f"{query} and {total(metric, by=by)} > 0"


def total(metric: str, *matchers: str, by: str = "", of_models: bool = True) -> str:
    """The sum of a gauge."""
    return f"{_sum(by)} ({selected(metric, *matchers, of_models=of_models)})"


def largest(metric: str, by: str) -> str:
    """The largest value of a gauge."""
    return f"max by ({by}) ({selected(metric)})"


def quantile(share: float, histogram: str, *matchers: str, by: str = "") -> str:
    """The value below which this share of what a histogram observed is."""
    buckets = rate(f"{histogram}_bucket", *matchers, by=f"le, {by}" if by else "le")
    return f"histogram_quantile({share}, {buckets})"


def quantiles(
    histogram: str, shares: Sequence[float] = _QUANTILES, prefix: str = ""
) -> list[Query]:
    """A line for each quantile of a histogram."""
    return [Query(quantile(share, histogram), f"{prefix}p{round(100 * share)}") for share in shares]


def latency(share: float) -> str:
    """The time in which this share of the requests that generate no text is answered."""
    own, kserve = (
        f"rate({selected('sru_request_seconds_bucket', route)}{_RANGE})"
        for route in (_NO_TEXT, _ALL_TASKS)
    )
    generating = f"{selected('sru_generated_tokens_total')} > 0"
    kserve = f"({kserve} unless on (job, model) {generating})"
    return f"histogram_quantile({share}, sum by (le) ({own} or {kserve}))"


def latencies() -> list[Query]:
    """A line for each quantile of the requests that generate no text."""
    return [Query(latency(share), f"p{round(100 * share)}") for share in _QUANTILES]


def objective(name: str) -> Query:
    """The line of a number of the service level."""
    return Query(f"sruserve:{name}_objective:seconds", "objective of p99")


def mean(histogram: str) -> str:
    """The mean of what a histogram observed."""
    return f"{rate(f'{histogram}_sum')} / {rate(f'{histogram}_count')}"


def share(part: str, limit: str, *, by: str, of_models: bool = True) -> str:
    """A gauge as a share of the gauge that is its limit."""
    parts, limits = (total(name, by=by, of_models=of_models) for name in (part, limit))
    return f"{parts} / {limits}"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"
