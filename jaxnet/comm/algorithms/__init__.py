"""Sums of one message over mesh axes: XLA's own, and those made of permutes."""
