"""Proxy variables: gRPC goes by them for JAX's coordinator too, and then JAX aborts after minutes.

`http_proxy` and its like are meant for the world outside. With them, `jax.distributed.initialize` asks the proxy for
the coordinator, waits until its time is up and ends the process with SIGABRT; for 127.0.0.1 just as for other hosts.
"""

from collections.abc import Mapping, MutableMapping

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # the first that is set is what gRPC goes by
_EXEMPT = ("no_grpc_proxy", "no_proxy")  # the first that is set says for which names it does not


def proxy_between(environ: Mapping[str, str], host: str) -> str | None:
    """The variable by which gRPC would call `host` through a proxy, or None.

    >>> proxy_between({"https_proxy": "http://proxy:3128"}, "node1")
    'https_proxy'
    >>> proxy_between({"https_proxy": "http://proxy:3128", "no_proxy": "localhost,node1"}, "node1")
    """
    exempt = [part.strip() for part in _exempt(environ).split(",")]
    if any(suffix and host.endswith(suffix) for suffix in exempt):
        return None
    return next((name for name in _PROXIES if environ.get(name)), None)


def go_around(environ: MutableMapping[str, str], host: str) -> None:
    """Let gRPC, and nothing else, call `host` directly from now on.

    >>> environ = {"https_proxy": "http://proxy:3128", "no_proxy": "localhost"}
    >>> go_around(environ, "node1")
    >>> environ["no_grpc_proxy"], environ["no_proxy"]
    ('localhost,node1', 'localhost')
    """
    if proxy_between(environ, host):
        environ["no_grpc_proxy"] = ",".join(filter(None, (_exempt(environ), host)))


def _exempt(environ: Mapping[str, str]) -> str:
    return next((environ[name] for name in _EXEMPT if environ.get(name)), "")
