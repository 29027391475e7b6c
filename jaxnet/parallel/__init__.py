"""The training step under each kind of strategy: replicated, sharded, local, in pieces."""
