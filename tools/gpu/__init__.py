"""Compile, execute and count kernels for GPUs without a GPU."""
