"""What was found, as a person and as a program reads it."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from jaxnet.cluster.doctor.examine import Diagnosis
from jaxnet.cluster.doctor.finding import FAILED, WARNING, Finding

_HEADINGS = ("status", "check", "found")


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """One table, then a line with its cure for everything that is wrong, then the verdict."""
    lines = [_line(*_HEADINGS, diagnosis.findings)]
    lines += [_line(each.status, each.check, each.found, diagnosis.findings) for each in diagnosis.findings]
    wrong = [each for each in diagnosis.findings if each.status in (FAILED, WARNING)]
    lines += [f"{each.status}: {each.check}: {each.found}. Cure: {each.cure}" for each in wrong]
    return "\n".join([*lines, _verdict(diagnosis)])


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """The same for programs: {"healthy": bool, "ranks": how many, "findings": [{check, status, found, cure}]}."""
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
    return f"{who}: {failures} failed, {warnings} to be warned of"
