"""Command lines for users, and for developers `python -m tools.benchmark.op`."""
