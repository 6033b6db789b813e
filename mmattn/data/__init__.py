"""Data sets: downloaded, converted, drawn, checked."""
