"""Plot curves of a run or time its iterations, from its `vis_data/scalars.json`.

    analyze_logs.py plot_curve LOG.json ... --keys loss coco/bbox_mAP --out curves.png
    analyze_logs.py cal_train_time LOG.json ...

The tool of mmpretrain reads the logs of all packages by default, since only that one
supports runs counted in iterations and in epochs. `--package mmdet` and
`--package mmseg` run the tools of those packages. mmdet's requires
`--style default`, because matplotlib does not know its default style. mmseg's
requires seaborn and has no cal_train_time.
"""

import argparse
import sys

from mmattn.cli.package_tool import DISTRIBUTIONS, run_tool


def main(argv: list[str]):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=not argv,
        allow_abbrev=False,
    )
    parser.add_argument('--package', choices=DISTRIBUTIONS, default='mmpretrain')
    if not argv or argv[0] in ('-h', '--help'):
        parser.print_help()
        raise SystemExit(0 if argv else 2)
    args, rest = parser.parse_known_args(argv)
    run_tool(args.package, 'analysis_tools/analyze_logs.py', rest)


if __name__ == '__main__':
    main(sys.argv[1:])
