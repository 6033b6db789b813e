"""Share what every Triton kernel needs."""
