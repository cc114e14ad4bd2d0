"""The operator's keys, under which states and records outside the server are sealed.

For each seal, key and nonce are derived by HKDF-SHA256 from a master key and a random salt.
So the 96 bits of a nonce do not bound the number of seals under one master key.
"""

import base64
import binascii
import os
from collections.abc import Sequence
from typing import Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
ID_BYTES, SALT_BYTES, TAG_BYTES = 8, 16, 16
_NONCE_BYTES = 12
# The purposes of derived keys. All seals use the second one, which is named after tokens.
_FOR_ID, _FOR_SEAL = b"sruserve key id", b"sruserve state token"


class Seal:
    """AES-256-GCM under a key and nonce that are used once.

    key_id, salt: identify both; `KeyRing.find_seal` needs them.
    """

    __slots__ = ("_cipher", "_nonce", "key_id", "salt")

    def __init__(self, master: bytes, key_id: bytes, salt: bytes) -> None:
        material = _derive(master, salt, _FOR_SEAL, KEY_BYTES + _NONCE_BYTES)
        self.key_id, self.salt = key_id, salt
        self._cipher, self._nonce = AESGCM(material[:KEY_BYTES]), material[KEY_BYTES:]

    def encrypt(self, data: bytes, associated: bytes) -> bytes:
        """The ciphertext and its tag; `decrypt` needs the same `associated`."""
        return self._cipher.encrypt(self._nonce, data, associated)

    def decrypt(self, sealed: bytes, associated: bytes) -> bytes:
        """The plaintext; raises `cryptography.exceptions.InvalidTag`."""
        return self._cipher.decrypt(self._nonce, sealed, associated)


class KeyRing:
    """Seals under its first key and opens seals of all of its keys, which allows key rotation.

    keys: 32 bytes each.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"state keys have {KEY_BYTES} bytes each, and there is at least one")
        self._keys = {_derive(key, b"", _FOR_ID, ID_BYTES): key for key in keys}
        self._current = next(iter(self._keys))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Keys in base64 or hex with commas between them; raises `ValueError` without any key."""
        return cls([_parse_key(part.strip(), i) for i, part in enumerate(text.split(","), 1)])

    @staticmethod
    def random_key() -> str:
        """A random key in the format of `parse`."""
        return base64.b64encode(os.urandom(KEY_BYTES)).decode()

    def new_seal(self) -> Seal:
        """A new seal under the current key."""
        return Seal(self._keys[self._current], self._current, os.urandom(SALT_BYTES))

    def find_seal(self, key_id: bytes, salt: bytes) -> Seal | None:
        """The seal of a key and a salt; None: the ring does not have the key."""
        key = self._keys.get(key_id)
        return None if key is None else Seal(key, key_id, salt)


def _derive(key: bytes, salt: bytes, purpose: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, purpose).derive(key)


def _parse_key(text: str, number: int) -> bytes:
    try:
        if len(text) == 2 * KEY_BYTES:
            return bytes.fromhex(text)
        padded = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
        key = base64.b64decode(padded, validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"key {number} {'must be' if text else 'is empty: it must be'} {KEY_BYTES} bytes in "
            "base64 or hex; `openssl rand -base64 32` makes one"
        )
    return key
