"""A strategy whose collectives take both axes of the mesh, under `pmap`, where one of them is mapped by `vmap`."""

import numpy as np

from support import tiny


def test_parameter_server_under_pmap_is_that_under_shard_map():
    mapped, sharded = (
        tiny.run(tiny.setup(tiny.cnn(), "parameter_server", mode=mode), 2) for mode in ("pmap", "shard_map")
    )
    np.testing.assert_allclose(mapped[0], sharded[0], rtol=1e-5)
