"""Weights: their names, and how they are found, downloaded, read and loaded.

No module requires mmengine, and `names` not even torch. `resolve` says how weights are
named, and `load` by which rules they are loaded.
"""
