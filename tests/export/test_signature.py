"""Signatures of packages: what was signed loads; what was changed, or signed by others, is refused first."""

import subprocess
from pathlib import Path

import pytest
import torch
from interpreters import python

import flashover
from flashover import exc

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
from cryptography.hazmat.primitives import serialization as pem  # noqa: E402


def keys():
    private = ed25519.Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    return private.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()), public


@pytest.fixture
def signed(tmp_path):
    path = tmp_path / "p.flash"
    flashover.package(flashover.export(torch.nn.Linear(4, 3), (torch.ones(2, 4),)), path)
    private, public = keys()
    assert flashover.sign_package(path, private) == f"{path}.sig"
    return path, public


def test_what_was_signed_loads(signed):
    path, public = signed
    (path.parent / "public.pem").write_bytes(public)
    x = torch.ones(2, 4)
    for key in (public, path.parent / "public.pem"):
        assert torch.equal(flashover.load(path, signed_by=key)(x), flashover.load(path)(x))


def test_a_byte_changed_anywhere_is_seen_before_anything_is_read(signed):
    path, public = signed
    whole = path.read_bytes()
    for at in (0, 40, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(exc.UserError, match="wrong signature"):
            flashover.load(path, signed_by=public)
    for other in (whole[:-1], whole + b"\0", b""):
        path.write_bytes(other)
        with pytest.raises(exc.UserError, match="wrong signature"):
            flashover.load(path, signed_by=public)


def test_signatures_that_are_none(signed):
    path, public = signed
    beside = path.parent / "p.flash.sig"
    good = beside.read_bytes()
    for bad in (b"", good[:-1], good + b"\0", bytes(64), good[:-1] + bytes([good[-1] ^ 1])):
        beside.write_bytes(bad)
        with pytest.raises(exc.UserError, match="wrong signature"):
            flashover.load(path, signed_by=public)
    beside.unlink()
    with pytest.raises(exc.UserError, match="not signed"):
        flashover.load(path, signed_by=public)


def test_other_keys(signed):
    path, public = signed
    private, other = keys()
    with pytest.raises(exc.UserError, match="wrong signature"):
        flashover.load(path, signed_by=other)
    for no_key in (b"", b"-----BEGIN PUBLIC KEY-----\n", private):
        with pytest.raises(exc.UserError, match="no public key"):
            flashover.load(path, signed_by=no_key)
    with pytest.raises(exc.UserError, match="no private key"):
        flashover.sign_package(path, public)


def test_the_command_line(signed):
    path, _ = signed
    private, other = keys()
    for name, key in (("key", private), ("public", other)):
        (path.parent / f"{name}.pem").write_bytes(key)

    def run(command, key):
        return python("-m", "flashover", command, path, "--key", path.parent / f"{key}.pem")

    refused = run("check", "public")
    assert refused.returncode == 1 and "wrong signature" in refused.stderr
    assert run("sign", "key").stdout == f"{path}.sig\n"
    assert run("check", "public").returncode == 0


RUNTIME = Path(flashover.__file__).parent / "runtime" / "bin"


@pytest.mark.parametrize("runner", ["flashover-run", "flashover-run-bare"])
def test_the_runtimes_without_python_look_at_signatures_first(runner, signed):
    if not (RUNTIME / runner).exists():
        pytest.skip(f"{runner} is not built: ./x build")
    path, public = signed
    private, other = keys()
    for name, key in (("public", public), ("other", other), ("private", private), ("none", b"")):
        (path.parent / f"{name}.pem").write_bytes(key)

    def run(key):
        words = [str(RUNTIME / runner), str(path), "--signed-by", key]
        return subprocess.run(words, capture_output=True, text=True, timeout=100)

    def refused(key, why):
        done = run(key)
        return done.returncode == 1 and why in done.stderr

    good, public_key = path.read_bytes(), str(path.parent / "public.pem")
    assert run(public_key).returncode == 0
    assert run(public.decode()).returncode == 0
    assert refused(str(path.parent / "other.pem"), "wrong signature")
    for name in ("private", "none"):
        assert refused(str(path.parent / f"{name}.pem"), "no public key")
    assert refused("", "a public key is needed")
    assert refused(str(path.parent / "absent.pem"), "cannot open")
    for at in (0, len(good) // 2, len(good) - 1):
        changed = bytearray(good)
        changed[at] ^= 1
        path.write_bytes(changed)
        assert refused(public_key, "wrong signature")
    path.write_bytes(b"no package")  # the signature comes first
    assert refused(public_key, "wrong signature")
    path.write_bytes(good)
    beside = path.parent / "p.flash.sig"
    beside.write_bytes(beside.read_bytes() + b"\0")
    assert refused(public_key, "wrong signature")
    beside.unlink()
    assert refused(public_key, "not signed")
