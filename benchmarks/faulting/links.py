"""Links that fail between the hosts of a lab: for a while, and for ever."""

import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.faulting.rounds import SHORT_LIMITS, Outcome, Round, final_state, train_command
from benchmarks.faulting.watched import Unmet, Watched, descendants

_CUT_SECONDS = 5.0
_MISSING = {0: "rank 0, through which ranks talk, does not answer", 1: "rank 1 is silent"}
_TOLERANCE = 1e-4  # of parameters trained in part on another number of hosts


def cut_for_a_while(job: Round) -> list[Outcome]:
    """The link of a random host is down for five seconds: nothing ends, and the run goes on by itself."""
    outcomes = []
    with _lab(job) as run:
        for _ in range(job.count):
            run.wait_for_step(time.monotonic(), job.draw.randint(3, 15))
            host, down = job.draw.randrange(2), time.monotonic()
            _set_link(run, host, "down")
            time.sleep(_CUT_SECONDS)
            _set_link(run, host, "up")
            up = time.monotonic()
            outcomes.append(Outcome(True, 0, run.wait_for_step(up).at - down))
        finished = run.finish() == 0 and job.finished()
    return [outcome._replace(survived=finished, same=job.same()) for outcome in outcomes]


def cut_for_ever(job: Round) -> list[Outcome]:
    """The link of a random host goes down: the other names it and ends; both, started again, go on."""
    return _gone(job, hosts_after=2)


def host_lost(job: Round) -> list[Outcome]:
    """The link of a random host goes down: the other names it and ends; one host alone goes on."""
    return _gone(job, hosts_after=1)


def _gone(job: Round, hosts_after: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    fault: tuple[float, int] | None = None
    for _ in range(job.count):
        with _lab(job, *SHORT_LIMITS) as run:
            if fault:
                outcomes.append(_went_on(run, *fault))
            fault = _cut(job, run)
    assert fault is not None
    with _lab(job, *SHORT_LIMITS, hosts=hosts_after) as run:
        outcomes.append(_went_on(run, *fault))
        finished = run.finish() == 0 and job.finished()
    same = job.same() if hosts_after == 2 else None
    close = "" if hosts_after == 2 else _furthest(job)
    return [outcome._replace(survived=finished, same=same, note=close) for outcome in outcomes]


def _cut(job: Round, run: Watched) -> tuple[float, int]:
    """When the link of a host was cut, for which the job ended, and the last step before it."""
    run.wait_for_step(count=job.draw.randint(10, 20))
    host, down = job.draw.randrange(2), time.monotonic()
    _set_link(run, host, "down")
    run.wait_for(rf"^\[{1 - host}\] watchdog: .*{_MISSING[host]}", down)
    if run.finish() != 79:
        raise Unmet("it did not end with the status of the watchdog")
    return down, int(run.find(r"^\[0\] step +(\d+)/")[-1][1][1])


def _went_on(run: Watched, down: float, step: int) -> Outcome:
    resumed = int(run.wait_for(r"^\[0\] continuing .* from step (\d+)$")[1][1])
    return Outcome(True, step - resumed, run.wait_for_step().at - down)


def _lab(job: Round, *overrides: str, hosts: int = 2) -> Watched:
    command = [sys.executable, "-m", "jaxnet", "lab", "--hosts", str(hosts), "--devices-per-process", "1", "--"]
    return job.start([*command, *train_command(job.workdir, *overrides)])


def _set_link(run: Watched, host: int, state: str) -> None:
    """At the switch, whose network is that of the lab's first process."""
    first = descendants(run.pid)[0]
    _run(["nsenter", f"--net=/proc/{first}/ns/net", "ip", "link", "set", f"port{host}", state])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unmet(f"{' '.join(command)}: {done.stderr.strip()}")


def _furthest(job: Round) -> str:
    """How far parameters are from those of an unbroken run."""
    got, wanted = final_state(job.workdir / "checkpoints"), job.unbroken.state()
    furthest = max(float(np.abs(got[name] - wanted[name]).max()) for name in wanted if name.startswith("params"))
    if furthest > _TOLERANCE:
        raise Unmet(f"parameters differ by {furthest:.1e} from those of an unbroken run")
    return f"parameters within {furthest:.1e}"
