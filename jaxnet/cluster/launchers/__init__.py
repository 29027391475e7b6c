"""Launchers for clusters: what each starts is made as text first, which `--dry-run` prints and tests run.

Nothing here imports JAX: the machine that submits a job need not have it.
"""
