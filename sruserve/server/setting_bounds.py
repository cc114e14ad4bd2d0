"""The allowed values of a setting in words, for its documentation and its errors."""

from typing import get_args

from pydantic.fields import FieldInfo


def bounds(field: FieldInfo) -> str:
    """The bounds of a number such as "0 to 65535", or the words that are allowed; else empty."""
    if field.annotation is bool:
        return "true, false"
    words = [word for word in get_args(field.annotation) if isinstance(word, str)]
    if words:
        return ", ".join(words)
    limits = {}
    for bound in field.metadata:
        for side in ("gt", "ge", "le"):
            if hasattr(bound, side):
                limits[side] = getattr(bound, side)
    if field.annotation is int and "gt" in limits:
        limits["ge"] = limits.pop("gt") + 1
    if "ge" in limits and "le" in limits:
        return f"{limits['ge']} to {limits['le']}"
    if "ge" in limits:
        return f"from {limits['ge']}"
    return f"above {limits['gt']}" if "gt" in limits else ""


def allowed_values(field: FieldInfo) -> str:
    """What a setting should be: "a whole number from 0 to 65535"; empty if there are no bounds."""
    words = bounds(field)
    if not words[-1:].isdigit():
        return words.replace(", ", " or ")
    number = "a number" if field.annotation is float else "a whole number"
    return f"{number} {words}" if words[0].isalpha() else f"{number} from {words}"
