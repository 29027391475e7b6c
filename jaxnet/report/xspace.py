"""What `jax.profiler.ProfileData` does not give of a trace: the programs inside it, and when it began.

A trace is an XSpace message (xplane.proto of XLA's profiler). Every program that ran is in it as an HloProto beside
the program's name, so that a trace explains itself.
"""

from collections.abc import Iterator
from typing import NamedTuple

from jaxlib.xla_client import hlo  # type: ignore[attr-defined]

from jaxnet.report.protobuf import Message

# Field numbers.
_SPACE_PLANES = 1
_PLANE_NAME, _PLANE_EVENT_METADATA, _PLANE_STAT_METADATA, _PLANE_STATS = 2, 4, 5, 6
_ENTRY_VALUE = 2
_METADATA_ID, _METADATA_NAME, _METADATA_STATS = 1, 2, 5
_STAT_METADATA_ID, _STAT_UINT64, _STAT_BYTES = 1, 3, 6
_HLO_MODULE = 1


class About(NamedTuple):
    """What a trace says of itself.

    Attributes:
        start_ns: when it began, in nanoseconds of the host's clock since 1970; 0 if it does not say.
        programs: optimized HLO text by `name(program id)`.
    """

    start_ns: int
    programs: dict[str, str]


def about(content: bytes) -> About:
    """Read the start and the programs of a serialized XSpace; ValueError if these bytes are none."""
    start, programs = 0, dict[str, str]()
    for plane in Message(content).messages(_SPACE_PLANES):
        if plane.text(_PLANE_NAME) == "/host:metadata":
            programs.update(_programs(plane))
        elif plane.text(_PLANE_NAME) == "Task Environment":
            start = _start(plane)
    return About(start, programs)


def _programs(plane: Message) -> Iterator[tuple[str, str]]:
    stat_names = _stat_names(plane)
    for entry in plane.messages(_PLANE_EVENT_METADATA):
        program = entry.message(_ENTRY_VALUE)
        for stat in program.messages(_METADATA_STATS):
            if stat_names.get(stat.number(_STAT_METADATA_ID)) == "Hlo Proto":
                module = stat.message(_STAT_BYTES).bytes(_HLO_MODULE)
                text = hlo.HloModule.from_serialized_hlo_module_proto(module).to_string()
                yield program.text(_METADATA_NAME), text


def _start(plane: Message) -> int:
    names = _stat_names(plane)
    stats = {names.get(stat.number(_STAT_METADATA_ID)): stat for stat in plane.messages(_PLANE_STATS)}
    return stats["profile_start_time"].number(_STAT_UINT64) if "profile_start_time" in stats else 0


def _stat_names(plane: Message) -> dict[int, str]:
    values = [entry.message(_ENTRY_VALUE) for entry in plane.messages(_PLANE_STAT_METADATA)]
    return {value.number(_METADATA_ID): value.text(_METADATA_NAME) for value in values}
