"""Messages of the level DEBUG are not printed, and others are."""

import subprocess
import sys

PROGRAM = """
import logging
import mmengine.logging, mmattn
from mmengine.logging import print_log
print_log('hidden', level=logging.DEBUG)
print_log('shown')
print_log('a warning', level=logging.WARNING)
logging.basicConfig(level=logging.DEBUG, format='%(levelname)s %(name)s %(message)s')
print_log('asked for', level=logging.DEBUG)
"""


def test_debug_messages_are_logged_not_printed():
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', PROGRAM], capture_output=True, text=True
    )
    assert done.stdout == 'shown\na warning\n'
    assert done.stderr == 'DEBUG mmengine asked for\n'
