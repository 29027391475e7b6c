"""Runs in object storage (`gs://`, `s3://`), where nothing can be renamed, appended to or locked.

A run writes in a directory of process 0's machine, its mirror, as any local run does. A thread uploads what is
complete.

- `store`: the objects below a URL; fsspec speaks to them.
- `lock`: one run at a time at a URL.
- `steps`: complete checkpoints among the objects.
- `mirror`: the directory, and what it holds at the start; `uploads`: the thread.
- `reading`: what `predict`, `report` and `compare` fetch of a run.

Import from these modules: this one imports nothing, so that a command can ask for `remote_url` before JAX is loaded.
"""
