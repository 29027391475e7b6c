"""Links that fail between the hosts of a lab: for a while, and for ever."""

import re
import subprocess
import sys
import time

from benchmarks.faulting.rounds import SHORT_LIMITS, Outcome, Round, train_command
from benchmarks.faulting.watched import Unmet, Watched, descendants

_CUT_SECONDS = 5.0
_MISSING = {0: "rank 0, through which ranks talk, does not answer", 1: "rank 1 is silent"}


_LOSSY_STEPS = 8
_HIERARCHY = ("strategy=hierarchical", "hosts=2")
_LOSSY = ("rate", "10mbit", "burst", "3kb", "limit", "4kb")  # what comes while three packets wait is dropped


def cut_for_a_while(job: Round) -> list[Outcome]:
    """The link of a random host is down for five seconds: nothing ends, and the run goes on by itself."""
    return _cut_for_a_while(job)


def cut_in_a_hierarchy(job: Round) -> list[Outcome]:
    """The same between two hosts of two devices, whose gradients are summed in each host first."""
    return _cut_for_a_while(job, *_HIERARCHY, devices=2)


def lossy_in_a_hierarchy(job: Round) -> list[Outcome]:
    """The link of a random host drops what comes while a few packets wait, for so many steps; the run goes on."""
    outcomes = []
    with _lab(job, *_HIERARCHY, devices=2) as run:
        for _ in range(job.count):
            run.wait_for_step(time.monotonic(), job.draw.randint(3, 10))
            port = f"port{job.draw.randrange(2)}"
            _at_switch(run, "tc", "qdisc", "add", "dev", port, "root", "tbf", *_LOSSY)
            begun = time.monotonic()
            first = run.wait_for_step(begun).at - begun
            run.wait_for_step(begun, _LOSSY_STEPS)
            dropped = re.search(r"dropped (\d+)", _at_switch(run, "tc", "-s", "qdisc", "show", "dev", port))
            _at_switch(run, "tc", "qdisc", "del", "dev", port, "root")
            lost = int(dropped[1]) if dropped else 0
            note = f"{lost} packets lost in {_LOSSY_STEPS} steps"
            outcomes.append(Outcome(lost > 0, 0, first, note=note))
        finished = run.finish() == 0 and job.finished()
    same = job.same(2, *_HIERARCHY)
    return [outcome._replace(survived=outcome.survived and finished, same=same) for outcome in outcomes]


def _cut_for_a_while(job: Round, *overrides: str, devices: int = 1) -> list[Outcome]:
    outcomes = []
    with _lab(job, *overrides, devices=devices) as run:
        for _ in range(job.count):
            run.wait_for_step(time.monotonic(), job.draw.randint(3, 15))
            host, down = job.draw.randrange(2), time.monotonic()
            _set_link(run, host, "down")
            time.sleep(_CUT_SECONDS)
            _set_link(run, host, "up")
            up = time.monotonic()
            outcomes.append(Outcome(True, 0, run.wait_for_step(up).at - down))
        finished = run.finish() == 0 and job.finished()
    return [outcome._replace(survived=finished, same=job.same(devices, *overrides)) for outcome in outcomes]


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
    close = "" if hosts_after == 2 else job.near()
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


def _lab(job: Round, *overrides: str, hosts: int = 2, devices: int = 1) -> Watched:
    places = ["--hosts", str(hosts), "--devices-per-process", str(devices)]
    command = [sys.executable, "-m", "jaxnet", "lab", *places, "--"]
    return job.start([*command, *train_command(job.workdir, *overrides)])


def _set_link(run: Watched, host: int, state: str) -> None:
    _at_switch(run, "ip", "link", "set", f"port{host}", state)


def _at_switch(run: Watched, *command: str) -> str:
    """What a command says at the switch, whose network is that of the lab's first process."""
    inside = ["nsenter", f"--net=/proc/{descendants(run.pid)[0]}/ns/net", *command]
    done = subprocess.run(inside, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unmet(f"{' '.join(inside)}: {done.stderr.strip()}")
    return done.stdout
