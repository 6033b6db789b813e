"""Print a config with its bases merged, by the tool of the config's package.

The tool of mmdet also saves the config (--save-path DIR/FILE). mmseg's writes
`example.py` besides printing.
"""

import sys

from mmattn.cli.package_tool import package_of_config, run_tool


def main(argv: list[str]):
    run_tool(package_of_config(argv, __doc__), 'misc/print_config.py', argv)


if __name__ == '__main__':
    main(sys.argv[1:])
