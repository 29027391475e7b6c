"""Checks of hosts, links and devices before the first step."""
