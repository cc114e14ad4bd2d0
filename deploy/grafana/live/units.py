"""Values as Grafana writes them, for the units that the panels use."""

_SECONDS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_SUFFIXES = {"reqps": " req/s", "ops": " /s", "short": ""}


def written(value: float, unit: str) -> str:
    """A value in its unit, with three digits."""
    if unit == "s":
        return _seconds(value)
    if unit == "bytes":
        for size, name in _BYTES:
            if abs(value) >= size:
                return f"{_digits(value / size)} {name}"
        return f"{_digits(value)} B"
    if unit == "percentunit":
        return f"{_digits(100 * value)} %"
    suffix = _SUFFIXES[unit]
    for size, name in _LARGE:
        if abs(value) >= size:
            return f"{_digits(value / size)}{name}{suffix}"
    return f"{_digits(value)}{suffix}"


def _seconds(value: float) -> str:
    if abs(value) >= 120:
        return f"{_digits(value / 60)} min"
    for least, name, factor in _SECONDS:
        if abs(value) >= least and value:
            return f"{_digits(value * factor)} {name}"
    return "0 s"


def _digits(value: float) -> str:
    if value == round(value) or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
