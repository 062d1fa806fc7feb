"""The ways to a board: shells that stand for ssh and adb, and TCP with certificates."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.remote import agents
from tests.remote.agents import left_running

from weft.errors import InputError
from weft_remote import LinkError, connect
from weft_remote.connection import File
from weft_remote.relay import Relay

pytestmark = pytest.mark.needs("c")

X = np.arange(100, dtype=np.float32)
DOUBLE = File.of(b"double 0")


def doubles(url: str) -> None:
    with connect(url, silence=5) as board:
        assert np.array_equal(board.run_file(DOUBLE, [X]).arrays[0], 2 * X)


# -- ssh and adb: programs of these names that run the command in a shell here


@pytest.fixture
def shells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of `ssh` and `adb`; the board's home is `tmp_path/home`. Their arguments are noted."""
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    home.mkdir()
    script = (
        f'#!/bin/sh\necho "$0 $@" >> {tmp_path}/said\n'
        f'for word; do last="$word"; done\nexport HOME={home}\n'
        f'exec sh -c "$(echo "$last" | sed "s|/data/local/tmp|{home}/tmp|g")"\n'
    )
    for name in ("ssh", "adb"):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


def test_ssh_starts_the_agent_that_is_there(shells: Path) -> None:
    doubles(f"ssh://pi@board:2222{agents.double()}?store={shells}/store&lock={shells}/lock")
    said = (shells / "said").read_text()
    assert "-T -o BatchMode=yes" in said and "-p 2222 -- pi@board" in said
    with pytest.raises(LinkError) as caught:
        connect(f"ssh://board/no/such/agent?store={shells}/store")
    assert "ended with status 127" in str(caught.value) and "to ssh://board/no/such/agent" in str(caught.value)


@pytest.mark.parametrize("url", ["ssh://board", "adb:"])
def test_an_agent_is_brought_along_once(shells: Path, url: str) -> None:
    agent = agents.double()
    if url == "adb:":  # its folder is there on every device
        (shells / "home" / "tmp").mkdir()
    options = f"?agent={agent}&store={shells}/store&lock={shells}/lock"
    doubles(url + options)
    stored = list((shells / "home").rglob("weft-run-*"))
    assert len(stored) == 1 and stored[0].read_bytes() == agent.read_bytes()
    assert "cat >" in (shells / "said").read_text()
    (shells / "said").unlink()
    doubles(url + options)
    assert "cat >" not in (shells / "said").read_text()


def test_no_agent_for_the_board(shells: Path) -> None:
    (shells / "agents").mkdir()
    with pytest.raises(InputError, match=r"there is no agent '.*/weft-run'"):
        connect(f"ssh://board?agent={shells}/agents")


# -- TLS


def authority(folder: Path, name: str) -> None:
    """An authority, NAME.ca, and a certificate that it has signed, NAME.cert with NAME.key, for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    root, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey, root_of: bool) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named(f"{name} authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(root_of, None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .sign(root, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    (folder / f"{name}.ca").write_bytes(certificate(f"{name} authority", root, True))
    (folder / f"{name}.cert").write_bytes(certificate(name, own, False))
    (folder / f"{name}.key").write_bytes(
        own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def relay(folder: Path, most: int = 16) -> Relay:
    files = {"ca": folder / "good.ca", "cert": folder / "good.cert", "key": folder / "good.key"}
    return Relay(agents.board(folder / "store"), **files, most=most)


def url(folder: Path, port: int, name: str = "good", ca: str = "good") -> str:
    return f"tls://127.0.0.1:{port}?ca={folder}/{ca}.ca&cert={folder}/{name}.cert&key={folder}/{name}.key"


@pytest.mark.needs("cryptography")
def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    for name in ("good", "evil"):
        authority(tmp_path, name)
    with relay(tmp_path) as here:
        doubles(url(tmp_path, here.port))
        with connect(url(tmp_path, here.port), silence=5) as board:  # more than one record of TLS in both directions
            large = board.run_file(File.of(b"constant 5000000 " + os.urandom(2_000_000)), [])
            assert np.array_equal(large.arrays[0], (np.arange(5_000_000) % 251).astype(np.uint8))
        with pytest.raises(LinkError) as caught:
            connect(url(tmp_path, here.port, name="evil"))  # a certificate of another authority
        assert "is lost" in str(caught.value) or "fails" in str(caught.value)
        with pytest.raises(LinkError, match=r"TLS with 127\.0\.0\.1:.* fails"):
            connect(url(tmp_path, here.port, ca="evil"))  # the relay is not who it should be
        context = ssl.create_default_context(cafile=str(tmp_path / "good.ca"))
        with (
            pytest.raises((ssl.SSLError, ConnectionError)),  # no certificate
            socket.create_connection(("127.0.0.1", here.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(b"WEFT")
            if connection.recv(1) == b"":
                raise ConnectionError("it was closed")
        with socket.create_connection(("127.0.0.1", here.port), timeout=15) as plain:  # no TLS
            plain.sendall(b"WEFT" + bytes(100))
            heard = b"."
            try:
                while heard and b"protocol" not in heard:
                    heard = plain.recv(4096)
            except ConnectionError:
                heard = b""
            assert heard == b""
        doubles(url(tmp_path, here.port))
    assert left_running(tmp_path) == []


@pytest.mark.needs("cryptography")
def test_a_relay_that_ends_ends_its_agents(tmp_path: Path) -> None:
    authority(tmp_path, "good")
    here = relay(tmp_path, most=1)
    with connect(url(tmp_path, here.port), silence=5) as board:
        with pytest.raises(LinkError):
            doubles(url(tmp_path, here.port))  # more than it takes at once
        timer = threading.Timer(0.3, here.close)
        timer.start()
        with pytest.raises(LinkError):
            board.run_file(File.of(b"spin"), [])
        timer.join()
    assert left_running(tmp_path) == []


@pytest.mark.needs("cryptography")
def test_a_client_that_leaves_a_relay_ends_its_job(tmp_path: Path) -> None:
    authority(tmp_path, "good")
    with relay(tmp_path) as here:
        board = connect(url(tmp_path, here.port), silence=5)
        errors: list[LinkError] = []

        def spin() -> None:
            try:
                board.run_file(File.of(b"spin"), [])
            except LinkError as error:
                errors.append(error)

        thread = threading.Thread(target=spin)
        thread.start()
        time.sleep(0.3)
        board.close()
        thread.join()
        assert len(errors) == 1
        assert left_running(tmp_path) == []


def test_what_a_relay_cannot_use(tmp_path: Path) -> None:
    none = tmp_path / "none"
    with pytest.raises(InputError, match="a certificate or key cannot be read"):
        Relay("pipe:true", ca=none, cert=none, key=none)
    with pytest.raises(InputError, match="a certificate or key cannot be read"):
        connect(f"tls://127.0.0.1:1?ca={none}&cert={none}&key={none}")
