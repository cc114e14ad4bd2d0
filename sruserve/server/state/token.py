"""State tokens: a stream's `Snapshot`, sealed into a string that the client keeps.

A token is `header | AES-256-GCM(payload)` in URL-safe base64 without padding. The header (format
version, key id, salt, weights digest, dtype, tenant, expiry) is authenticated as associated data.
`KeyRing` derives key and nonce.
"""

import binascii
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from cryptography.exceptions import InvalidTag

from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import (
    StateExpired,
    StateTampered,
    StateTooLarge,
    StateUnknownKey,
    StateWrongModel,
    StateWrongTenant,
)
from sruserve.server.key_ring import ID_BYTES, SALT_BYTES, TAG_BYTES, KeyRing
from sruserve.server.state.codec import pack_snapshot, packed_bytes, unpack_snapshot

_VERSION = 2
# version, key id, salt, weights digest, dtype, tenant, expiry
_HEADER = struct.Struct("<B8s16s16sB16sQ")
_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
_TO_URL = bytes.maketrans(b"+/", b"-_")
# '+', '/' and '=' become '!', which strict base64 refuses, so each state has a single spelling
_FROM_URL = bytes.maketrans(b"-_+/=", b"+/!!!")


@dataclass(frozen=True, slots=True)
class Binding:
    """The model and the tenant of a token.

    digest: the first 16 bytes of the weights' SHA-256.
    dtype: the compute dtype.
    width: float32 values in a stream's row.
    tenant: 16 bytes that identify the API key's owner; zeros without keys.
    """

    digest: bytes
    dtype: str
    width: int
    tenant: bytes = bytes(16)

    @property
    def weights(self) -> str:
        """The weights that the states belong to, with their dtype, as a text for records."""
        return f"{self.digest.hex()}:{self.dtype}"

    @classmethod
    def of(cls, digest_hex: str, dtype: str, width: int, tenant: bytes = bytes(16)) -> Self:
        return cls(bytes.fromhex(digest_hex)[:16], dtype, width, tenant)


def claimed_binding(token: str) -> Binding:
    """What a token claims to be bound to, without a width; only `StateSealer.open` proves it.

    Raises `StateTampered`.
    """
    _, _, _, digest, dtype, tenant, _ = _claimed_header(token)
    names = {number: name for name, number in _DTYPES.items()}
    if dtype not in names:
        raise _no_token()
    return Binding(digest, names[dtype], 0, tenant)


def claimed_expiry(token: str) -> int | None:
    """When a token claims to expire, in seconds since 1970; None: never.

    Only `StateSealer.open` proves it. Raises `StateTampered`.
    """
    return int(_claimed_header(token)[-1]) or None


