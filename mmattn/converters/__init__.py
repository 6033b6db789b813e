"""Checkpoints of others, converted, and our own, ready to publish."""
