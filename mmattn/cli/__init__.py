"""The commands that `tools/` and `mmattn` run, each with its arguments."""
