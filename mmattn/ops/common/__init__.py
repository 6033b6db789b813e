"""Share what every operator needs."""
