# What dist_*.sh and slurm_*.sh share; they source it from any folder.

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$tools")
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

# The active environment's python, else `make`'s, else the system's.
python=python
if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} && -x $root/.venv/bin/python ]]; then
    python=$root/.venv/bin/python
fi

# run_distributed GPUS TOOL ARGUMENTS...
run_distributed() {
    local gpus=$1 tool=$2 nodes=${NNODES:-1} where
    if [[ $nodes != 1 && -z ${MASTER_ADDR:-} ]]; then
        echo "NNODES=$nodes needs MASTER_ADDR, the address of the first machine" >&2
        exit 2
    fi
    if [[ $nodes != 1 ]]; then
        # The machines meet at the first one, in any order, and get their ranks there.
        where=(
            --rdzv-backend=c10d
            --rdzv-endpoint="$MASTER_ADDR:${PORT:-29500}"
            --rdzv-id="${RDZV_ID:-mmattn}"
        )
        if [[ -n ${NODE_RANK:-} ]]; then
            where+=(--rdzv-conf="is_host=$((NODE_RANK == 0))")
        fi
        if [[ -n ${LOCAL_ADDR:-} ]]; then
            where+=(--local-addr="$LOCAL_ADDR")
        fi
    elif [[ -z ${PORT:-} ]]; then
        where=(--standalone)
    else
        where=(--master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="$PORT")
    fi
    # TORCHRUN_ARGS comes last, so it wins; it is split into words on purpose.
    exec "$python" -m mmattn.cli.torchrun \
        --nnodes="$nodes" --nproc_per_node="$gpus" "${where[@]}" ${TORCHRUN_ARGS:-} \
        "$tools/$tool" "${@:3}" --launcher pytorch
}

# free_port prints a random port on which nothing listens here.
free_port() {
    local port
    while port=$((20000 + RANDOM % 10000)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# run_slurm PARTITION JOB_NAME TOOL ARGUMENTS...
run_slurm() {
    local gpus=${GPUS:-8}
    local per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}
    # mmengine's fixed default would let two jobs on one machine meet. In a job script
    # this machine has rank 0, so the port is free there.
    export MASTER_PORT=${MASTER_PORT:-$(free_port)}
    exec srun --partition="$1" --job-name="$2" --gres="gpu:$per_node" \
        --ntasks="$gpus" --ntasks-per-node="$per_node" \
        --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
        "$python" -u "$tools/$3" "${@:4}" --launcher slurm
}
