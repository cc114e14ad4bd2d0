"""Choices of completions free what they are made of, a few objects at a time."""

from typing import Any

from sruserve.server.tasks.choices import free, free_choices


def test_a_list_is_emptied_a_thousand_values_at_a_time() -> None:
    left = list[int]()

    class Last:
        def __del__(self) -> None:
            left.append(len(values))

    values: list[Any] = [*range(3000), Last()]
    free(values)
    assert values == []
    assert left == [3001 - 1024]


def test_encoded_choices_are_emptied() -> None:
    tokens, logprobs = ["a"] * 2000, [0.0] * 2000
    choices: list[dict[str, Any]] = [
        {"logprobs": {"tokens": tokens, "token_logprobs": logprobs}},
        {"logprobs": None},
    ]
    free_choices(choices)
    assert [len(values) for values in (tokens, logprobs, choices)] == [0, 0, 0]
