"""`python -m jaxnet` is the `jaxnet` command."""

from jaxnet.cli.main import main

main()
