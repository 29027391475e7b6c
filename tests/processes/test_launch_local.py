"""`jaxnet launch local` with tiny programs: what it passes on, ends, and does not leave behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxnet.operations.keeper import TETHER
from support.programs import ROOT, Program, await_gone, keeper_of, launch, write_program

pytestmark = pytest.mark.processes

RANK = "import os, signal, sys, time\nrank = int(os.environ['JAX_PROCESS_ID'])\n"
# A rank that says who it is and who its child is, and has both ignore whatever can be ignored.
STUBBORN = (
    RANK
    + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = os.fork()
while child == 0:
    signal.pause()
print("pids", os.getpid(), child)
"""
)


GLOO = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"


@pytest.fixture
def program(tmp_path):
    def make(text):
        return write_program(tmp_path, text)

    return make


def pids_of(job, count):
    """The pids that the `STUBBORN` programs of `job` printed."""
    lines = job.wait_for(*(f"[{rank}] pids " for rank in range(count)))
    return [int(pid) for line in lines for pid in line.split()[2:]]


def test_all_succeed(program):
    with launch(
        program(RANK + "print('hello from', rank); print('grumble', rank, file=sys.stderr)"), processes=3
    ) as job:
        assert job.finish() == 0
        assert sorted(job.out) == [f"[{rank}] hello from {rank}" for rank in range(3)]
        assert sorted(job.err) == [f"[{rank}] grumble {rank}" for rank in range(3)]


@pytest.mark.parametrize("status", [1, 2, 77])
def test_the_exit_status_is_passed_on(program, status):
    with launch(program(RANK + f"sys.exit({status} if rank == 1 else 0)")) as job:
        assert job.finish() == status
        assert job.err[-1].startswith(f"launch: rank 1 exited with status {status} after ")


def test_what_jax_says_of_every_group_is_left_out(program):
    with launch(program(f"print({GLOO!r}); print('[Gloo] Rank 0 is lost')"), processes=1) as job:
        assert job.finish() == 0
    assert job.out == ["[0] [Gloo] Rank 0 is lost"]


def test_what_two_threads_of_a_process_say_of_their_groups_at_once_is_left_out(program):
    mixed = GLOO.replace("Rank 0", "Rank [Gloo] Rank 00").replace("to 1", "to  is connected to 11")
    with launch(program(f"print({mixed!r}); print(11); print('Rank 1 peer ranks. and more')"), processes=1) as job:
        assert job.finish() == 0
    assert job.out == ["[0] 11", "[0] Rank 1 peer ranks. and more"]


def test_arguments_are_passed_on_as_they_are(program):
    with launch(program("import sys; print(sys.argv[1:])"), "--config", "a b", "--", "-x", processes=1) as job:
        assert job.finish() == 0
        assert job.out == ["[0] ['--config', 'a b', '--', '-x']"]


def test_a_program_that_is_not_python():
    with launch("sh", "-c", "echo $JAX_PROCESS_ID of $JAX_NUM_PROCESSES") as job:
        assert job.finish() == 0
        assert sorted(job.out) == ["[0] 0 of 2", "[1] 1 of 2"]


def test_more_ranks_than_files_may_be_open():
    launcher = [sys.executable, "-m", "jaxnet", "launch", "local", "--processes", "20", "--", "sleep", "100"]
    with Program(["sh", "-c", 'ulimit -n 24; exec "$@"', "sh", *launcher]) as job:
        assert job.finish() == 2
        assert job.err == [
            "error: the pipes of 20 processes take more files than can be open here, of a limit of 24: "
            "allow more open files with ulimit -n, or start fewer processes"
        ]


def test_a_program_that_cannot_be_executed(tmp_path):
    path = Path(write_program(tmp_path, "no program\n", "broken"))
    path.chmod(0o755)
    path.write_bytes(b"\x7fELF")
    with launch(str(path), processes=1) as job:
        assert job.finish() == 1
        assert job.err[0].startswith(f"[0] error: cannot run {path}: ")


def test_one_is_killed_and_the_others_end(program):
    with launch(program(RANK + "print('pids', os.getpid())\nsignal.pause()"), processes=4) as job:
        pids = pids_of(job, 4)
        os.kill(pids[2], signal.SIGKILL)
        assert job.finish() == 137
        assert job.err[-1].startswith("launch: rank 2 was killed by SIGKILL (9) after ")
        assert job.err[-1].endswith(" s; ended the other 3")
        await_gone(*pids)


def test_those_that_ignore_sigterm_are_killed_after_the_grace_period(program):
    """With what they started. The command waits 10 s; here it is a tenth of a second."""
    arguments = f"[{program(STUBBORN + 'signal.pause()')!r}], 2, grace_seconds=0.1"
    code = f"from jaxnet.operations.launchers.local import launch_local; exit(launch_local({arguments}))"
    with Program([sys.executable, "-c", code]) as job:
        pids = pids_of(job, 2)
        os.kill(pids[0], signal.SIGKILL)
        assert job.finish() == 137
        assert job.err[-1].startswith("launch: rank 0 was killed by SIGKILL (9) after ")
        await_gone(*pids)


