"""A config from its file and the command line, checked before anything runs."""
