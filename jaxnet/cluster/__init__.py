"""What a process of a run needs: its place, its peers, and agreement with them before anything can hang.

Nothing is imported here, so that `jaxnet --help` and the launchers need not load JAX.
"""
