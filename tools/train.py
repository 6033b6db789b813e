"""Trains what a config of mmdet, mmsegmentation or mmpretrain describes."""

from launch import build_runner, load_config, make_parser


def parse_args():
    parser = make_parser(__doc__)
    parser.add_argument(
        '--amp', action='store_true', help='train with automatic mixed precision'
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate with the batch size, from the base batch size '
        'in the config',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='checkpoint to resume from; without a value, the latest in the work dir',
    )
    return parser.parse_args()


def main():
    args = parse_args()
    cfg = load_config(args)
    if args.amp:
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            raise ValueError(
                f'--auto-scale-lr needs auto_scale_lr.base_batch_size in {args.config}'
            )
        cfg.auto_scale_lr.enable = True
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume
    build_runner(cfg).train()


if __name__ == '__main__':
    main()
