"""The hosts of a job over ssh that is started again: those that answer, and those that may come back."""

import threading
from collections.abc import Sequence
from dataclasses import replace

from jaxnet.cluster.launchers.hosts import Host
from jaxnet.cluster.launchers.ssh_asking import There, ask_all, coordinator_of
from jaxnet.cluster.launchers.ssh_job import SshJob, connections, processes
from jaxnet.cluster.restarting import say
from jaxnet.cluster.supervise import Ended, Rank

_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 10.0


class Hosts:
    """Of a job's hosts, those that take part, asked anew before each attempt.

    Left out are hosts that do not answer, one that failed until the budget was used up, and the last ones where the
    processes of all cannot share the global batch.
    """

    def __init__(self, job: SshJob) -> None:
        self._job = job
        self._fewest = len(job.hosts) if job.min_hosts is None else job.min_hosts
        self._present: list[Host] = list(job.hosts)
        self._failed: set[Host] = set()
        self._unfit: set[int] = set()
        self._had_fewer = False

    def gather(self, attempt: int) -> Sequence[Rank] | str:
        """The connections of an attempt, or why it cannot begin now."""
        answers = self._ask([host for host in self._job.hosts if host not in self._failed], threading.Event())
        there = {host: answer for host, answer in answers.items() if isinstance(answer, There)}
        missing = "; ".join(f"{host.name} ({answer})" for host, answer in answers.items() if isinstance(answer, str))
        chosen = self._fitting(list(there))
        if len(chosen) < self._fewest:
            return f"{len(there)} of {len(self._job.hosts)} hosts answer, wanted {self._fewest}: without {missing}"
        first = self._job.hosts[0]
        if self._job.coordinator is not None and chosen[0] != first:
            return (
                f"--coordinator {self._job.coordinator} is an address of {first.name}, which does not take part; leave"
                " it out, and the first host that answers takes its place"
            )
        self._present = chosen
        if len(chosen) < len(self._job.hosts):
            self._had_fewer = True
            say(f"attempt {attempt} on {_names(chosen)}" + (f"; without {missing}" if missing else ""))
        job = replace(self._job, hosts=chosen)
        return connections(job, *coordinator_of(job, there[chosen[0]]), attempt)

    def without(self, failed: Ended, *, always: bool, began: bool) -> str | None:
        """Leave out the host that failed every time, or a number of processes that never did a step."""
        if always and len(self._present) > self._fewest:
            host = self._present[failed.index]
            self._failed.add(host)
            return f"the others, without {host.name}"
        if began or not self._had_fewer:
            return None  # a mistake in the configuration is none of the number
        count = processes(self._present)
        self._unfit.add(count)
        return f"fewer than {count} processes" if len(self._fitting(self._present)) >= self._fewest else None

    def await_more(self, over: threading.Event) -> str:
        """Wait until with a host that has answered twice in a row the next attempt would have more processes."""
        present, once = list(self._present), set[Host]()
        missing = [host for host in self._job.hosts if host not in present and host not in self._failed]
        while missing and not over.wait(self._job.look_seconds):
            answering = {host for host, answer in self._ask(missing, over).items() if isinstance(answer, There)}
            back, once = answering & once, answering
            next_time = self._fitting([host for host in self._job.hosts if host in present or host in back])
            if processes(next_time) > processes(present):
                return f"{_names([host for host in next_time if host not in present])} answers again"
        return ""

    def _ask(self, hosts: Sequence[Host], over: threading.Event) -> dict[Host, There | str]:
        return ask_all(hosts, self._job, _CONNECT_SECONDS, _ANSWER_SECONDS, over)

    def _fitting(self, hosts: Sequence[Host]) -> list[Host]:
        """The first of them whose processes are not of an unfit number."""
        chosen = list(hosts)
        while processes(chosen) in self._unfit:
            chosen.pop()
        return chosen


def _names(hosts: Sequence[Host]) -> str:
    return ", ".join(host.name for host in hosts)
