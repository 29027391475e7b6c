"""Emulate a cluster on one machine: hosts with their own networks, joined by links of a chosen rate."""