def test_what_a_rank_leaves_behind_is_killed_when_it_ends(program):
    with launch(program(STUBBORN)) as job:
        assert job.finish() == 0
        await_gone(*pids_of(job, 2))


def test_nothing_survives_the_launcher_itself(program):
    """Killed with SIGKILL, it can do nothing: its keeper kills the ranks and what they started."""
    with launch(program(STUBBORN + "signal.pause()")) as job:
        pids = pids_of(job, 2)
        os.kill(job.pid, signal.SIGKILL)
        await_gone(*pids)


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux kills a process when its parent dies.")
def test_ranks_do_not_survive_the_launcher_and_its_keeper(program):
    with launch(program(STUBBORN + "signal.pause()")) as job:
        ranks, children = pids_of(job, 2)[::2], pids_of(job, 2)[1::2]
        keeper = keeper_of(job.pid)
        try:
            os.kill(job.pid, signal.SIGSTOP)  # so that it starts no other
            os.kill(keeper, signal.SIGKILL)
            os.kill(job.pid, signal.SIGKILL)
            await_gone(*ranks)
        finally:
            for child in children:  # only the keeper would have known of these
                os.kill(child, signal.SIGKILL)


REPLACED = "launch: the keeper, which kills all ranks if the launcher dies, was killed by SIGKILL (9); started another"


def test_a_keeper_that_was_killed_is_replaced_by_one_that_knows_all(program):
    with launch(program(STUBBORN + "signal.pause()")) as job:
        pids = pids_of(job, 2)
        os.kill(keeper_of(job.pid), signal.SIGKILL)
        job.wait_for(REPLACED)
        os.kill(job.pid, signal.SIGKILL)
        await_gone(*pids)


WAITS = (
    RANK
    + """
print("ready")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
sys.exit(3 if rank == 1 else 0)
"""
)


def test_without_any_keeper_the_job_goes_on_to_its_own_end(program, tmp_path):
    with launch(program(WAITS), str(tmp_path / "go")) as job:
        job.wait_for("[0] ready", "[1] ready")
        for count in range(4):
            while job.err.count(REPLACED) < count:
                time.sleep(0.02)
            os.kill(keeper_of(job.pid), signal.SIGKILL)
        job.wait_for(
            "launch: the keeper, which kills all ranks if the launcher dies, was killed by SIGKILL (9); the job"
        )
        (tmp_path / "go").touch()
        assert job.finish() == 3
        assert job.err[-1].startswith("launch: rank 1 exited with status 3 after ")


def test_a_stopped_keeper_holds_nothing_up(program, tmp_path):
    with launch(program(WAITS), str(tmp_path / "go")) as job:
        job.wait_for("[0] ready", "[1] ready")
        os.kill(keeper := keeper_of(job.pid), signal.SIGSTOP)
        (tmp_path / "go").touch()
        assert job.finish() == 3
        await_gone(keeper)


def test_a_rank_starts_while_the_keeper_is_dead():
    """Its launcher, which is this process, tells the next keeper."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [*TETHER, "rank", str(writing), str(os.getpid()), "echo", "here"]
    ended = subprocess.run(command, pass_fds=[writing], capture_output=True, text=True)
    os.close(writing)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "here\n", "")


def test_a_stopped_rank_ends_with_the_job(program):
    with launch(program(RANK + "print('pids', os.getpid())\nsignal.pause()"), processes=1) as job:
        os.kill(*pids_of(job, 1), signal.SIGSTOP)
        os.kill(job.pid, signal.SIGTERM)
        assert job.finish() == 143


@pytest.mark.parametrize(
    "join",
    [
        pytest.param("from jaxnet.cluster.start import start; start()", id="joined"),
        pytest.param(
            f"import jaxnet; jaxnet.prepare(jaxnet.load_config('{ROOT}/configs/digits.py'))",
            id="prepared",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sigterm_ends_ranks_of_programs_of_their_own(program, join):
    """As those of a benchmark; a run of the trainer answers it by itself."""
    with launch(program(f"{RANK}{join}\nprint('ready')\nsignal.pause()"), processes=2) as job:
        job.wait_for("[0] ready", "[1] ready")
        os.kill(job.pid, signal.SIGTERM)
        assert job.finish() == 143


def test_a_background_job_of_a_shell_does_not_end_at_ctrl_c(program):
    """The shell has it ignore SIGINT."""
    words = [
        "-m",
        "jaxnet",
        "launch",
        "local",
        "--processes",
        "2",
        "--",
        program(RANK + "print('ready')\nsignal.pause()"),
    ]
    with Program(["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, *words]) as job:
        job.wait_for("[0] ready", "[1] ready")
        os.kill(job.pid, signal.SIGINT)
        os.kill(job.pid, signal.SIGTERM)
        assert job.finish() == 143
        assert job.err[0] == "launch: passed SIGTERM on to ranks 0-1; a second one kills"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on_for_an_orderly_stop(program, number):
    text = (
        RANK
        + f"""
