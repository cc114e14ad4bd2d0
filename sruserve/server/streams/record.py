"""What Redis has of a stream: sealed, so that nobody else can read it, or put another in its place.

The head tells the digests of the reply and of each state. So whoever can write to Redis can undo
the last changes of a stream, as an old backup does, and change nothing else unseen.
"""

from hashlib import sha256

from pydantic import BaseModel, ConfigDict

from sruserve.server.errors import StateRefused, StateTampered, StateUnknownKey
from sruserve.server.state_token import Envelope
from sruserve.server.streams.held import Held
from sruserve.server.streams.notices import Notice
from sruserve.server.tenants import Tenant

Marks = dict[int, str]
"""The digest of each state of a stream, by its step; empty: nothing was read yet."""


class Records:
    """Seals and opens the records of streams."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._changed, self._unknown = Notice(), Notice()

    def seal(self, held: Held, marks: Marks) -> dict[str, bytes]:
        """The fields that tell of a stream, but its states, of which there are marks."""
        owner = _owner(held.tenant, held.id)
        reply = self._envelope.seal(held.reply, owner) if held.reply else b""
        head = _Head(
            model=held.model,
            seed=held.seed,
            idle_seconds=held.idle_seconds,
            created=held.created,
            step=held.step,
            content=held.content.hex(),
            ended=held.ended,
            states={step: marks.get(step, "") for step in held.checkpoints},
            reply=mark(reply),
        )
        sealed = self._envelope.seal(head.model_dump_json().encode(), owner)
        return {"head": sealed, "reply": reply, "ended": b"%d" % held.ended}

    def open(self, tenant: Tenant, stream_id: str, head: bytes) -> tuple[Held, Marks, str]:
        """The stream of a head, but its reply, of which there is a mark.

        Raises `StateTampered` or `StateUnknownKey`.
        """
        owner = _owner(tenant, stream_id)
        try:
            known = _Head.model_validate_json(self._envelope.open(head, owner))
        except StateUnknownKey:
            self._unknown.tell("a stream in Redis was sealed under none of SRUSERVE_STATE_KEYS")
            raise StateUnknownKey(
                "the stream was sealed under a key that this server does not have: create another "
                "one, or ask the operator to set the same SRUSERVE_STATE_KEYS on every replica"
            ) from None
        except (ValueError, StateRefused):
            raise self.tampered() from None
        held = Held(
            id=stream_id,
            tenant=tenant,
            model=known.model,
            seed=known.seed,
            idle_seconds=known.idle_seconds,
            created=known.created,
            step=known.step,
            content=bytes.fromhex(known.content),
            ended=known.ended,
            checkpoints=tuple(known.states),
        )
        return held, known.states, known.reply

    def open_reply(self, held: Held, sealed: bytes, marked: str) -> bytes:
        """The reply to a stream's last step; raises `StateTampered` for any but the marked one."""
        if mark(sealed) != marked:
            raise self.tampered()
        return self._envelope.open(sealed, _owner(held.tenant, held.id)) if sealed else b""

    def tampered(self) -> StateTampered:
        """The error of a record that is not what was written."""
        self._changed.tell(
            "a stream in Redis was changed there, or is of another version of this server"
        )
        return StateTampered(
            "the stream was changed in the store, or is of another version of this server: create "
            "another one"
        )


def mark(sealed: bytes) -> str:
    """The digest of what is sealed; empty if there is nothing."""
    return sha256(sealed).hexdigest() if sealed else ""


class _Head(BaseModel):
    """What is known of a stream, as Redis has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    seed: int
    idle_seconds: int
    created: int
    step: int
    content: str
    ended: bool
    states: Marks
    reply: str


def _owner(tenant: Tenant, stream_id: str) -> bytes:
    return tenant.id + stream_id.encode()
