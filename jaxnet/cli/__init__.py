"""The `jaxnet` command."""
