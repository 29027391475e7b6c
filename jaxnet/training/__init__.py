"""State, step, loop: how a model is trained."""
