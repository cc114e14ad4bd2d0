"""What one request may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class InputLimits:
    """What the operator allows one request to hold, and how long it may wait.

    input_bytes: of one text; also its token ids, or steps of features.
    new_tokens: of all completions of the request together.
    reply_numbers: of what one reply says of steps, labels and states.
    unsent_numbers: of the same in all replies of a route that are not yet sent.
    queue_bytes: of the bodies that wait.
    queue_seconds: 0 is no limit.
    """

    body_bytes: int
    input_bytes: int
    inputs: int
    new_tokens: int
    reply_numbers: int
    unsent_numbers: int
    queue_bytes: int
    queue_seconds: float
