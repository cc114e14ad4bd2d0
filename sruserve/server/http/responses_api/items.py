"""The items of a request's `input`, as the one text that a language model continues."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator

from sruserve.server.tasks.requests import Listed, explained

_MAX_TEXTS = 1024  # of messages and their parts: reading one on the event loop takes some µs
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_TYPES = ("input_text", "output_text", "text")
# Fields of items and parts that a client may repeat from an earlier reply; they add no text.
_ITEM_FIELDS = {"type", "role", "content", "id", "status"}
_PART_FIELDS = {"type", "text", "annotations", "logprobs"}


class TextPart(BaseModel):
    """A text of a message."""

    type: Literal["input_text", "output_text", "text"] = Field(description="All mean a text.")
    text: str = Field(description="The text.")


class InputMessage(BaseModel):
    """A message; its role adds no text."""

    type: Literal["message"] = Field("message", description="Always `message`.")
    role: Literal["user", "assistant", "system", "developer"] = Field(
        description="Who wrote it; adds no text."
    )
    content: str | Listed[TextPart] = Field(description="A text, or parts that are joined.")


def read_input(value: Any) -> str:
    """The text of a request's `input`: the messages in their order, one to a line.

    Raises an error that names the item or the part that is no text.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise explained(
            "'input' must be a text or a list of messages, such as "
            '{"role": "user", "content": "To be"}'
        )
    if len(value) + sum(map(_parts, value[:_MAX_TEXTS])) > _MAX_TEXTS:
        raise explained(
            f"'input' may have at most {_MAX_TEXTS} messages and parts: join their texts"
        )
    return "\n".join([_message_text(item, f"input[{i}]") for i, item in enumerate(value)])


def _parts(item: Any) -> int:
    """The number of parts of an item's content, if it is a list."""
    content = item.get("content") if isinstance(item, dict) else None
    return len(content) if isinstance(content, list) else 0


def _message_text(item: Any, place: str) -> str:
    _check(item, place, "message", ("message",), _ITEM_FIELDS)
    if item.get("role") not in _ROLES:
        raise explained(f"'{place}.role' must be one of {', '.join(_ROLES)}")
    content = item.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise explained(f"'{place}.content' must be a text or a list of parts")
    return "".join([_part_text(part, f"{place}.content[{i}]") for i, part in enumerate(content)])


def _part_text(part: Any, place: str) -> str:
    _check(part, place, None, _TEXT_TYPES, _PART_FIELDS)
    text = part.get("text")
    if not isinstance(text, str):
        raise explained(f"'{place}.text' must be a text")
    return text


def _check(
    value: Any, place: str, default: str | None, types: tuple[str, ...], fields: set[str]
) -> None:
    """Raise unless a value is an object of one of the types, with none but these fields."""
    if not isinstance(value, dict):
        raise explained(f"'{place}' must be an object of type {' or '.join(types)}")
    if (type_ := value.get("type", default)) not in types:
        raise explained(
            f"'{place}' has the type {str(type_)[:40]!r}, which language models here cannot read: "
            f"send {' or '.join(types)}"
        )
    if unknown := next((name for name in value if name not in fields), None):
        raise explained(f"'{place}' has the unknown field {unknown[:40]!r}: leave it out")


InputText = Annotated[
    str,
    PlainValidator(read_input, json_schema_input_type=str | Listed[InputMessage]),
    Field(
        description="A text, or messages, whose texts are joined: the parts of a message as they "
        "are, messages by line breaks. Roles add no text."
    ),
]
