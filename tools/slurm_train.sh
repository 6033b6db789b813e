#!/usr/bin/env bash
# Trains as a Slurm job with one task per GPU.
#   slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py]
# GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS as for mmdetection's script.
set -euo pipefail
if (($# < 4)); then
    echo "usage: ${0##*/} PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
run_slurm "$1" "$2" train.py "$3" --work-dir="$4" "${@:5}"
