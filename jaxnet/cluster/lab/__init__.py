"""The lab: one Linux machine as several hosts, joined by links of a chosen speed.

Real processes, real TCP, real collectives; only the wires are pretended. Nothing of it has a name outside,
so that nothing can be left behind: see `isolated`.
"""
