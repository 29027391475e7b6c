"""The operator's wing: launchers, supervision and restarts, the doctor (finds faults), the lab (emulates hosts)."""
