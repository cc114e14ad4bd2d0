"""What one request may ask for."""

from dataclasses import dataclass, field

from sruserve.server.budget import Budget
from sruserve.server.errors import Overloaded


@dataclass(frozen=True)
class InputLimits:
    """What the operator allows one request to hold, and how long it may wait.

    input_bytes: of one text; also its token ids, or steps of features.
    new_tokens: of all completions of the request together.
    reply_numbers: the numbers of one reply: of its tokens, steps, labels and states. While a reply
        is made, a number takes about 60 bytes of memory.
    unsent_numbers: the same for all replies of a worker that are not sent yet.
    replies: the budget of `unsent_numbers`. A tenant with an API key gets at most half of it.
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
    replies: Budget = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        replies = Budget(self.unsent_numbers, _unsent, share=self.unsent_numbers // 2)
        object.__setattr__(self, "replies", replies)


def _unsent() -> Overloaded:
    return Overloaded(
        "too many replies wait for their clients (limit: SRUSERVE_MAX_QUEUE_BYTES); retry later or "
        "ask for less at a time"
    )
