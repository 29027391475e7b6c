"""Where the CPU's collectives listen: an address or an interface of our choice.

Left alone, Gloo listens on the address that the host's own name resolves to. On a stock Debian
that is 127.0.1.1, and in containers often one that others cannot reach: remote processes then fail
with "connection refused". Gloo takes a host name or an interface, but JAX offers no option for
it, so the CPU backend is registered anew, made just as JAX makes it but for that one argument.
The two functions used for it are not public in JAX 0.10 to 0.12; this file is the only one that uses them.
"""

from typing import Any

import jax
from jax._src import distributed, xla_bridge
from jax.extend.backend import register_backend_factory
from jaxlib import _jax

from jaxnet.errors import InputError


def listen_on(*, hostname: str | None = None, interface: str | None = None) -> None:
    """Let CPU collectives of this process listen on an address or interface; call before any device use.

    Does nothing when JAX is set to another implementation than Gloo, such as MPI.
    """
    if getattr(jax.config, "jax_cpu_collectives_implementation", "gloo") != "gloo":
        return
    if not (hasattr(xla_bridge, "make_cpu_client") and hasattr(_jax, "make_gloo_tcp_collectives")):
        raise InputError(
            f"JAX {jax.__version__} offers no way to choose where its CPU collectives listen"
            f" ({interface or hostname}); use a version from 0.10.2 to 0.12"
        )

    def make_client() -> Any:
        collectives = _jax.make_gloo_tcp_collectives(
            distributed_client=distributed.global_state.client, hostname=hostname, interface=interface
        )
        return xla_bridge.make_cpu_client(collectives=collectives)

    register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)