def stop(*_):
    print("saved")
    sys.exit(0)
signal.signal({int(number)}, stop)
print("ready")
while True: signal.pause()
"""
    )
    with launch(program(text)) as job:
        job.wait_for("[0] ready", "[1] ready")
        os.kill(job.pid, number)
        assert job.finish() == 0
        assert sorted(job.out[-2:]) == ["[0] saved", "[1] saved"]
        assert job.err == [f"launch: passed {number.name} on to ranks 0-1; a second one kills"]


def test_a_second_signal_kills(program):
    with launch(program(STUBBORN + "signal.pause()")) as job:
        pids = pids_of(job, 2)
        os.kill(job.pid, signal.SIGINT)
        job.wait_for("launch: passed SIGINT on to ranks 0-1")
        os.kill(job.pid, signal.SIGINT)
        assert job.finish() == 137
        await_gone(*pids)


def test_lines_stay_whole_however_they_are_written(program):
    """Long ones, in pieces, from three ranks at once, and a last one without an end."""
    text = (
        RANK
        + """
for line in range(50):
    for piece in range(20):
        os.write(1, f"{rank}.{line}.".encode() * 100)
    os.write(1, b"\\n")
print("x" * 300_000)
print("the last", end="")
"""
    )
    with launch(program(text), processes=3) as job:
        assert job.finish() == 0
        for rank in range(3):
            expected = [f"{rank}.{line}." * 2000 for line in range(50)] + ["x" * 300_000, "the last"]
            assert [line.removeprefix(f"[{rank}] ") for line in job.out if line.startswith(f"[{rank}] ")] == expected
        assert len(job.out) == 3 * 52


def test_a_line_is_shown_while_the_program_still_runs(program):
    with launch(program("import signal; print('so far'); signal.pause()"), processes=1) as job:
        job.wait_for("[0] so far")


def test_a_reader_that_leaves_stops_the_job(program):
    """As in `jaxnet launch ... | head -n 1`: the rank gets SIGTERM and may still write."""
    text = (
        RANK
        + """
def stop(*_):
    print("more", "x" * 200_000)
    sys.exit(4)
signal.signal(signal.SIGTERM, stop)
while True:
    print("again", flush=True)
    time.sleep(0.01)
"""
    )
    command = f"{sys.executable} -m jaxnet launch local --processes 1 -- {program(text)}"
    with Program(["bash", "-c", f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"]) as job:
        assert job.finish() == 4
        assert len(job.out) == 1
        assert job.err[-1].startswith("launch: rank ")
        assert "Traceback" not in "".join(job.err)


PSUM = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

from jaxnet.cluster.start import leave
from jaxnet.cluster.start import start
from jaxnet.errors import exit_cleanly

def main():
    cluster = start()
    mesh = jax.make_mesh((jax.device_count(),), ("d",))
    numbers = jax.make_array_from_callback(
        (jax.device_count(),), NamedSharding(mesh, P("d")), lambda index: jnp.arange(100.0)[index]
    )
    add = jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    total = int(jax.jit(add)(numbers)[0])
    print("\\nsum", total, "of", jax.local_device_count(), "on", cluster.process_index, cluster.process_count)
    return 0

exit_cleanly(main, leave)
"""


def test_four_processes_of_two_devices_add_up(program):
    with launch(program(PSUM), processes=4, options=["--devices-per-process", "2"]) as job:
        assert job.finish() == 0, job.err
        for rank in range(4):
            assert f"[{rank}] sum 28 of 2 on {rank} 4" in job.out


@pytest.mark.parametrize(
    ("failure", "status", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL (9)"),
        pytest.param("raise ValueError('a bug')", 1, "exited with status 1", marks=pytest.mark.slow),
        ("raise InputError('a mistake')", 2, "exited with status 2"),
    ],
)
def test_a_failure_ends_processes_that_wait_in_a_collective(program, failure, status, how):
    """Rank 0 waits for rank 1 in a collective; rank 1 must not wait for rank 0 in JAX's exit hook."""
    text = f"""
import os, signal
import jax
from jax.experimental.multihost_utils import sync_global_devices
from jaxnet.cluster.start import leave
from jaxnet.cluster.start import start
from jaxnet.errors import InputError, exit_cleanly

def main():
    cluster = start()
    sync_global_devices("first")
    if cluster.process_index == 1:
        {failure}
    sync_global_devices("second")
    return 0

exit_cleanly(main, leave)
"""
    with launch(program(text)) as job:
        assert job.finish() == status, job.err
        assert job.err[-1].startswith(f"launch: rank 1 {how} after "), job.err
        assert job.err[-1].endswith("ended the other 1")
