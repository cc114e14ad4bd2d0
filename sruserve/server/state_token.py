"""State tokens: a stream's `Snapshot`, sealed into a string that the client keeps.

A token is `header | AES-256-GCM(payload)` in URL-safe base64 without padding. The header (format
version, key id, salt, weights digest, dtype, tenant, expiry) is authenticated as associated data.
Key and nonce are derived for each token by HKDF-SHA256 from a master key and the token's random
salt, so the number of tokens under one master key is not bounded by a nonce's 96 bits.
"""

import binascii
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sruserve.server.engine.jobs import Snapshot
from sruserve.server.errors import (
    StateExpired,
    StateTampered,
    StateTooLarge,
    StateUnknownKey,
    StateWrongModel,
    StateWrongTenant,
)
from sruserve.server.snapshot_bytes import pack_snapshot, unpack_snapshot

KEY_BYTES = 32
_ID_BYTES, _SALT_BYTES = 8, 16
_VERSION = 2
_TAG_BYTES = 16
# version, key id, salt, weights digest, dtype, tenant, expiry
_HEADER = struct.Struct("<B8s16s16sB16sQ")
_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
_TO_URL = bytes.maketrans(b"+/", b"-_")
# '+', '/' and '=' become '!', which strict base64 refuses: one state has one spelling
_FROM_URL = bytes.maketrans(b"-_+/=", b"+/!!!")


@dataclass(frozen=True, slots=True)
class Binding:
    """What a token belongs to.

    digest: the first 16 bytes of the weights' SHA-256.
    dtype: the compute dtype.
    width: float32 values in a stream's row.
    tenant: 16 bytes: whose API key it was returned to; zeros where there are no keys.
    """

    digest: bytes
    dtype: str
    width: int
    tenant: bytes = bytes(16)

    @classmethod
    def of(cls, digest_hex: str, dtype: str, width: int, tenant: bytes = bytes(16)) -> Self:
        return cls(bytes.fromhex(digest_hex)[:16], dtype, width, tenant)


class StateSealer:
    """Seals snapshots under the first of its keys and opens tokens of any of them: key rotation.

    keys: 32 bytes each.
    ttl_seconds: how long a token may be used; 0 is for ever.
    max_token_bytes: the longest token, in characters.
    clock: seconds since the epoch.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        ttl_seconds: int,
        max_token_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"state keys have {KEY_BYTES} bytes each, and there is at least one")
        self._keys = {_key_id(key): key for key in keys}
        self._sealing_id = next(iter(self._keys))
        self._ttl_seconds = ttl_seconds
        self._max_token_bytes = max_token_bytes
        self._clock = clock

    def fits(self, packed_bytes: int) -> bool:
        """Whether a packed snapshot of that size can be in a token."""
        return (packed_bytes + _HEADER.size + _TAG_BYTES) * 4 <= 3 * self._max_token_bytes

    def seal(self, snapshot: Snapshot, binding: Binding, *, for_ever: bool = False) -> str:
        """The token that continues `snapshot`; raises `StateTooLarge`.

        for_ever: it does not expire; for what the server itself looks after.
        """
        payload = pack_snapshot(snapshot)
        # whole groups of three bytes leave no unused bits at the end, which could be flipped unseen
        payload += bytes(-(_HEADER.size + len(payload) + _TAG_BYTES) % 3)
        if not self.fits(len(payload)):
            raise StateTooLarge(
                f"the state would make a token of more than {self._max_token_bytes} bytes; leave "
                "out `return_state` or ask the operator to raise SRUSERVE_MAX_TOKEN_BYTES"
            )
        salt = os.urandom(_SALT_BYTES)
        expires = self._ttl_seconds and not for_ever
        expiry = int(self._clock()) + self._ttl_seconds if expires else 0
        header = _HEADER.pack(
            _VERSION,
            self._sealing_id,
            salt,
            binding.digest,
            _DTYPES[binding.dtype],
            binding.tenant,
            expiry,
        )
        cipher, nonce = _cipher(self._keys[self._sealing_id], salt)
        sealed = header + cipher.encrypt(nonce, payload, header)
        return binascii.b2a_base64(sealed, newline=False).translate(_TO_URL).decode("ascii")

    def open(self, token: str, binding: Binding) -> Snapshot:
        """The snapshot that a token holds, if it is authentic, of this model and not expired."""
        if len(token) > self._max_token_bytes:
            raise StateTooLarge(
                f"the state has {len(token)} bytes and may have {self._max_token_bytes} "
                "(SRUSERVE_MAX_TOKEN_BYTES); send it exactly as it was returned"
            )
        try:
            sealed = binascii.a2b_base64(
                token.encode("ascii").translate(_FROM_URL), strict_mode=True
            )
        except (UnicodeEncodeError, binascii.Error):
            raise StateTampered("the state is not base64; send it as it was returned") from None
        if len(sealed) < _HEADER.size + _TAG_BYTES:
            raise StateTampered("the state is incomplete; send it exactly as it was returned")
        header = sealed[: _HEADER.size]
        version, key_id, salt, digest, dtype, tenant, expiry = _HEADER.unpack(header)
        if version != _VERSION:
            raise StateTampered("the state has a format that this server does not know; start anew")
        if key_id not in self._keys:
            raise StateUnknownKey(
                "the state was sealed under a key that this server does not have; start anew, or "
                "ask the operator to set the same SRUSERVE_STATE_KEYS on every replica"
            )
        cipher, nonce = _cipher(self._keys[key_id], salt)
        try:
            payload = cipher.decrypt(nonce, sealed[_HEADER.size :], header)
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
        if expiry and self._clock() >= expiry:
            raise StateExpired("the state has expired; start the stream anew")
        return unpack_snapshot(payload, binding.width)


class Envelope:
    """Bytes that only servers with the same keys can read, in a store that others may see."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_key_id(key): key for key in keys}
        self._sealing_id = next(iter(self._keys))

    def seal(self, data: bytes, owner: bytes) -> bytes:
        """Key id, salt and ciphertext; `owner` has to be named to open them."""
        salt = os.urandom(_SALT_BYTES)
        cipher, nonce = _cipher(self._keys[self._sealing_id], salt)
        return self._sealing_id + salt + cipher.encrypt(nonce, data, owner)

    def open(self, sealed: bytes, owner: bytes) -> bytes:
        """What was sealed for an owner; raises `StateUnknownKey` or `StateTampered`."""
        key_id, rest = sealed[:_ID_BYTES], sealed[_ID_BYTES:]
        if key_id not in self._keys:
            raise StateUnknownKey("this was sealed under a key that this server does not have")
        cipher, nonce = _cipher(self._keys[key_id], rest[:_SALT_BYTES])
        try:
            return cipher.decrypt(nonce, rest[_SALT_BYTES:], owner)
        except InvalidTag:
            raise StateTampered("this was changed, or sealed for another owner") from None


def _key_id(key: bytes) -> bytes:
    return _derive(key, b"", b"sruserve key id", _ID_BYTES)


def _derive(key: bytes, salt: bytes, purpose: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, purpose).derive(key)


def _cipher(master: bytes, salt: bytes) -> tuple[AESGCM, bytes]:
    """The cipher and the nonce of the one token that has this salt."""
    material = _derive(master, salt, b"sruserve state token", KEY_BYTES + 12)
    return AESGCM(material[:KEY_BYTES]), material[KEY_BYTES:]
