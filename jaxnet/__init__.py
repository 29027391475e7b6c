"""jaxnet: synchronous data-parallel training in which how gradients travel is a part you can swap."""
