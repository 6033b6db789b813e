#!/usr/bin/env bash
# Trains with one process per GPU.
#   dist_train.sh CONFIG GPUS [arguments of train.py]
# NNODES, NODE_RANK, MASTER_ADDR and PORT as for mmdetection's script; one machine
# without PORT takes a free port. TORCHRUN_ARGS goes to torchrun: with --max-restarts=3
# a run that loses a process starts again, and with --resume it goes on.
set -euo pipefail
if (($# < 2)); then
    echo "usage: ${0##*/} CONFIG GPUS [arguments of train.py]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
run_distributed "$2" train.py "$1" "${@:3}"
