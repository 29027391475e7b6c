"""Lines of the log hold exactly the steps that they name."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxnet.training.loop import _is_due
from jaxnet.training.pacing import Pace, PacedStep
from support.programs import clean_environment, write_program


def pushed(pace, first, last):
    return [
        line for step in range(first, last + 1) for line in pace.push(step, {"loss": jnp.float32(step)}, waited=0.5)
    ]


class Slow:
    """Metrics that are ready when someone waits for them; counts how many nobody has waited for."""

    def __init__(self):
        self.in_flight = self.most = 0

    def __call__(self, state, batch):
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        return state + batch, {"loss": self}

    def block_until_ready(self):
        self.in_flight -= 1
        return self


def test_a_loop_that_waits_for_nothing_has_two_steps_in_flight():
    slow, state = Slow(), 0
    step = PacedStep(slow)
    for _ in range(100):
        state, _ = step(state, 1)
    assert (state, slow.most) == (100, 2)


def test_a_loop_that_waits_for_nothing_ends(tmp_path):
    """Of more than 31 steps in flight on CPUs, XLA's threads would wait for each other for ever."""
    program = write_program(
        tmp_path,
        """
        import jaxnet
        from jaxnet.config.run import Config
        from jaxnet.data import Synthetic
        from jaxnet.models import CNN

        data = Synthetic((8, 8, 1), num_classes=2, num_train=64, num_test=8)
        config = Config(model=CNN(2, widths=(2,), hidden=4), data=data, epochs=1, batch_size=16)
        experiment = jaxnet.prepare(config)
        state, batches = experiment.init(), experiment.batches()
        batch = next(batches)
        for _ in range(500):
            state, metrics = experiment.step(state, batch)
        batches.close()
        print(int(state.step), metrics["loss"] < 1)
        """,
    )
    environment = clean_environment(JAX_NUM_CPU_DEVICES="8")
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert done.stdout == "500 True\n", done.stderr[-2000:]


def test_a_paced_step_can_be_traced():
    step = PacedStep(lambda state, batch: (state + batch, {"loss": state * batch}))
    many = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))
    state, metrics = many(jnp.float32(0), jnp.ones(50))
    assert (state, metrics["loss"][-1]) == (50, 49)
    assert step(state, 1)[0] == 51


def test_each_line_is_the_mean_of_its_steps_and_comes_two_steps_later():
    pace = Pace(every=4)
    assert pushed(pace, 1, 5) == []
    [line] = pushed(pace, 6, 6)
    assert line.step == 4
    assert line.values["loss"] == 2.5
    assert line.values["step_seconds"] > 0


def test_steps_that_are_done_again_count_once():
    pace = Pace(every=4)
    pushed(pace, 1, 6)
    assert list(pace.drain()) == []
    pace.forget()  # back to step 5
    assert pushed(pace, 6, 9) == []
    [line] = pushed(pace, 10, 10)
    assert (line.step, line.values["loss"]) == (8, 7.0)  # of 6, 7 and 8
    assert pace.waited == 0.5 * 11  # time is that of all


def test_a_line_never_waited_longer_than_it_lasted(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    pace, lines = Pace(every=1), []
    for step in range(1, 6):
        clock[0] += 1.0
        lines += pace.push(step, {"loss": jnp.float32(step)}, waited=0.75)
    assert [line.values["step_seconds"] for line in lines] == [3.0, 1.0, 1.0]
    assert [line.values["data_wait_seconds"] for line in lines] == [2.25, 0.75, 0.75]
    list(pace.drain())
    assert (pace.seconds, pace.waited) == (5.0, 3.75)


def test_draining_reads_what_is_in_flight_and_the_last_line_may_be_short():
    pace = Pace(every=4)
    pushed(pace, 1, 6)
    assert [line.step for line in pace.drain()] == []
    [line] = pace.drain(last=True)
    assert (line.step, line.values["loss"]) == (6, 5.5)
    assert list(pace.drain(last=True)) == []
    assert pace.waited == 3.0


def test_a_pause_is_not_training_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    pace = Pace(every=2)
    clock[0] = 1.0
    with pace.paused():
        clock[0] = 100.0
    pushed(pace, 1, 2)
    clock[0] = 102.0
    [line] = pace.drain()
    assert line.values["step_seconds"] == 1.5
    assert pace.seconds == 3.0


class Metric:
    """A metric whose step is done when the test says so."""

    def __init__(self):
        self.ready = False

    def is_ready(self):
        return self.ready

    def block_until_ready(self):
        return self


def test_the_devices_are_idle_when_the_last_step_dispatched_is_done():
    pace, metric = Pace(every=4), Metric()
    assert pace.is_idle()
    list(pace.push(1, {"loss": metric}, waited=0.0))
    assert not pace.is_idle()
    metric.ready = True
    assert pace.is_idle()


@pytest.mark.parametrize(("every", "total"), [(112.27, 674), (1.0, 10), (2.5, 20), (22.4, 449)])
def test_evaluations_fall_on_the_steps_nearest_to_whole_multiples(every, total):
    due = [step for step in range(1, total + 1) if _is_due(step, every)]
    assert due == [round(k * every) for k in range(1, len(due) + 1)]
    assert abs(len(due) - total / every) <= 1
