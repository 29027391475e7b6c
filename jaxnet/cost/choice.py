"""What `strategy=auto` is on a mesh: a rule, from the platform, the processes and the link, which is measured.

| where | what | why |
|---|---|---|
| TPUs | `ddp` | one all-reduce takes the links of all dims of a slice at once |
| GPUs | `hierarchical` | the network between hosts carries 1/devices of the bytes |
| CPUs | `ddp`, buckets of 4 MiB | of 25 MiB, too few travel beside backward; no gradient is cut |
| there, one device a process, several buckets | the same in pieces | a message does not wait for what computes |
| there, several processes of several devices | or `hierarchical`, so too | sends less between processes |

On CPUs `hierarchical` copies large gradients twice, to cut them into buckets, and waits more often inside a process;
that takes time of the cores, which also compute. Where several processes have several devices each it sends less
between processes, but a message travels beside what computes. So one is summed both ways and timed, and `hierarchical`
is taken where it saves 22 % of the time.
"""

from typing import NamedTuple

from jax.sharding import Mesh

from jaxnet.comm import AUTO, AXES, DEVICE, HOST, MiB, all_reduce, named_strategy, platform_of, scattered
from jaxnet.cost.collectives import Transfer, measured_row
from jaxnet.files import record_of

_BUCKET = 4 * MiB
_TIMES = 7
# Of `ddp`'s time for a message, the most that `hierarchical` may take. Ratios of a message and of the step, as measured
# between two processes of two devices: 0.68 0.73, 0.69 0.78, 0.70 0.88, 0.76 0.89 at 250 Mbit/s; 0.81 1.14, 0.84 1.09,
# 0.85 1.11, 0.86 1.11, 0.87 1.06 at 1 Gbit/s.
_ENOUGH = 0.78
_ALONE = "on one device nothing travels"

# How either strategy sums a message.
_WAYS = (
    Transfer("ddp", "all-reduce", reducer=lambda axes: all_reduce(*axes)),
    Transfer("hierarchical", "all-reduce", reducer=lambda _: scattered(DEVICE, all_reduce(HOST))),
)


class Choice(NamedTuple):
    """The strategy that was chosen for a mesh.

    Attributes:
        mesh: for which: see `described`.
        strategy: its name.
        bucket_bytes: of its buckets; None: its own.
        why: in words.
        pieces: whether a step is several programs, as in `mode=pieces`, where nothing else in a config forbids it.
    """

    mesh: str
    strategy: str
    bucket_bytes: int | None
    why: str
    pieces: bool = False

    @property
    def label(self) -> str:
        """The strategy as `jaxnet bench step --strategy` takes it."""
        size = f":{self.bucket_bytes // MiB}MiB" if self.bucket_bytes else ""
        return self.strategy + size + "+pieces" * self.pieces


def choose(mesh: Mesh, gradient_bytes: int) -> Choice:
    """The strategy for gradients of so many bytes in all. All processes call it, which may send messages.

    >>> from jaxnet.comm import make_mesh
    >>> choose(make_mesh(), 10**6).strategy
    'ddp'
    """
    platform, where = platform_of(mesh), described(mesh)
    if platform != "cpu":
        name = named_strategy(AUTO, platform=platform).name
        why = f"as compiled for {platform.upper()}s it waits least for messages"
        return Choice(where, name, None, why if mesh.devices.size > 1 else _ALONE)
    if not _measures(mesh):
        # One bucket leaves when backward ends, so that further programs only cost their launch.
        pieces = _processes(mesh) > 1 and gradient_bytes > _BUCKET
        why = "buckets of 4 MiB travel beside backward, and no gradient is cut" if mesh.devices.size > 1 else _ALONE
        return Choice(where, "ddp", _BUCKET, why, pieces)
    size = min(_BUCKET, gradient_bytes)
    ddp, hierarchical = (measured_row(mesh, AXES, way, size, _TIMES).min_us / 1e3 for way in _WAYS)
    saves = hierarchical < _ENOUGH * ddp
    found = f"{size / 1e6:.1f} MB take {hierarchical:.1f} ms, by ddp {ddp:.1f}"
    why = f"over this link hierarchical {'saves' if saves else 'does not save'} {1 - _ENOUGH:.0%}: {found}"
    return Choice(where, "hierarchical" if saves else "ddp", _BUCKET, why)


def _measures(mesh: Mesh) -> bool:
    """Whether the choice depends on the link: between processes of several CPU devices each."""
    return platform_of(mesh) == "cpu" and 1 < _processes(mesh) < mesh.devices.size


def described(mesh: Mesh) -> str:
    """Of a mesh, what a choice depends on.

    >>> from jaxnet.comm import make_mesh
    >>> described(make_mesh(2))
    '2 x 4 cpu devices, 1 processes'
    """
    return f"{mesh.shape[HOST]} x {mesh.shape[DEVICE]} {platform_of(mesh)} devices, {_processes(mesh)} processes"


def _processes(mesh: Mesh) -> int:
    return len({device.process_index for device in mesh.devices.flat})


def kept_for(mesh: Mesh, kept: object) -> Choice | None:
    """A choice that was kept as JSON, if it is one for such a mesh and its strategy is still there."""
    try:
        choice = record_of(Choice, kept)
        named_strategy(choice.strategy, choice.bucket_bytes)
    except ValueError:
        return None
    sized = choice.bucket_bytes is None or choice.bucket_bytes > 0
    return choice if sized and choice.mesh == described(mesh) else None
