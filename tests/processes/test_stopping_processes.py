"""Signals to one of two real processes, or to both: they stop after the same step."""

import signal
import time

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxnet.training.stopping import StopSignal
from support.programs import PATIENCE
from support.ranks import Ranks
from support.training_runs import ONE, finish, start

pytestmark = pytest.mark.processes


def steps_until_told(rank, before_loop=""):
    """Steps with a reduction in each, as training has; rank 1 does more besides."""
    mesh = jax.make_mesh((jax.device_count(),), ("all",), axis_types=(AxisType.Auto,))
    total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, P()))
    ones = jax.jit(lambda: jnp.ones(64), out_shardings=NamedSharding(mesh, P("all")))()
    with StopSignal() as stop:
        if before_loop:
            signal.raise_signal(int(before_loop))
        print("ready", flush=True)
        for step in range(1, 100_000):
            total(ones).block_until_ready()
            if rank == 1 and step % 7 == 0:
                sum(range(100_000))
            if step == 5:
                print("stepping", flush=True)
            if stop.should_stop(step):
                return [step, stop.signal_name]
    return None


TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        pytest.param([(0, TERM)], ["SIGTERM", "SIGTERM"], id="term-0", marks=pytest.mark.slow),
        pytest.param([(1, TERM)], ["SIGTERM", "SIGTERM"], id="term-1"),
        pytest.param([(1, INT)], ["SIGTERM", "SIGINT"], id="int-1", marks=pytest.mark.slow),
        pytest.param([(0, INT), (1, INT)], ["SIGINT", "SIGINT"], id="int-both"),
        pytest.param(
            [(0, INT), (1, INT), (0, TERM), (1, TERM)], ["SIGINT", "SIGINT"], id="both-both", marks=pytest.mark.slow
        ),
    ],
)
def test_all_stop_after_the_same_step(sent, names):
    with Ranks(steps_until_told, 2) as ranks:
        for rank in (0, 1):
            ranks.line(rank, "stepping")
        for rank, number in sent:
            ranks.processes[rank].send_signal(number)
        (first, first_name), (second, second_name) = ranks.results()
    assert first == second > 5
    assert [first_name, second_name] == names


def test_a_signal_before_the_first_step_is_not_lost():
    with Ranks(steps_until_told, 2, str(int(INT))) as ranks:
        assert len({step for step, _ in ranks.results()}) == 1


def test_one_process_alone_stops_too():
    with Ranks(steps_until_told, 1) as ranks:
        ranks.line(0, "stepping")
        ranks.processes[0].send_signal(INT)
        assert ranks.results()[0][1] == "SIGINT"


def test_under_kubernetes_a_stopped_run_has_failed_and_a_living_one_shows_it(tmp_path):
    alive = tmp_path / "alive"
    for_pods = {"JAXNET_ALIVE_FILE": str(alive), "JAXNET_STOPPED_STATUS": "143"}
    with start(tmp_path / "run", ONE, PACE_SECONDS="0.2", **for_pods) as program:
        program.wait_for("step ")
        before = alive.stat().st_mtime
        deadline = time.monotonic() + PATIENCE
        while alive.stat().st_mtime == before:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        program.process.send_signal(TERM)
        assert program.finish() == 143
    assert finish(tmp_path / "run", ONE, "epochs=1", "--allow-config-change", **for_pods)  # with status 0
