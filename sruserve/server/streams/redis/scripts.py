"""The Lua scripts that Redis runs: each reads or changes one stream, whole or not at all.

A script is the file of its name after `stream.lua` and `usage.lua`. Those three files, and the
constants of `Status` before them, are one text for Redis.
"""

from enum import IntEnum
from pathlib import Path
from typing import Final


class Status(IntEnum):
    """What scripts return. A total of bytes, which is 0 or more, refuses `ADD` or `COMMIT`.

    `TAKE` and `READ` return a text if they found the stream.
    """

    UNKNOWN = 0
    EXPIRED = 1
    BUSY = 2
    CHANGED = -1
    EXISTS = -2
    LEASE_LOST = -3


def _script(name: str) -> str:
    constants = "".join(f"local {status.name} = {status.value}\n" for status in Status)
    return constants + "\n".join(map(_text, ("stream", "usage", name)))


def _text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.lua").read_text(encoding="utf-8")


TAKE: Final = _script("take")
READ: Final = _script("read")
READ_FIELD: Final = _script("read_field")
RENEW: Final = _script("renew")
ADD: Final = _script("add")
COMMIT: Final = _script("commit")
RELEASE: Final = _script("release")
DELETE: Final = _script("delete")
ALL: Final = (TAKE, READ, READ_FIELD, RENEW, ADD, COMMIT, RELEASE, DELETE)
