#!/bin/sh
# Make the environment of the peers: PyTorch and ONNX Runtime, beside jaxnet's and never a dependency of it.
set -eu

directory=${1:-.venv-torch}
python=${PYTHON:-python3}

"$python" -m venv "$directory"
"$directory/bin/pip" install --quiet torch==2.13.0 numpy onnx onnxruntime
"$directory/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
