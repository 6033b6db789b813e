"""Train the networks of a claim, one run for each network and seed.

    python -m projects.evidence.run interaction

A finished run leaves a row in `docs/evidence/runs.csv`. Runs that have a row are
skipped, so the same command continues a series. All networks are run with one seed
before the next seed begins. Each command trains one network at a time on one thread;
several may run side by side.
"""

import argparse
from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path

import torch

from mmattn.analysis import count
from mmattn.cli.terminal import command_parser, run_main
from mmattn.errors import UserError
from projects.evidence.claim import ROOT, Claim, Network
from projects.evidence.claims import CLAIMS
from projects.evidence.demo import Demo
from projects.evidence.demo import train as train_demo
from projects.evidence.images import load_splits
from projects.evidence.rows import Row, add_row, locked, read_rows
from projects.evidence.training import build, train
from tools.benchmark.measure import commit, machine

ROWS = ROOT / 'docs/evidence/runs.csv'
WORK_DIRS = ROOT / 'work_dirs/evidence'


@cache
def counted(network: Network) -> dict[str, int]:
    """Return the parameters and FLOPs of a network."""
    model = network.model if isinstance(network, Demo) else build(network)
    found = count(model, network.shape)
    return dict(parameters=found.params, flops=found.flops)


def check_sizes(claim: Claim) -> None:
    """Raise a `ValueError` if networks that must be alike differ in parameters."""
    for group in claim.alike:
        sizes = {name: counted(claim.networks[name])['parameters'] for name in group}
        if max(sizes.values()) > (1 + claim.tolerance) * min(sizes.values()):
            raise UserError(
                f'parameters must be within {claim.tolerance:.0%} of each other, got '
                f'{sizes}'
            )


def execute(network: Network, seed: int, folder: Path) -> dict:
    """Do a run, and return its metrics."""
    if isinstance(network, Demo):
        return train_demo(network, seed, folder)
    return train(network, seed, load_splits(), folder)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('claims', nargs='+', choices=CLAIMS, metavar='CLAIM')
    parser.add_argument('--seeds', nargs='+', type=int, help="default: the claim's")
    parser.add_argument('--networks', nargs='+', help="default: the claim's")
    parser.add_argument('--rows', type=Path, default=ROWS, help='csv file of the runs')
    parser.add_argument('--work-dirs', type=Path, default=WORK_DIRS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    torch.set_num_threads(1)
    about = dict(
        commit=commit(),
        torch=torch.__version__,
        machine=machine('cpu'),
        date=date.today().isoformat(),
    )
    tried = set()
    for claim in map(CLAIMS.get, args.claims):
        check_sizes(claim)
        # Rows are read again before each run, since other commands may add some.
        while runs := [
            (name, seed)
            for name, seed in claim.pending(
                read_rows(args.rows), args.seeds or claim.seeds
            )
            if name in (args.networks or claim.networks)
            and (claim.networks[name].hash, seed) not in tried
        ]:
            name, seed = runs[0]
            network = claim.networks[name]
            tried.add((network.hash, seed))
            folder = args.work_dirs / f'{network.hash}_{seed}'
            with locked(folder, wait=False) as ours:
                metrics = execute(network, seed, folder) if ours else {}
            if metrics:
                facts = dict(network=name, seed=seed, hash=network.hash)
                facts |= counted(network) | about | dict(images=network.images)
                metrics = {key: float(f'{value:.6g}') for key, value in metrics.items()}
                add_row(args.rows, Row(facts, metrics))
                print(name, seed, metrics, flush=True)
    print('no run is left, except for other commands')


if __name__ == '__main__':
    run_main(main)
