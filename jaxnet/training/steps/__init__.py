"""What is computed: the training step in its modes, the state between steps, and evaluation."""
