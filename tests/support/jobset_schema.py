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
    """What does not fit, a line each."""
    return [f"{error.json_path}: {error.message}" for error in _schema().iter_errors(jobset)]
