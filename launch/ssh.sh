#!/bin/bash
# Train on hosts that ssh reaches. They share this folder, with its .venv, under the same path. Change the values below.
#
# First check that `ssh node1 true` works without a question, and that `hostname -i` prints no 127.x address there. So
# for each host.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

hosts=node1,node2
workdir=/shared/runs/digits

exec .venv/bin/jaxnet launch ssh --hosts "$hosts" --logs "$workdir/logs" -- \
  train.py --config configs/digits.py --workdir "$workdir" "$@"
