"""Detached signatures of packages: ed25519 over a hash of the whole file, in a file beside it.

The `cryptography` package does it (pip install flashover[sign]).
"""

from __future__ import annotations

import hashlib
import os
from typing import IO, Any

from flashover import exc

SUFFIX = ".sig"
_WHAT = b"flashover package, ed25519 over sha512\n"  # a signature of anything else is none of a package


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise exc.UserError("signatures need the package cryptography: pip install flashover[sign]") from error
    return ed25519


def _key(pem: bytes | str | os.PathLike[str], private: bool) -> Any:
    """A key, or the PEM file that it is in."""
    ed25519 = _ed25519()
    from cryptography.hazmat.primitives import serialization

    if not isinstance(pem, bytes):
        with open(pem, "rb") as file:
            pem = file.read()
    try:
        key = serialization.load_pem_private_key(pem, None) if private else serialization.load_pem_public_key(pem)
    except (ValueError, TypeError) as error:
        raise exc.UserError(f"no {'private' if private else 'public'} key in PEM: {error}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey):
        raise exc.UserError("the key is none of ed25519: openssl genpkey -algorithm ed25519 makes one")
    return key


def _message(file: IO[bytes]) -> bytes:
    return _WHAT + hashlib.file_digest(file, "sha512").digest()


def sign_package(path: str | os.PathLike[str], private_key: bytes | str | os.PathLike[str]) -> str:
    """Writes the signature of a package beside it (PATH.sig), and says where. private_key: PEM, or a file with it."""
    key = _key(private_key, private=True)
    with open(path, "rb") as file:
        signature = key.sign(_message(file))
    beside = os.fspath(path) + SUFFIX
    with open(beside, "wb") as out:
        out.write(signature)
    return beside


def check_signature(
    file: IO[bytes], signature: str | os.PathLike[str], public_key: bytes | str | os.PathLike[str]
) -> None:
    """Raises exc.UserError where the file is not what the key signed."""
    key = _key(public_key, private=False)
    from cryptography.exceptions import InvalidSignature

    try:
        with open(signature, "rb") as beside:
            signed = beside.read(65)  # one byte more than there may be
    except FileNotFoundError as error:
        raise exc.UserError(f"the package is not signed: there is no {os.fspath(signature)}") from error
    try:
        key.verify(signed, _message(file))
    except InvalidSignature as error:
        raise exc.UserError("the package is not what its signer signed: wrong signature") from error
