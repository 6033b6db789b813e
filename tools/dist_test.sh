#!/usr/bin/env bash
# Tests a checkpoint with one process per GPU.
#   dist_test.sh CONFIG CHECKPOINT GPUS [arguments of test.py]
# It reads the environment variables of dist_train.sh.
set -euo pipefail
if (($# < 3)); then
    echo "usage: ${0##*/} CONFIG CHECKPOINT GPUS [arguments of test.py]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
run_distributed "$3" test.py "$1" "$2" "${@:4}"
