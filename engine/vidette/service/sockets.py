"""What both servers have in common: the socket they serve on, their bounds, and TLS."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path

from vidette.errors import UsageError

HEAD_BYTES = 64 * 1024
"""Longest request line and headers together, give or take what one read brings."""
CONNECTION_BYTES = 128 * 1024
"""What the kernel is asked to take for a client that does not read; it takes twice as much, counting its own
records. Left to itself, it takes up to 4 MiB: nothing of ours, but of the machine's."""
CLOSING_SECONDS = 2
"""How long connections have to take what was sent to them, once the server has stopped."""
BACKLOG = 2048
"""Connections that the kernel makes ahead of the server."""


def bind(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """Return a socket that is bound and does not listen yet; port 0 takes any that is free.

    Raises:
        UsageError: the host is not this machine alone and `allow_remote` is not set, or cannot be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"host {host!r} has no address: {error.strerror}", param="host") from error
    if not allow_remote and not ipaddress.ip_address(address[0]).is_loopback:
        raise UsageError(
            f"host {host!r} can be reached from other machines, and there is no key that they would have to "
            "know; use 127.0.0.1, give them one with --api-key, or allow it with --allow-remote",
            param="host",
        )
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CONNECTION_BYTES)  # of each that is accepted
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_serve(address, error) from error
    return sock


def listen(sock: socket.socket) -> None:
    """Have a bound socket listen.

    Raises:
        UsageError: somebody else listens there.
    """
    try:
        # Two programs can bind one port; only one can listen.
        sock.listen(BACKLOG)
    except OSError as error:
        raise _cannot_serve(sock.getsockname(), error) from error


def forget_unsent(sock: socket.socket) -> None:
    """Have the kernel drop what it holds for a client, when the socket is closed: it reads nothing anyway."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def url_of(sock: socket.socket, *, tls: bool = False) -> str:
    """Return the address of a bound socket, as a browser takes it."""
    host, port = sock.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def tls_context(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    """Return what a server needs to speak TLS 1.2 or newer.

    Args:
        certificate: a PEM file with the server's certificate and those that vouch for it.
        key: a PEM file with its private key; None: it is in the same file.

    Raises:
        UsageError: they cannot be read, do not belong together, or the key is encrypted.
    """
    for path, param in ((certificate, "tls-cert"), (key, "tls-key")):
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise UsageError(f"{param} {str(path)!r}: {error.strerror}", param=param) from error
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason or "no certificate with its private key in PEM"
        message = f"tls-cert {str(certificate)!r} cannot be used: {reason}"
        raise UsageError(message, param="tls-cert") from error
    return context


def _no_password() -> str:
    """Refuse a key that is encrypted, where OpenSSL would ask at the terminal."""
    raise UsageError("the private key is encrypted; decrypt it, and have its file readable by you alone")


def _cannot_serve(address: Sequence[object], error: OSError) -> UsageError:
    host, port = address[:2]
    return UsageError(
        f"cannot serve on {host} port {port}: {os.strerror(error.errno or 0)}; choose another (0 takes any)",
        param="port",
    )
