"""The allowed values of a field in words, for its documentation and its errors."""

from typing import Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo

_WORDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def limits(field: FieldInfo) -> dict[str, Any]:
    """The bounds of a number by pydantic's names for them: `gt`, `ge`, `lt`, `le`."""
    types = [kind for kind in get_args(field.annotation) if get_origin(kind) is Annotated]
    inner = (entry for kind in types for entry in kind.__metadata__)
    bounds: dict[str, Any] = {}
    for source in (field, *inner):
        for bound in getattr(source, "metadata", ()):
            bounds |= {side: getattr(bound, side) for side in _WORDS if hasattr(bound, side)}
    return bounds


def in_words(field: FieldInfo) -> str:
    """What a number of a request must be: "from 0 to 10", "above 0, at most 1"; else empty."""
    bounds = limits(field)
    if bounds.keys() == {"ge", "le"}:
        return f"from {bounds['ge']} to {bounds['le']}"
    return ", ".join(f"{words} {bounds[side]}" for side, words in _WORDS.items() if side in bounds)


def setting_bounds(field: FieldInfo) -> str:
    """The bounds of a setting such as "0 to 65535", or the words that are allowed; else empty."""
    if field.annotation is bool:
        return "true, false"
    kinds = get_args(field.annotation)
    words = [word for word in kinds if isinstance(word, str)]
    if kinds[:1] == (bool,):
        words = ["true", "false", *(word for kind in kinds for word in get_args(kind))]
    if words:
        return ", ".join(words)
    bounds = limits(field)
    if field.annotation is int and "gt" in bounds:
        bounds["ge"] = bounds.pop("gt") + 1
    if "ge" in bounds and "le" in bounds:
        return f"{bounds['ge']} to {bounds['le']}"
    if "ge" in bounds:
        return f"from {bounds['ge']}"
    return f"above {bounds['gt']}" if "gt" in bounds else ""


def allowed_setting(field: FieldInfo) -> str:
    """What a setting should be: "a whole number from 0 to 65535"; empty if there are no bounds."""
    words = setting_bounds(field)
    if not words[-1:].isdigit():
        return words.replace(", ", " or ")
    number = "a number" if field.annotation is float else "a whole number"
    return f"{number} {words}" if words[0].isalpha() else f"{number} from {words}"
