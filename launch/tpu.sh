#!/bin/bash
# Train on an existing TPU VM slice: copy this folder to every host, install it there, start. Change the values below.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

name=my-slice
zone=us-central2-b
workdir=gs://my-bucket/runs/digits # or a directory that every host has mounted

tpu=(gcloud compute tpus tpu-vm)
git archive --format=tar.gz --output=/tmp/jaxnet.tar.gz HEAD
"${tpu[@]}" scp /tmp/jaxnet.tar.gz "$name:" --zone="$zone" --worker=all
"${tpu[@]}" ssh "$name" --zone="$zone" --worker=all --command='
  mkdir -p jaxnet && tar -xzf jaxnet.tar.gz -C jaxnet && cd jaxnet &&
  python3 -m venv .venv && .venv/bin/pip install --quiet --constraint requirements.lock --editable ".[tpu,gcs]"'

exec .venv/bin/jaxnet launch tpu --name "$name" --zone "$zone" --directory jaxnet --python .venv/bin/python -- \
  train.py --config configs/digits.py --workdir "$workdir" "$@"
