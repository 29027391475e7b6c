"""Where it runs: start-up from the environment, checks before anything can hang, and launchers.

Nothing is imported here, so that `jaxnet --help` and the launchers need not load JAX.
"""
