"""Whether the error of an import says what to do."""

import re

_VERBS = (
    "add", "build", "change", "check", "choose", "convert", "copy", "correct", "cut", "export",
    "give", "import", "join", "keep", "leave", "list", "load", "name", "omit", "pass",
    "pip install", "remove", "rename", "replace", "save", "send", "set", "store", "train",
    "use", "write",
)  # fmt: skip
# An instruction after what was wrong, the only values that are accepted, or the option to use.
_ADVICE = re.compile(
    rf"[:;.,(] ?(or |and )?({'|'.join(_VERBS)})\b|\b(must|should) (be|have|hold|number)\b"
    r"|\bin --options\b|OLD=NEW"
)


def check_advice(message: str) -> None:
    """Fail unless a message says what to do."""
    assert _ADVICE.search(message), f"this error does not say what to do: {message}"
