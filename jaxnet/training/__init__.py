"""How a model is trained: here what a config names; `settings` checks it, `steps` computes, `run` does it."""
