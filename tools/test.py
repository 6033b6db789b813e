"""Evaluates a checkpoint with the test set and metrics of its config."""

from pathlib import Path

from launch import build_runner, load_config, make_parser
from mmengine.config import Config, ConfigDict


def parse_args():
    parser = make_parser(__doc__)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out', help='.pkl file to dump the predictions to')
    parser.add_argument('--show', action='store_true', help='show the predictions')
    parser.add_argument('--show-dir', help='folder to save drawn predictions in')
    parser.add_argument(
        '--wait-time', type=float, default=2, help='seconds each image is shown'
    )
    parser.add_argument('--tta', action='store_true', help='test-time augmentation')
    args = parser.parse_args()
    if args.out is not None and Path(args.out).suffix not in ('.pkl', '.pickle'):
        parser.error(f'--out must end in .pkl or .pickle, got {args.out}')
    if not Path(args.checkpoint).is_file() and '://' not in args.checkpoint:
        parser.error(f'no checkpoint at {args.checkpoint}')
    return args


def draw_predictions(cfg: Config, show: bool, show_dir: str | None, wait_time: float):
    """Switches on the visualisation hook, whose arguments each package names anew."""
    if 'visualization' not in cfg.get('default_hooks', {}):
        raise ValueError('drawing needs a `visualization` hook in default_hooks')
    hook = cfg.default_hooks.visualization
    if cfg.default_scope == 'mmpretrain':
        hook.update(enable=True, out_dir=show_dir)
    else:
        hook.draw = True
        if cfg.default_scope == 'mmdet':
            hook.test_out_dir = show_dir
        elif show_dir is not None:
            cfg.visualizer.save_dir = show_dir
    if show:
        hook.update(show=True, wait_time=wait_time)


def augment_at_test_time(cfg: Config):
    if 'tta_model' not in cfg or 'tta_pipeline' not in cfg:
        raise ValueError('--tta needs `tta_model` and `tta_pipeline` in the config')
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline


def dump_metric(default_scope: str, path: str):
    if default_scope == 'mmdet':
        from mmdet.evaluation import DumpDetResults

        return DumpDetResults(out_file_path=path)
    from mmengine.evaluator import DumpResults

    return DumpResults(out_file_path=path)


def main():
    args = parse_args()
    cfg = load_config(args)
    cfg.load_from = args.checkpoint
    if args.show or args.show_dir:
        draw_predictions(cfg, args.show, args.show_dir, args.wait_time)
    if args.tta:
        augment_at_test_time(cfg)
    runner = build_runner(cfg)
    if args.out is not None:
        runner.test_evaluator.metrics.append(dump_metric(cfg.default_scope, args.out))
    runner.test()


if __name__ == '__main__':
    main()
