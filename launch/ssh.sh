#!/bin/bash
# Train on hosts that ssh reaches. They share this folder at the same path, with its .venv; change the values below.
#
# Before: `ssh node1 true` and `ssh node2 true` work without a question, and `hostname -i` is no 127.x address there.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

hosts=node1,node2
workdir=/shared/runs/digits

exec .venv/bin/jaxnet launch ssh --hosts "$hosts" --logs "$workdir/logs" -- \
  train.py --config configs/digits.py --workdir "$workdir" "$@"
