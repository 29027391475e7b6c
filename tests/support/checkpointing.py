"""States to save, on any mesh, and ways to harm what was saved."""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxnet.checkpoints import Checkpointer

DTYPES = ["float32", "float16", "bfloat16", "uint8", "int32", "uint32", "float8_e4m3fn"]


class State(NamedTuple):
    step: object
    params: object
    comm: object
    key: object


def mesh_of(hosts, devices):
    grid = np.array(jax.devices()[: hosts * devices]).reshape(hosts, devices)
    return jax.sharding.Mesh(grid, ("host", "device"), axis_types=(AxisType.Auto,) * 2)


def host_state(seed):
    """Every bit pattern that a draw of bytes gives, NaNs among them; one leaf has no elements."""
    draw = np.random.default_rng(seed)
    params = {
        name: np.frombuffer(draw.bytes(24 * np.dtype(name).itemsize), np.dtype(name)).reshape(4, 6) for name in DTYPES
    }
    params["bool"] = draw.integers(0, 2, (3,)).astype(bool)
    params["conv.1/kernel"] = {"none": np.zeros((0, 5), np.float32), "scale": np.float32(seed)}
    comm = {"residual": draw.normal(size=(8, 16)).astype(np.float32)}
    return State(np.int32(seed), params, (comm, ()), np.array([seed, 7], np.uint32))


def shardings(mesh, tree):
    """Leaves called residual are split over all devices, the others are on each."""
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(("host", "device")))
    return jax.tree_util.tree_map_with_path(
        lambda path, _: split if "residual" in jax.tree_util.keystr(path) else everywhere, tree
    )


def on(mesh, tree):
    def place(x, sharding):
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(lambda x, s: place(np.asarray(x), s), tree, shardings(mesh, tree))


def like(mesh, tree):
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings(mesh, tree))


def assert_same_bits(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


class Run:
    """A directory of checkpoints of a small state, opened as often as wanted."""

    def __init__(self, path):
        self.path = path
        self._opened = []
        self.mesh = mesh_of(2, 4)
        self.like = like(self.mesh, self.value(0))

    def open(self, **options):
        self._opened.append(Checkpointer(self.path, **options))
        return self._opened[-1]

    def close(self):
        for checkpoints in self._opened:
            checkpoints.close()

    def value(self, seed):
        return {"w": np.full((4, 4), seed, np.float32)}

    def state(self, seed):
        return on(self.mesh, self.value(seed))

    def save(self, *steps, **options):
        checkpoints = self.open(**options)
        for step in steps:
            checkpoints.save(step, self.state(step), extra={"next_step": step + 1})
        checkpoints.wait()
        return checkpoints


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def largest_file(step_directory):
    files = [path for path in (step_directory / "state").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)
