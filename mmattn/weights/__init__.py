"""Weights: their names, and how they are found, downloaded, read and loaded.

A module is imported when it is used: `names` needs neither torch nor mmengine.
"""
