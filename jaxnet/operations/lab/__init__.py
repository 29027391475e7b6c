"""Hosts emulated on one machine, with links of a chosen speed."""
