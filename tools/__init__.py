"""Command lines for users, and those of developers: `python -m tools.benchmark.op`."""
