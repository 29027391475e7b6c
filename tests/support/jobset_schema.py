"""The schema of a JobSet: that of the CRD of JobSet 0.9.1 (kubernetes-sigs/jobset, Apache-2.0) without descriptions.

Kubernetes checks a manifest against it, and with `kubectl apply --validate=strict` refuses unknown fields too.
"""

import functools
import gzip
import json
import re
from pathlib import Path

import jsonschema

LABEL = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


@functools.cache
def _schema():
    with gzip.open(Path(__file__).with_name("jobset_crd.json.gz"), "rt") as file:
        return jsonschema.Draft202012Validator(_strict(json.load(file)))


def _strict(schema):
    """The schema, in which no object has fields that it does not name."""
    if isinstance(schema, list):
        return [_strict(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if schema.get("properties") else {}
    return closed | {key: _strict(inner) for key, inner in schema.items()}


def wrong(jobset):
    """What does not fit, a line each. Names are no part of the CRD: other controllers check them."""
    return [f"{error.json_path}: {error.message}" for error in _schema().iter_errors(jobset)] + _wrong_names(jobset)


def _wrong_names(value, inside=""):
    if isinstance(value, list):
        return [line for inner in value for line in _wrong_names(inner, inside)]
    if not isinstance(value, dict):
        return []
    wanted = _VARIABLE if inside == "env" else LABEL
    given = value.get("name", "x")
    lines = [] if wanted.fullmatch(given) else [f"{inside}: {given!r} is no name"]
    return lines + [line for key, inner in value.items() for line in _wrong_names(inner, key)]
