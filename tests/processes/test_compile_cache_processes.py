"""One process compiles what all run, and a restart compiles nothing on any of them, although JAX would on CPUs."""

from pathlib import Path

import pytest

from support.ranks import Ranks

pytestmark = pytest.mark.processes


def compiled(rank, directory):
    """The programs that XLA compiled on this process: one of its own, and one that it shares with the others."""
    import jax
    import jax.numpy as jnp
    from jax._src import compiler
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from jaxnet.training.compile_cache import compile_cache

    names, compile_ = [], compiler.backend_compile_and_load

    def counted(backend, module, *arguments, **options):
        names.append(str(module.operation.attributes["sym_name"]).strip('"'))
        return compile_(backend, module, *arguments, **options)

    compiler.backend_compile_and_load = counted
    mesh = Mesh(jax.devices(), "device")
    parts, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["device"], []))
    with compile_cache(Path(directory)):
        own = jax.jit(lambda x: jnp.sin(x))(float(rank))
        ones = jax.make_array_from_callback((4,), parts, lambda _: jnp.ones(1))
        total = jax.jit(lambda x: x.sum(), out_shardings=whole)(ones)
    assert (float(own), float(total)) == (pytest.approx(float(jnp.sin(rank))), 4.0)
    return [name for name in names if "lambda" in name]


def test_no_process_of_a_restart_compiles(tmp_path):
    for expected in (3, 0):
        with Ranks(compiled, 2, str(tmp_path / "cache")) as ranks:
            assert sum(len(names) for names in ranks.results()) == expected
