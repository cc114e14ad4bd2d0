"""`/v1/completions`, as OpenAI's protocol and sruserve's own share it."""

from collections.abc import Mapping
from typing import Any

from sruserve.check.protocols.fields import field, objects
from sruserve.check.results import Result, Values, flatten
from sruserve.check.transport import Ready, Transport

PATH = "/v1/completions"
_PER_STEP = frozenset({"text", "logprobs", "token_ids"})


def complete(
    server: Transport, body: Mapping[str, Any], ready: Ready | None = None
) -> dict[str, Any]:
    """The only choice of a completion."""
    (choice,) = objects(server.post(PATH, body, ready), "choices", 1)
    return choice


def complete_all(server: Transport, body: Mapping[str, Any], count: int) -> list[Result]:
    """The choices of several prompts, in the order of the prompts."""
    choices = objects(server.post(PATH, body), "choices", count)
    return [result_of(choice) for choice in sorted(choices, key=lambda c: field(c, "index", int))]


def streamed(server: Transport, body: Mapping[str, Any], ready: Ready | None = None) -> Result:
    """The text of a completion that arrives as events."""
    texts: list[str] = []
    ids: list[Any] = []
    finish: Any = None
    for event in server.events(PATH, {**body, "stream": True}, ready):
        for choice in objects(event, "choices"):
            texts.append(field(choice, "text", str))
            ids += flatten(choice.get("token_ids") or [])
            finish = choice.get("finish_reason") or finish
    whole = {"text": "".join(texts), "finish_reason": finish, "token_ids": ids}
    return text_alone(result_of(whole))


def text_alone(result: Result) -> Result:
    """What a streamed completion can be compared with."""
    return Result({name: part for name, part in result.parts.items() if name != "logprobs"})


def result_of(choice: Mapping[str, Any]) -> Result:
    """A choice as plain values: its text, why it ended, and its log probabilities, if any."""
    parts: dict[str, Values] = {
        "text": tuple(field(choice, "text", str)),
        "finish_reason": flatten(choice.get("finish_reason")),
    }
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        parts["logprobs"] = flatten(logprobs.get("token_logprobs", []))
    if choice.get("token_ids"):
        parts["token_ids"] = flatten(choice["token_ids"])
    return Result(parts, _PER_STEP & parts.keys())
