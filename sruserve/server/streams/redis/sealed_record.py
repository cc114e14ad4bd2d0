"""The sealed record of a stream in Redis, which nobody else can read or exchange for another.

The head holds the digests of the reply and of each state. So a writer to Redis can only restore an
earlier record of a stream, as an old backup does. All other changes are detected.
"""

from hashlib import sha256

from pydantic import BaseModel, ConfigDict

from sruserve.server.auth import Tenant
from sruserve.server.errors import StateRefused, StateTampered, StateUnknownKey
from sruserve.server.json_output import json_bytes
from sruserve.server.state.token import Envelope
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.redis.notices import Notice

StateDigests = dict[int, str]
"""The digest of each state of a stream, by its step; empty: nothing was read yet."""


class RecordCodec:
    """Seals and opens the records of streams."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._tampered_notice, self._unknown_key_notice = Notice(), Notice()

    def seal(self, record: StreamRecord, digests: StateDigests) -> dict[str, bytes]:
        """The fields of a stream, without its states.

        digests: of its states.
        """
        owner = _owner(record.tenant, record.id)
        reply = self._envelope.seal(record.reply, owner) if record.reply else b""
        head = _Head(
            model=record.model,
            seed=record.seed,
            idle_seconds=record.idle_seconds,
            created=record.created,
            step=record.step,
            content=record.content.hex(),
            ended=record.ended,
            states={step: digests.get(step, "") for step in record.checkpoints},
            reply=digest(reply),
            weights=record.weights,
        )
        sealed = self._envelope.seal(json_bytes(vars(head)), owner)
        return {"head": sealed, "reply": reply, "ended": b"%d" % record.ended}

    def open(
        self, tenant: Tenant, stream_id: str, head: bytes, expires_at: float
    ) -> tuple[StreamRecord, StateDigests, str]:
        """The stream of a head, the digests of its states, and the digest of its reply.

        Raises `StateTampered` or `StateUnknownKey`.
        """
        owner = _owner(tenant, stream_id)
        try:
            fields = _Head.model_validate_json(self._envelope.open(head, owner))
        except StateUnknownKey:
            self._unknown_key_notice.log(
                "a stream in Redis was sealed under none of SRUSERVE_STATE_KEYS"
            )
            raise StateUnknownKey(
                "the stream was sealed under a key that this server does not have: create another "
                "one, or ask the operator to set the same SRUSERVE_STATE_KEYS on every replica"
            ) from None
        except (ValueError, StateRefused):
            raise self.tampered() from None
        record = StreamRecord(
            id=stream_id,
            tenant=tenant,
            model=fields.model,
            seed=fields.seed,
            idle_seconds=fields.idle_seconds,
            created=fields.created,
            expires_at=expires_at,
            step=fields.step,
            content=bytes.fromhex(fields.content),
            ended=fields.ended,
            checkpoints=tuple(fields.states),
            weights=fields.weights,
        )
        return record, fields.states, fields.reply

    def open_reply(self, record: StreamRecord, sealed: bytes, expected_digest: str) -> bytes:
        """The reply to a stream's last step; raises `StateTampered` if its digest is another."""
        if digest(sealed) != expected_digest:
            raise self.tampered()
        return self._envelope.open(sealed, _owner(record.tenant, record.id)) if sealed else b""

    def tampered(self) -> StateTampered:
        """The error of a record that differs from what a server wrote."""
        self._tampered_notice.log(
            "a stream in Redis was changed there, or another version of this server wrote it"
        )
        return StateTampered(
            "the stream was changed in the store, or another version of this server wrote it: "
            "create another one"
        )


def digest(sealed: bytes) -> str:
    """The hexadecimal SHA-256 of sealed bytes; empty for none."""
    return sha256(sealed).hexdigest() if sealed else ""


class _Head(BaseModel):
    """A stream as its record in Redis describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    seed: int
    idle_seconds: int
    created: int
    step: int
    content: str
    ended: bool
    states: StateDigests
    reply: str
    weights: str = ""  # missing in a record of a server that served one version at a time


def _owner(tenant: Tenant, stream_id: str) -> bytes:
    return tenant.id + stream_id.encode()
