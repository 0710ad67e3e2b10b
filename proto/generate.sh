#!/usr/bin/env bash
# Regenerate the checked-in stubs. `tests/test_layout.py` fails when they differ from what this makes.
set -eu
cd "$(dirname "$0")/.."
out=${1:-src}
python -m grpc_tools.protoc -I src -I "$(python -c 'import grpc_tools,os;print(os.path.dirname(grpc_tools.__file__))')/_proto" \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" src/baton/proto/v1/*.proto
