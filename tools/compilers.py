"""Print what pip has to install for the compilers of GPUs and TPUs that belong to the installed JAX.

    pip install --no-deps --target .venv-compilers $(python tools/compilers.py)

Of what the extras cuda12 and tpu bring, these alone: the rest is for devices.
"""

from importlib.metadata import requires

from packaging.requirements import Requirement

EXTRAS = {"libtpu": "tpu", "jax-cuda12-plugin": "cuda12-local"}


def main() -> None:
    """All on one line."""
    found = {
        each.name: str(each.specifier)
        for each in map(Requirement, requires("jax") or ())
        if each.name in EXTRAS and each.marker and each.marker.evaluate({"extra": EXTRAS[each.name]})
    }
    found["jax-cuda12-pjrt"] = found["jax-cuda12-plugin"]  # which the plugin requires, in the same version
    print(*(f"{name}{specifier}" for name, specifier in found.items()))


if __name__ == "__main__":
    main()
