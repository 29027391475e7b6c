"""Make all checks in order, each before those that would hang without it, and show what was found."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jaxnet.cluster.addresses import interface_address, is_loopback
from jaxnet.cluster.agreement import code_digests
from jaxnet.cluster.environment import COORDINATOR, COUNT, INDEX, Place, find_place
from jaxnet.cluster.start import Cluster, start
from jaxnet.errors import InputError
from jaxnet.object_storage.store import remote_url
from jaxnet.operations.doctor.clocks import check_clocks
from jaxnet.operations.doctor.devices import check_devices, check_sum
from jaxnet.operations.doctor.directory import check_shared, check_workdir
from jaxnet.operations.doctor.finding import FAILED, WARNING, Finding, check_same, failed, merged, ok, skipped
from jaxnet.operations.doctor.host import addresses_of, check_machine, check_names, versions
from jaxnet.operations.doctor.links import check_links, measure_links
from jaxnet.operations.doctor.waiting import Talk, TimedOut, Unanswered, within

# A launcher ends all ranks as soon as one has ended. The others wait so long, because rank 0 knows who is missing.
_FIRST_WORD_SECONDS = 5.0


@dataclass(frozen=True)
class Examination:
    """What to examine.

    Attributes:
        workdir: the directory of the run, or its place in object storage; None: none is checked.
        config: settings by key, which must be the same on all ranks; empty without a config.
        installed: by name, what else must be the same on all ranks and depends on installed packages.
        data: opens the data set and returns a description, or raises InputError; None without a config.
        expected: bits a second that every link between hosts should have, or None.
        timeout_seconds: how long to wait for other ranks at each step.
    """

    workdir: Path | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    installed: Mapping[str, str] = field(default_factory=dict)
    data: Callable[[], str] | None = None
    expected: int | None = None
    timeout_seconds: float = 30.0


@dataclass(frozen=True)
class Diagnosis:
    """What all checks found.

    Attributes:
        findings: the lines of the table.
        ranks: how many ranks they are about.
        speaks: whether this process shows them: one of those that joined, and each that could not join.
    """

    findings: list[Finding]
    ranks: int = 1
    speaks: bool = True

    @property
    def healthy(self) -> bool:
        """Whether nothing failed."""
        return all(finding.status != FAILED for finding in self.findings)


def examine(what: Examination) -> Diagnosis:
    """Make all checks. Every process of the job calls this, and all get the same findings if all come."""
    try:
        place = find_place(os.environ)
    except InputError as error:
        cure = f"set {COORDINATOR}, {COUNT} and {INDEX}, or start with jaxnet launch"
        return Diagnosis([failed("place", str(error), cure)])
    own = _check_alone(place, what)
    if broken := _failed_among(own, ("coordinator", "interface")):
        rank = place.process_index or 0
        return Diagnosis([*own, skipped("ranks", f"rank {rank} cannot join, see {', '.join(broken)}")])
    try:
        cluster = start(what.timeout_seconds)
    except InputError as error:
        if place.process_index:
            time.sleep(_FIRST_WORD_SECONDS)
        return Diagnosis([*own, failed("ranks", str(error), "see that all ranks run, and that rank 0 can be called")])
    return _check_together(cluster, what, own)


def _check_alone(place: Place, what: Examination) -> list[Finding]:
    """What a process can check alone."""
    coordinator = place.coordinator.host if place.coordinator else None
    found = check_machine(os.environ, coordinator)
    found += check_names(place, os.environ, what.timeout_seconds)
    if what.workdir:
        found += check_workdir(what.workdir)
    if what.data:
        found.append(_check_data(what.data, what.timeout_seconds))
    return found


def _check_data(data: Callable[[], str], timeout_seconds: float) -> Finding:
    try:
        return ok("data", within(timeout_seconds, data))
    except InputError as error:
        return failed("data", str(error), "prepare it on this host, or name where it is")
    except TimedOut:
        found = f"the data set could not be opened and read within {timeout_seconds:g} s"
        return failed("data", found, "see whether its file server answers, or allow more time with --timeout")
    except Exception as error:  # a damaged file can raise anything in its reader
        found = f"the data set cannot be read: {type(error).__name__}: {' '.join(str(error).split())}"
        return failed("data", found, "prepare it again")


def _check_together(cluster: Cluster, what: Examination, own: Sequence[Finding]) -> Diagnosis:
    """Merge what each rank has found alone, then make the checks that need all ranks."""
    talk = Talk(cluster.process_index, cluster.process_count, what.timeout_seconds)
    findings, speaker = list(own), 0
    try:
        by_rank = talk.gather("own", [asdict(finding) for finding in own])
        findings[:] = merged({rank: [Finding(**each) for each in given] for rank, given in enumerate(by_rank)})
        _check_job(cluster, talk, what, findings)
    except Unanswered as error:
        cure = "read the last lines of those ranks; on slow hosts, allow more time with --timeout"
        findings.append(failed("answers", str(error), cure))
        speaker = next((rank for rank in range(talk.count) if rank not in error.missing), talk.rank)
    return Diagnosis(findings, talk.count, talk.rank == speaker)


def _check_job(cluster: Cluster, talk: Talk, what: Examination, findings: list[Finding]) -> None:
    """Add to `findings` step by step, so that they are complete up to a step that some rank does not answer."""
    # 1. What needs the coordination service only.
    if talk.count > 1:
        hosts = list(dict.fromkeys(talk.gather("hosts", socket.gethostname())))
        findings.append(ok("ranks", f"all {talk.count} came, on {', '.join(hosts)}; found by {cluster.detected_by}"))
        findings += _same(talk, what)
        findings.append(check_clocks(talk))
        if what.workdir and not remote_url(what.workdir):
            findings.append(check_shared(talk, what.workdir))
    # 2. TCP between the hosts.
    slowest = _links(cluster, talk, what, findings) if talk.count > 1 else None
    if broken := _failed_among(findings, ("same versions", "links")):
        findings.append(skipped("all-reduce", f"it could hang or crash: {', '.join(broken)} failed"))
        return
    # 3. Devices, and a sum over them.
    devices = check_devices(talk, what.timeout_seconds)
    findings += devices
    if _failed_among(devices, ("devices",)):
        findings.append(skipped("all-reduce", "devices failed"))
    else:
        findings.append(check_sum(talk, slowest, what.timeout_seconds))


def _failed_among(findings: Sequence[Finding], checks: Sequence[str]) -> list[str]:
    """Those of `checks` that failed."""
    return [finding.check for finding in findings if finding.status == FAILED and finding.check in checks]


def _same(talk: Talk, what: Examination) -> list[Finding]:
    own = {"versions": {**versions(), **what.installed}, "code": code_digests(), "config": dict(what.config)}
    everyone = talk.gather("same", own)
    cures = {
        "versions": "install the same there: pip install -r requirements.lock",
        "code": "copy the same jaxnet to those hosts, or install the same version",
    }
    if any(given["config"] for given in everyone):
        cures["config"] = "start every rank with the same --config and key=value"
    return [
        check_same(f"same {name}", [given[name] for given in everyone], "the same on all ranks", cure)
        for name, cure in cures.items()
    ]


def _links(cluster: Cluster, talk: Talk, what: Examination, findings: list[Finding]) -> float | None:
    """Add the findings about links; return the slowest rate, if one is known."""
    address = _own_address(cluster)
    if "" in talk.gather("addresses", address):
        findings.append(skipped("links", "some host does not know the address at which others reach it"))
        return None
    links, hosts = measure_links(talk, socket.gethostname(), address)
    findings += check_links(links, hosts, what.expected)
    return min((link.rate for link in links if not link.problem), default=None)


def _own_address(cluster: Cluster) -> str:
    """Where CPU collectives of this host listen; empty if that cannot be known."""
    if cluster.address:
        return cluster.address
    if cluster.interface:
        return interface_address(cluster.interface) or ""
    try:
        return next((address for address in addresses_of(socket.gethostname()) if not is_loopback(address)), "")
    except (OSError, TimedOut):
        return ""


# ---- Output --------------------------------------------------------------------------------------------

_HEADINGS = ("status", "check", "found")


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """A table, then one line with a cure for each problem, then the verdict."""
    lines = [_line(*_HEADINGS, diagnosis.findings)]
    lines += [_line(each.status, each.check, each.found, diagnosis.findings) for each in diagnosis.findings]
    wrong = [each for each in diagnosis.findings if each.status in (FAILED, WARNING)]
    lines += [f"{each.status}: {each.check}: {each.found}. Cure: {each.cure}" for each in wrong]
    return "\n".join([*lines, _verdict(diagnosis)])


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """The same as JSON: {"healthy": bool, "ranks": count, "findings": [{check, status, found, cure}]}."""
    findings = [asdict(finding) for finding in diagnosis.findings]
    return json.dumps({"healthy": diagnosis.healthy, "ranks": diagnosis.ranks, "findings": findings}, indent=2)


def _line(status: str, check: str, found: str, findings: Sequence[Finding]) -> str:
    widths = [
        max(len(text) for text in column)
        for column in zip(_HEADINGS[:2], *((each.status, each.check) for each in findings), strict=True)
    ]
    return f"{status:<{widths[0]}}  {check:<{widths[1]}}  {found}"


def _verdict(diagnosis: Diagnosis) -> str:
    failures = sum(finding.status == FAILED for finding in diagnosis.findings)
    warnings = sum(finding.status == WARNING for finding in diagnosis.findings)
    who = f"{diagnosis.ranks} rank{'s' * (diagnosis.ranks > 1)}"
    return f"{who}: {failures} failed, {warnings} warning{'s' * (warnings != 1)}"
