"""API keys of tests."""

ACME, OTHER = "acme-key-123", "other-key-123"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
