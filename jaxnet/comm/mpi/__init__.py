"""Sums across the ranks of mpirun."""
