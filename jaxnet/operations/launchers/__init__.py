"""Launchers: start the processes of one job here, over ssh, or through a cluster manager."""
