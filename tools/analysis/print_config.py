"""Prints a config with its bases merged, with the tool of the config's package.

mmdet's also saves it (--save-path DIR/FILE); mmseg's writes `example.py` as it prints.
"""

import sys

from package_tool import package_of_config, run_tool


def main(argv: list[str]):
    run_tool(package_of_config(argv, __doc__), 'misc/print_config.py', argv)


if __name__ == '__main__':
    main(sys.argv[1:])
