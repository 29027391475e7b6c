"""The kinds of `jaxnet launch`: each is a module with `add_kind`."""
