"""Write a report of a run, finished or not: figures, times, curves and pictures.

    mmattn report work_dirs/mask_rcnn_ivit_n_hela

writes `report.md` into the work dir, with `curves.png`, `predictions.png` beside the
ground truth, `worst.png` with the images of the most missed and false objects, and
`summary.json`: the last metrics, the minutes that the run took, and the machine. A
diagnosis names what in the data, the config or the log may keep the metrics low. The
report also shows what `mmattn test WORK_DIR --per-class --confusion` has written. What
a run does not have yet is left out: curves before the first record of its log,
predictions before the first checkpoint.
"""

import argparse
import json
from pathlib import Path

from mmattn.errors import UserError

from ..files.config_files import merge_options
from ..results import SCORE
from .terminal import add_cfg_options, command_parser, config_file, config_of, positive


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('run', metavar='MODEL', help='work dir of a run, or a config')
    parser.add_argument(
        '--work-dir', help="of a config; default: the config's, else work_dirs/<name>"
    )
    parser.add_argument('--num-images', type=positive, default=4)
    parser.add_argument(
        '--checked',
        type=positive,
        default=100,
        metavar='N',
        help='validation images, evenly spaced, that the worst are taken from and the '
        'diagnosis looks at (default: %(default)s)',
    )
    parser.add_argument(
        '--score-thr', type=float, default=SCORE, help='lowest score that is drawn'
    )
    add_cfg_options(parser)
    args = parser.parse_args(argv)
    try:
        if Path(args.run).is_dir():
            from ..apis.find import read_run

            args.cfg = read_run(Path(args.run))
            args.config = args.cfg.filename
            merge_options(args.cfg, args.cfg_options)
        else:
            args.config = config_file(args.run)
    except (FileNotFoundError, ValueError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    return args


def main(argv: list[str] | None = None):
    args = parse_args(argv)
    from mmengine.registry import init_default_scope
    from tqdm import tqdm

    from ..analysis.diagnosis import diagnose
    from ..analysis.samples import Validation, spaced
    from ..analysis.training_logs import last_log, summarize, work_dir_of
    from ..apis.find import run_checkpoint
    from . import run_report

    cfg = config_of(args)
    init_default_scope(cfg.default_scope)
    work_dir = Path(args.work_dir or work_dir_of(args.config, cfg))
    try:
        checkpoint = run_checkpoint(work_dir, cfg=cfg)
    except FileNotFoundError:
        checkpoint = None
    records, run = last_log(work_dir)
    if checkpoint is None and not records:
        raise UserError(
            f'{work_dir} holds no run: neither a checkpoint nor a record of a log; '
            f'train first, or pass --work-dir'
        )
    metrics = run_report.METRICS.get(cfg.default_scope, ())
    drawn, summary = [], None
    if records:
        summary = summarize(args.config, run, records, metrics)
        (work_dir / 'summary.json').write_text(json.dumps(summary, indent=2) + '\n')
        print(
            ', '.join(f'{name} {value}' for name, value in summary['metrics'].items())
        )
        run_report.draw_curves(records, metrics, work_dir / 'curves.png')
        if not run_report.draw_rates(records, work_dir / 'learning_rates.png'):
            (work_dir / 'learning_rates.png').unlink(missing_ok=True)  # of another run
        drawn.append(f'curves: {work_dir / "curves.png"}')
    else:
        drawn.append('no curves: the log has no record yet')
    worst, samples = [], []
    if checkpoint is not None:
        run = Validation(cfg, str(checkpoint))
        predictions = work_dir / 'predictions.png'
        run_report.draw_samples(
            run, spaced(len(run), args.num_images), args.score_thr, predictions
        )
        drawn.append(
            f'predictions of {checkpoint.name} beside ground truth: {predictions}'
        )
        images = run.samples(args.checked)
        total = min(len(run), args.checked)
        samples = list(tqdm(images, 'worst images', total, disable=None))
        worst = run_report.draw_worst(
            run, samples, args.num_images, args.score_thr, work_dir / 'worst.png'
        )
        drawn.append(f'worst images: {work_dir / "worst.png"}')
    else:
        drawn.append('no predictions: the run has no checkpoint yet')
    print(', '.join(drawn))
    findings = diagnose(cfg, samples, records)
    for finding in findings:
        print(f'diagnosis: {finding}')
    report = run_report.write_report(
        work_dir, Path(args.config).stem, summary, findings, worst, checkpoint
    )
    print(f'report: {report}')
