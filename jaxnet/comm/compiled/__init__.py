"""The compiled program: the options that keep a plan whole, and the check that it was kept."""
