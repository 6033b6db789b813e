"""Keep messages of the level DEBUG from the output of every program.

mmengine's `print_log` prints a message without a logger, whatever its level. So every
import of mmdet prints twice that OneDL, an optional package, is not installed.
"""

import logging

__all__ = ['correct_print_log']


def correct_print_log(mmengine_logging) -> bool:
    """Correct the package `mmengine.logging`.

    A message of the level DEBUG without a logger goes to the standard library's logger
    `mmengine`, which is silent by default.
    """
    original = mmengine_logging.print_log
    if original.__module__ == __name__:
        return False

    def print_log(msg, logger=None, level=logging.INFO):
        if logger is None and level == logging.DEBUG:
            logger = logging.getLogger('mmengine')
        original(msg, logger, level)

    print_log.__doc__ = original.__doc__
    mmengine_logging.print_log = print_log
    return True
