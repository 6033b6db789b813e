"""Map the tests to the lines of `mmattn` that they run: a plugin of pytest.

Each process writes its tests to the folder that the environment names, also those that
a test starts.
"""

import collections
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAP = 'MMATTN_LINE_MAP'
INTERPRETED = 'TRITON_INTERPRET'


class LineMap:
    """Note the lines of mmattn that each test runs, and its CPU seconds.

    Lines that run while a module is imported count for the test that imported it.
    """

    def __init__(self, folder: Path):
        self.folder, self.tests = folder, []
        self.lines, self.passed = set(), False
        self.package = f'{ROOT / "mmattn"}{os.sep}'
        events, self.own = sys.monitoring.events, sys.monitoring.COVERAGE_ID
        sys.monitoring.use_tool_id(self.own, 'line_map')
        sys.monitoring.register_callback(self.own, events.LINE, self.note)
        sys.monitoring.set_events(self.own, events.LINE)

    def note(self, code, line):
        if code.co_filename.startswith(self.package):
            self.lines.add((code.co_filename[len(str(ROOT)) + 1 :], line))
        return sys.monitoring.DISABLE  # until the next test

    def pytest_runtest_logstart(self):
        self.lines, self.passed = set(), False
        sys.monitoring.restart_events()
        self.begin = sum(os.times()[:4])

    def pytest_runtest_logreport(self, report):
        if report.when == 'call':
            self.passed = report.passed

    def pytest_runtest_logfinish(self, nodeid):
        if not self.passed:
            return
        files = collections.defaultdict(list)
        for file, line in self.lines:
            files[file].append(line)
        seconds = sum(os.times()[:4]) - self.begin
        interpreted = os.environ.get(INTERPRETED) == '1'
        self.tests.append([nodeid, interpreted, seconds, files])

    def pytest_sessionfinish(self):
        sys.monitoring.set_events(self.own, 0)
        if self.tests:
            path = self.folder / f'{os.getpid()}.json'
            path.write_text(json.dumps(self.tests))


def pytest_configure(config):
    if MAP in os.environ:
        config.pluginmanager.register(LineMap(Path(os.environ[MAP])))
