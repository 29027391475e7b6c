"""This machine by itself: versions, memory, and variables that send connections elsewhere."""

import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jaxnet.cluster.doctor.finding import Finding, ok, warning
from jaxnet.cluster.proxies import proxy_between

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain")
"""What has to have the same version on all ranks."""

GiB = 1 << 30
MiB = 1 << 20
_LEAST_MEMORY = 1 * GiB
_LEAST_SHARED_MEMORY = 64 * MiB


def versions() -> dict[str, str]:
    """The version of Python and of each of `PACKAGES`."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "(not installed)"
    return found


def check_machine(environ: Mapping[str, str], coordinator: str | None) -> list[Finding]:
    """Versions, memory, shared memory and proxies of this machine; `coordinator` is None for a single process."""
    known = versions()
    found = [ok("python and jax", ", ".join(f"{name} {known[name]}" for name in ("python", "jax", "jaxlib")))]
    found.append(check_memory(Path("/proc/meminfo")))
    found.append(check_shared_memory(Path("/dev/shm")))
    if coordinator is not None:
        found.append(check_proxies(environ, coordinator))
    return found


def check_memory(meminfo: Path) -> Finding:
    """How much memory programs can still get, as the kernel says it in `meminfo`."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return ok("memory", f"unknown on {platform.system()}")
    found = f"{free / GiB:.1f} GiB available"
    if free < _LEAST_MEMORY:
        return warning("memory", found, "end other programs: a training run takes 1 GiB and more")
    return ok("memory", found)


def check_shared_memory(where: Path) -> Finding:
    """Whether processes of this machine can share memory, as those that decode images do."""
    try:
        free = shutil.disk_usage(where).free
    except OSError:
        return ok("shared memory", f"there is no {where}")
    found = f"{free / MiB:,.0f} MiB free in {where}"
    if free < _LEAST_SHARED_MEMORY:
        return warning("shared memory", found, "give a container more, as with docker run --shm-size=1g")
    return ok("shared memory", found)


def check_proxies(environ: Mapping[str, str], coordinator: str) -> Finding:
    """Whether JAX alone would call the coordinator by way of a proxy."""
    proxy = proxy_between(environ, coordinator)
    if proxy is None:
        return ok("proxies", f"none between this host and {coordinator}")
    found = (
        f"{proxy} is set and no_proxy does not name the coordinator {coordinator}: jaxnet goes around it, and JAX alone"
    )
    return warning("proxies", f"{found} would hang", f"add {coordinator} to the variable no_proxy, or unset {proxy}")
