#!/usr/bin/env bash
# Tests a checkpoint as a Slurm job with one task per GPU.
#   slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py]
# It reads the environment variables of slurm_train.sh.
set -euo pipefail
if (($# < 4)); then
    echo "usage: ${0##*/} PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
run_slurm "$1" "$2" test.py "$3" "$4" "${@:5}"
