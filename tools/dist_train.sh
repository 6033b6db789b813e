#!/usr/bin/env bash
# Trains with one process per GPU.
#   dist_train.sh CONFIG GPUS [arguments of train.py]
# On several machines run it on each, with NNODES (2, or 1:4 for one to four), and
# MASTER_ADDR and PORT of the first, on which they meet. NODE_RANK may say that a machine
# is the first one (0) or not, RDZV_ID tells runs apart, and LOCAL_ADDR is the address by
# which the others reach this machine. One machine without PORT takes a free port.
# TORCHRUN_ARGS goes to torchrun: with --max-restarts=3 a run that loses a process starts
# again, and with --resume it goes on.
set -euo pipefail
if (($# < 2)); then
    echo "usage: ${0##*/} CONFIG GPUS [arguments of train.py]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
run_distributed "$2" train.py "$1" "${@:3}"
