"""What communication costs: collectives and steps measured, beside the least that they could take.

Nothing is imported here, so that programs without JAX can read `jaxnet.cost.shapes`.
"""
