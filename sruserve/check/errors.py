"""Reasons for which an examination, or one check of it, cannot continue.

CheckError
├── Misuse          an option, a file or the chosen model does not fit
├── Unreachable     there is no connection, or its certificate is not trusted
├── NoAnswer        the server closed, was silent, sent too much or no valid reply
├── Refused         the server answered with an error status
└── NotApplicable   the protocol, server or model does not have what a check needs
"""

from sruserve.model.errors import printable

_MAX_MESSAGE = 2000
_MAX_DETAIL = 300  # by a server


class CheckError(Exception):
    """One line that says what was wrong and what to do."""

    code = "check_error"

    def __init__(self, message: str) -> None:
        super().__init__(printable(message[:_MAX_MESSAGE]))


class Misuse(CheckError):
    code = "misuse"


class Unreachable(CheckError):
    code = "unreachable"


class NoAnswer(CheckError):
    code = "no_answer"


class Refused(CheckError):
    """status: of HTTP. message: the server's own, cut. server_code: its own name of the error."""

    code = "refused"

    def __init__(self, status: int, message: str, request: str, server_code: str = "") -> None:
        detail = f": {message[:_MAX_DETAIL]}" if message else ""
        hint = ""
        if status in (401, 403):
            hint = "; set SRUSERVE_CHECK_API_KEY to a key of this server"
        elif status in (413, 422):
            hint = ". If a text does not fit the model, name a file of texts that do with --inputs"
        super().__init__(f"the server refused {request} with {status}{detail}{hint}")
        self.status, self.server_code = status, server_code


class NotApplicable(CheckError):
    code = "not_applicable"
