"""The id of a response: `resp_` and the state token after its text, or a number without a state."""

from sruserve.server.tasks.requests import explained

PREFIX = "resp_"
_SHORTEST_TOKEN = 64  # characters; the header of a token alone is longer, and numbers are shorter


def response_id(state: str | None, number: str) -> str:
    """The id of a response with the token of its end state, or else with the request's number."""
    return PREFIX + (number if state is None else state)


def state_in(response_id: str) -> str:
    """The token in an id; only opening it proves it. Raises for ids without a state."""
    token = response_id.removeprefix(PREFIX)
    if token == response_id:
        raise explained(
            f"'previous_response_id' must be the id of a response, which begins with {PREFIX}"
        )
    if len(token) < _SHORTEST_TOKEN:
        raise explained(
            "'previous_response_id' has no state to continue: it is the id of a response with "
            '"store": false, or of the first events of a stream; the last event, '
            "response.completed, has the id that continues (with `stable_id`, as `state_id`)"
        )
    return token
