"""Which certificates are too weak to be trusted: OpenSSL refuses them by default, BoringSSL not."""

from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import MD5, SHA1

_MIN_RSA_BITS, _MIN_EC_BITS = 2048, 224


def has_weak_key(certificate: x509.Certificate) -> bool:
    """Whether a certificate's key is too short."""
    key = certificate.public_key()
    if isinstance(key, RSAPublicKey):
        return key.key_size < _MIN_RSA_BITS
    return isinstance(key, EllipticCurvePublicKey) and key.key_size < _MIN_EC_BITS


@lru_cache(256)
def is_weak(pem: bytes) -> bool:
    """Whether a client's certificate has a key or a signature that is too weak."""
    certificate = x509.load_pem_x509_certificate(pem)
    try:
        digest = certificate.signature_hash_algorithm
    except UnsupportedAlgorithm:
        return True
    return has_weak_key(certificate) or isinstance(digest, MD5 | SHA1)
