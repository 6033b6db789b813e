"""Draw a run and write its report; see `mmattn report`."""

from mmattn.commands.report import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
