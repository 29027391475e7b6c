"""A run, from its beginning to its summary: `trainer` tells it, `prepare` makes its parts, `loop` does its steps."""
