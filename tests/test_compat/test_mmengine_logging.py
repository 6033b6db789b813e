"""Messages of the level DEBUG are not printed, and others are."""

from fresh import run_python

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
    done = run_python('-W', 'ignore', '-c', PROGRAM)
    assert done.stdout == 'shown\na warning\n'
    assert done.stderr == 'DEBUG mmengine asked for\n'
