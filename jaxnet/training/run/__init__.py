"""A run from its beginning to its end: the loop, what it writes, how it is watched, and how it is stopped."""