def _claimed_header(token: str) -> tuple[Any, ...]:
    try:
        start = token[: _HEADER.size * 4 // 3].encode("ascii").translate(_FROM_URL)
        return _HEADER.unpack(binascii.a2b_base64(start, strict_mode=True))
    except (UnicodeEncodeError, binascii.Error, struct.error):
        raise _no_token() from None


def _no_token() -> StateTampered:
    return StateTampered("the state is no token; send it as it was returned")


class StateSealer:
    """Seals snapshots into tokens and opens them.

    ttl_seconds: the life of a token; 0: unlimited.
    max_token_bytes: the longest token, in characters.
    clock: seconds since the epoch.
    """

    def __init__(
        self,
        keys: KeyRing,
        ttl_seconds: int,
        max_token_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._ttl_seconds = ttl_seconds
        self._max_token_bytes = max_token_bytes
        self.clock = clock

    def fits(self, packed_bytes: int) -> bool:
        """Whether a packed snapshot of this size fits into a token."""
        return (packed_bytes + _HEADER.size + TAG_BYTES) * 4 <= 3 * self._max_token_bytes

    def seal(self, snapshot: Snapshot, binding: Binding, *, never_expires: bool = False) -> str:
        """The token that continues `snapshot`; raises `StateTooLarge`.

        never_expires: the token has no expiry; for the server's own store.
        """
        self._check_fit(packed_bytes(snapshot))
        return self.seal_packed(pack_snapshot(snapshot), binding, never_expires=never_expires)

    def seal_packed(self, packed: bytes, binding: Binding, *, never_expires: bool = False) -> str:
        """The token of a packed state of any kind; raises `StateTooLarge`."""
        padding = self._check_fit(len(packed))
        seal = self._keys.new_seal()
        expires = self._ttl_seconds and not never_expires
        expiry = int(self.clock()) + self._ttl_seconds if expires else 0
        header = _HEADER.pack(
            _VERSION,
            seal.key_id,
            seal.salt,
            binding.digest,
            _DTYPES[binding.dtype],
            binding.tenant,
            expiry,
        )
        packed += bytes(padding)
        sealed = header + seal.encrypt(packed, header)
        return binascii.b2a_base64(sealed, newline=False).translate(_TO_URL).decode("ascii")

    def _check_fit(self, size: int) -> int:
        """The padding of a packed state of so many bytes; raises `StateTooLarge`."""
        # padding to groups of three bytes leaves no unused bits, which could be flipped unnoticed
        padding = -(_HEADER.size + size + TAG_BYTES) % 3
        if not self.fits(size + padding):
            raise StateTooLarge(
                f"the state would make a token of more than {self._max_token_bytes} bytes; leave "
                "out `return_state` or ask the operator to raise SRUSERVE_MAX_STATE_TOKEN_BYTES"
            )
        return padding

    def open(self, token: str, binding: Binding) -> Snapshot:
        """The snapshot in a token that is authentic and bound so; else raises `StateRefused`."""
        return unpack_snapshot(self.open_packed(token, binding), binding.width)

    def open_packed(self, token: str, binding: Binding) -> bytes:
        """What `seal_packed` has sealed, and up to two zero bytes; raises as `open`."""
        if len(token) > self._max_token_bytes:
            raise StateTooLarge(
                f"the state has {len(token)} bytes and may have {self._max_token_bytes} "
                "(SRUSERVE_MAX_STATE_TOKEN_BYTES); send it exactly as it was returned"
            )
        try:
            sealed = binascii.a2b_base64(
                token.encode("ascii").translate(_FROM_URL), strict_mode=True
            )
        except (UnicodeEncodeError, binascii.Error):
            raise StateTampered("the state is not base64; send it as it was returned") from None
        if len(sealed) < _HEADER.size + TAG_BYTES:
            raise StateTampered("the state is incomplete; send it exactly as it was returned")
        header = sealed[: _HEADER.size]
        version, key_id, salt, digest, dtype, tenant, expiry = _HEADER.unpack(header)
        if version != _VERSION:
            raise StateTampered(
                "the state has a format that this server does not know; start a new stream"
            )
        seal = self._keys.find_seal(key_id, salt)
        if seal is None:
            raise StateUnknownKey(
                "the state was sealed under a key that this server does not have; start a new "
                "stream, or ask the operator to set the same SRUSERVE_STATE_KEYS on every replica"
            )
        try:
            payload = seal.decrypt(sealed[_HEADER.size :], header)
        except InvalidTag:
            raise StateTampered(
                "the state was changed or cut; send it exactly as it was returned"
            ) from None
        if tenant != binding.tenant:
            raise StateWrongTenant(
                "the state was returned to another API key's owner; send it with that key"
            )
        if digest != binding.digest or dtype != _DTYPES[binding.dtype]:
            raise StateWrongModel(
                "the state belongs to another model, other weights or another dtype; "
                "send it to the model that returned it"
            )
        if expiry and self.clock() >= expiry:
            raise StateExpired("the state has expired; start a new stream")
        return payload


class Envelope:
    """Seals bytes for a shared store, so that only servers with the same keys can read them."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def seal(self, data: bytes, owner: bytes) -> bytes:
        """Key id, salt and ciphertext; `owner` is needed to open them."""
        seal = self._keys.new_seal()
        return seal.key_id + seal.salt + seal.encrypt(data, owner)

    def open(self, sealed: bytes, owner: bytes) -> bytes:
        """The bytes that were sealed for an owner; raises `StateUnknownKey` or `StateTampered`."""
        key_id, salted = sealed[:ID_BYTES], sealed[ID_BYTES:]
        seal = self._keys.find_seal(key_id, salted[:SALT_BYTES])
        if seal is None:
            raise StateUnknownKey("this was sealed under a key that this server does not have")
        try:
            return seal.decrypt(salted[SALT_BYTES:], owner)
        except InvalidTag:
            raise StateTampered("this was changed, or sealed for another owner") from None
