"""The secret that the ranks of one job share, by which they know each other before JAX starts.

The launcher that starts the ranks makes a new one for each start and hands it over in the environment. It never
travels: a rank proves that it has it, by a keyed digest (HMAC) of what it says.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping

from jaxnet.errors import InputError

TOKEN = "JAXNET_JOB_TOKEN"

_SHORTEST = 16


def new_token() -> str:
    """A secret for one start of a job."""
    return secrets.token_hex(16)


def token_in(environ: Mapping[str, str]) -> str | None:
    """The secret of this job; None if nobody has given it one.

    >>> token_in({}) is None
    True
    """
    token = environ.get(TOKEN) or None
    if token is not None and len(token) < _SHORTEST:
        raise InputError(
            f"{TOKEN} has {len(token)} characters; it must have at least {_SHORTEST}, the same in every process"
        )
    return token


def new_nonce() -> str:
    """What one call asks to be answered with, so that an answer to an earlier call is none to this one."""
    return secrets.token_hex(16)


def proof(token: str, *said: str | int) -> str:
    """What shows that whoever said this knows `token`.

    >>> proof("a secret", "rank", 1) == proof("another secret", "rank", 1)
    False
    """
    return hmac.new(os.fsencode(token), json.dumps(said).encode(), hashlib.sha256).hexdigest()


def is_proof(given: str, token: str, *said: str | int) -> bool:
    """Whether `given` is the `proof` of this."""
    return hmac.compare_digest(given.encode(errors="replace"), proof(token, *said).encode())
