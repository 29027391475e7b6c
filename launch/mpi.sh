#!/bin/bash
# Printed in /shared/jaxnet by:
#   .venv/bin/jaxnet launch mpi --processes 2 --hosts node1,node2 --transport mpi --dry-run -- \
#     train.py --config configs/digits.py --workdir runs/digits transport=mpi
# Made by `jaxnet launch mpi`.
set -euo pipefail

cd -- /shared/jaxnet
export PYTHONUNBUFFERED=1
unset JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID JAX_COORDINATOR_BIND_ADDRESS  # those of another job

command=(
  /shared/jaxnet/.venv/bin/python
  -m
  mpi4py
  train.py
  --config
  configs/digits.py
  --workdir
  runs/digits
  transport=mpi
)

exec mpirun -n 2 --host node1:1,node2:1 -x PYTHONUNBUFFERED \
  "${command[@]}"
