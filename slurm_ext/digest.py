"""SHA-256 without what `hashlib` brings along: it loads OpenSSL, which costs a hook more than all it hashes."""

from __future__ import annotations


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 of some bytes as 64 hex digits. Not for secrets: nothing here is constant in time.

    The interpreter's own code is taken as `random` takes it (`_sha2` since 3.12, `_sha256` before); where a build has
    left it out, as one for FIPS may, there is hashlib.
    """
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found]
        except ImportError:
            from hashlib import sha256
    return str(sha256(content).hexdigest())
