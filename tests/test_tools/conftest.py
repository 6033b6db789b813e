from tool_runs import tool, toys, work  # noqa: F401  fixtures
