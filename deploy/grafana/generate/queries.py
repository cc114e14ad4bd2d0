"""The PromQL of the panels, limited to the chosen models and instances."""

from collections.abc import Sequence

from deploy.grafana.generate.panels import Query

INSTANCE = 'instance=~"$instance"'
MODEL = 'model=~"$model", ' + INSTANCE
_RANGE = "[$__rate_interval]"
_QUANTILES = (0.5, 0.95, 0.99)


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


def mean(histogram: str) -> str:
    """The mean of what a histogram observed."""
    return f"{rate(f'{histogram}_sum')} / {rate(f'{histogram}_count')}"


def share(part: str, limit: str, *, by: str, of_models: bool = True) -> str:
    """A gauge as a share of the gauge that is its limit."""
    parts, limits = (total(name, by=by, of_models=of_models) for name in (part, limit))
    return f"{parts} / {limits}"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"
