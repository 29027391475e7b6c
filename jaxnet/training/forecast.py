"""What a compiler makes of a training step for devices that are not there: whether it fits, and what is hidden.

    forecast(prepare(config, cluster.mesh()), cluster)

The step is planned and compiled as for real devices, never run. Memory is the compiler's own figure. Times are a model
at published rates (`jaxnet.cost.scheduled`).
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from jaxnet import report
from jaxnet.comm import Check, CompilerOption, has_bucket_size, mesh_size
from jaxnet.config.run import Config
from jaxnet.cost.accelerators import Cluster
from jaxnet.cost.links import places_of
from jaxnet.cost.scheduled import Timeline, Travel, modelled
from jaxnet.data import Source, open_split
from jaxnet.errors import InputError, error_text
from jaxnet.training.experiment import Experiment
from jaxnet.training.plan import RunPlan, explained, size_text
from jaxnet.training.prepare import prepare

_UNTRIED_TILES = "Couldn't find output tile sizes"  # what XLA says where only a device could tell which fit
_NO_MEMORY = "RESOURCE_EXHAUSTED"


class TooLarge(InputError):
    """A compiler makes no program of a step that needs more memory than a device has, as that of TPUs does not."""


@dataclass(frozen=True)
class Memory:
    """Bytes of a device.

    Attributes:
        arguments: the state and the batch; the new state takes the place of the old one.
        temporary: what is there only while the step runs.
        limit: all that the device has.
    """

    arguments: int
    temporary: int
    limit: int

    @property
    def fits(self) -> bool:
        """Whether a step fits."""
        return self.arguments + self.temporary <= self.limit

    def __str__(self) -> str:
        return (
            f"{size_text(self.arguments)} of state and batch, {size_text(self.temporary)} while the step runs, of "
            f"{size_text(self.limit)}"
        )


@dataclass(frozen=True)
class Forecast:
    """A training step on devices that are described. Prints as tables.

    Attributes:
        cluster: the devices.
        plan: what the step sends, beside the compiled program.
        memory: of a device.
        timeline: the program in time, by the model.
        options: of the compiler.
        note: how it was compiled otherwise than it would be on a device; '' mostly.
    """

    cluster: Cluster
    plan: RunPlan
    memory: Memory
    timeline: Timeline
    options: tuple[CompilerOption, ...] = ()
    note: str = ""

    @property
    def check(self) -> Check:
        """The plan beside the compiled program."""
        assert self.plan.check is not None
        return self.plan.check

    @property
    def hidden_share(self) -> float:
        """Of the bytes that a device sends, those beside which something is computed; 1 where nothing is sent."""
        sent = sum(travel.bytes for travel in self.timeline.travels)
        beside = sum(travel.bytes for travel in self.timeline.travels if travel.found.compute_during)
        return beside / sent if sent else 1.0

    @property
    def picture(self) -> report.Timeline:
        """The modelled step in the form of a measured one, to be drawn beside it with `jaxnet.report.draw`."""
        sizes, spans = dict(self.plan.form.mesh.shape), self.timeline.spans
        compute = report.union(report.Span(span.begin, span.end) for span in spans if span.track == "compute")
        timed = [_timed(travel, compute, sizes) for travel in self.timeline.travels]
        device = report.DeviceStep(0, 0, compute, tuple(sorted(timed, key=lambda each: each.span)))
        return report.Timeline(f"A model of a step on {self.cluster}", 0, (), (device,))

    def as_json(self) -> dict[str, Any]:
        """Everything as plain JSON values; bytes, seconds, FLOP."""
        kind = self.cluster.accelerator
        return {
            **self.plan.as_json(),
            "on": {"kind": kind.name, "title": kind.title, "devices": self.cluster.devices, "jax": jax.__version__},
            "options": [option._asdict() for option in self.options],
            "note": self.note,
            "memory": {**dataclasses.asdict(self.memory), "fits": self.memory.fits},
            "hidden_share": self.hidden_share,
            "modelled": {
                "step_seconds": self.timeline.seconds,
                "compute_seconds": self.timeline.compute,
                "exposed_seconds": self.timeline.exposed,
            },
            "found": [_travel(travel) for travel in self.timeline.travels],
        }

    def __str__(self) -> str:
        return "\n".join([*str(dataclasses.replace(self.plan, check=None)).splitlines(), "", *_lines(self)])

    __repr__ = __str__


def forecast(experiment: Experiment, cluster: Cluster) -> Forecast:
    """Compile the step of an experiment on `cluster`'s mesh, and read what came out.

    Raises:
        TooLarge: the compiler makes no program that fits.
        InputError: the compiler refuses the program, or the devices lack what an option wants.
    """
    if "sparse_cores" in experiment.config.compiler_options and not cluster.accelerator.sparse_cores:
        raise InputError(f"compiler_options=sparse_cores: {cluster.accelerator.title} has none; TPU v5p and v6e have")
    try:
        compiled, note = _compiled(experiment)
    except InputError:
        raise
    except Exception as error:  # of the compiler, in its own words
        kind = TooLarge if _NO_MEMORY in str(error) else InputError
        raise kind(f"--on: XLA does not compile this step for {cluster}: {error_text(error)}") from error
    hlo = compiled.as_text() or ""
    places = places_of(cluster, experiment.mesh.devices.flat)
    plan, timeline = experiment.plan.beside(hlo), modelled(hlo, cluster, places)
    return Forecast(cluster, plan, _memory(compiled, cluster), timeline, experiment.compiler_options, note)


def _compiled(experiment: Experiment) -> tuple[jax.stages.Compiled, str]:
    """The compiled step, and how it was compiled otherwise than on a device; '' mostly."""
    try:
        return experiment.compiled(), ""
    except Exception as error:
        if _UNTRIED_TILES not in str(error):
            raise
    compiled = experiment.compiled({"xla_gpu_enable_triton_gemm": False})
    return compiled, "without Triton's products, whose tiles XLA cannot try out where there is no device"


def forecasts(
    config: Config, cluster: Cluster, names: Iterable[str], source: Source | None = None
) -> Iterator[tuple[str, "Forecast | InputError"]]:
    """The step of a config under each of these strategies, or what keeps it from being compiled."""
    mesh = cluster.mesh(config.hosts)
    source = open_split(config.data, "train") if source is None else source
    for name in names:
        own = dataclasses.replace(
            config,
            strategy=name,
            mode="auto",
            bucket_bytes=config.bucket_bytes if has_bucket_size(name) else None,
        )
        try:
            yield name, forecast(prepare(own, mesh, source=source), cluster)
        except InputError as error:
            yield name, error


def less_memory(config: Config, cluster: Cluster, source: Source | None = None) -> tuple[int, Memory] | None:
    """The fewest microbatches with which a step fits, and what it then needs; each number tried is at least doubled.

    None if the examples of a device are used up before, which must be a multiple. Compiles a step for each number.
    """
    mesh, tried = cluster.mesh(config.hosts), config.microbatches
    parts = config.batch_size // (mesh_size(mesh) * config.task.group)  # of a device's examples, at most
    for count in range(2 * tried, parts + 1):
        if count < 2 * tried or parts % count:
            continue
        tried = count
        try:
            made = forecast(prepare(dataclasses.replace(config, microbatches=count), mesh, source=source), cluster)
        except TooLarge:
            continue
        except InputError:
            return None
        if made.memory.fits:
            return count, made.memory
    return None


def _memory(compiled: jax.stages.Compiled, cluster: Cluster) -> Memory:
    found: Any = compiled.memory_analysis()
    new = found.output_size_in_bytes - found.alias_size_in_bytes
    return Memory(
        int(found.argument_size_in_bytes), int(found.temp_size_in_bytes + max(0, new)), cluster.accelerator.memory
    )


def _timed(travel: Travel, compute: tuple[report.Span, ...], sizes: Mapping[str, int]) -> report.TimedCollective:
    """A collective of the model as one that was measured: it begins where its link is free."""
    span = report.Span(travel.begin, travel.begin + travel.seconds)
    return report.timed_collective(travel.found.name, travel.found, span, compute, sizes)


# ---- As people read it --------------------------------------------------------------------------------------------


def fitting_text(less: tuple[int, Memory] | None) -> str:
    """In words, what `less_memory` has found."""
    return f"it fits with microbatches={less[0]}: {less[1]}" if less else "it fits with no number of microbatches"


def _travel(travel: Travel) -> dict[str, Any]:
    found = travel.found
    return {
        "kind": found.kind,
        "arrays": [list(array) for array in found.arrays],
        "link": travel.link,
        "operations_beside": found.compute_during,
        "flop_beside": sum(travel.beside.flops.values()),
        "bytes_beside": travel.beside.bytes,
        "wire_bytes": travel.bytes,
        "seconds": travel.seconds,
        "exposed_seconds": travel.exposed,
    }


def _lines(made: Forecast) -> Iterator[str]:
    memory, timeline = made.memory, made.timeline
    yield f"on {made.cluster}, compiled by JAX {jax.__version__}, not run"
    if made.note:
        yield f"compiled {made.note}"
    for option in made.options:
        yield f"with {option}: {option.why}"
    yield f"memory of a device: {memory}: {'fits' if memory.fits else 'does not fit'}"
    if timeline.travels:
        yield ""
        yield f"{'':>4}{'collective':<40}{'link':<6}{'operations beside':>18}{'GFLOP':>9}{'ms':>9}{'exposed':>9}"
    for index, travel in enumerate(timeline.travels):
        found = travel.found
        dtype, elements = found.arrays[0]
        more = f" + {len(found.arrays) - 1}" if len(found.arrays) > 1 else ""
        yield (
            f"{index:>3} {f'{found.kind} {elements:,} {dtype}{more}':<40}{travel.link:<6}{found.compute_during:>18}"
            f"{sum(travel.beside.flops.values()) / 1e9:>9.1f}{1e3 * travel.seconds:>9.3f}{1e3 * travel.exposed:>9.3f}"
        )
    yield ""
    yield explained(made.check)
    if timeline.travels:
        yield f"{made.hidden_share:.0%} of the bytes that a device sends travel beside operations"
    yield (
        f"a step at the published rates: {1e3 * timeline.seconds:.2f} ms, of which {1e3 * timeline.exposed:.2f} ms "
        "wait for collectives (a model, not a measurement)"
    )
