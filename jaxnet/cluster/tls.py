"""Mutual TLS between the processes and their coordinator, from three files that environment variables name.

JAX ends a process without a reason when the files are wrong. So each process tries them first, by a TLS handshake with
itself.
"""

import inspect
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax

from jaxnet.errors import InputError

CERT, KEY, CA = "JAXNET_TLS_CERT", "JAXNET_TLS_KEY", "JAXNET_TLS_CA"


class Credentials(NamedTuple):
    """PEM files: this process's certificate chain, its private key, and the authority that signs all certificates."""

    cert: str
    key: str
    ca: str


def credentials_in(environ: Mapping[str, str]) -> Credentials | None:
    """The files that the environment names; None if it names none.

    Raises:
        InputError: it does not name all three, or a file cannot be read.

    >>> credentials_in({}) is None
    True
    """
    named = {name: environ.get(name, "") for name in (CERT, KEY, CA)}
    missing = [name for name, path in named.items() if not path]
    if len(missing) == 3:
        return None
    if missing:
        given = ", ".join(name for name in named if name not in missing)
        raise InputError(f"{', '.join(missing)} missing beside {given}: set all three in every process, or none")
    for name, path in named.items():
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise InputError(
                f"{name} is {path}, which cannot be read: {(error.strerror or str(error)).lower()}"
            ) from None
    return Credentials(*named.values())


def check_credentials(own: Credentials, called: str | None) -> None:
    """Raise InputError for files that the others would refuse; `called` is the name by which they call this process."""
    try:
        server, client = (_context(own, side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    except (ssl.SSLError, ValueError) as error:
        raise InputError(f"{CERT}, {KEY} and {CA} do not go together: {_reason(error)}") from None
    client.check_hostname = called is not None
    try:
        _shake_hands(server, client, called)
    except ssl.SSLError as error:
        whom = f" for {called}, as the others call it," if called else ""
        raise InputError(f"{CERT}={own.cert} does not hold{whom} by {CA}={own.ca}: {_reason(error)}") from None


def initialize_options(own: Credentials | None) -> dict[str, str]:
    """The arguments for `jax.distributed.initialize`; InputError if this version of JAX has no TLS."""
    if own is None:
        return {}
    if "mtls_cert_file" not in inspect.signature(jax.distributed.initialize).parameters:
        raise InputError(f"{CERT} is set, but JAX {jax.__version__} has no mutual TLS; use JAX 0.12, or unset it")
    return {"mtls_cert_file": own.cert, "mtls_key_file": own.key, "mtls_ca_file": own.ca}


def _context(own: Credentials, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(own.cert, own.key, password=_no_password)
    context.load_verify_locations(own.ca)
    return context


def _no_password() -> str:
    raise ValueError("the key has a password, and nobody is there to give it")


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, called: str | None) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=called),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):  # enough: each side answers the other at most twice
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def _reason(error: Exception) -> str:
    found = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
    return str(found).replace("_", " ").lower()
