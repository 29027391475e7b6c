"""Check what one process can check alone: versions, memory and proxies; then names and addresses."""

import platform
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jaxnet.cluster.addresses import Address, check_interface, interface_address, is_loopback, is_own, look_up
from jaxnet.cluster.environment import BIND, COORDINATOR, INTERFACE, Place
from jaxnet.cluster.start import proxy_between
from jaxnet.errors import InputError
from jaxnet.operations.doctor.finding import Finding, failed, ok, warning
from jaxnet.operations.doctor.waiting import TimedOut, within

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain")
"""The packages that must have the same version on all ranks."""

_GiB = 1 << 30
_MiB = 1 << 20
_LEAST_MEMORY = 1 * _GiB
_LEAST_SHARED_MEMORY = 64 * _MiB
_LOOKUP_SECONDS = 5.0
_POLL_SECONDS = 0.2


# ---- The machine ---------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """The version of Python and of each package in `PACKAGES`."""
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
    """Whether enough memory is available, according to the kernel's file `meminfo`."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return ok("memory", f"unknown on {platform.system()}")
    found = f"{free / _GiB:.1f} GiB available"
    if free < _LEAST_MEMORY:
        return warning("memory", found, "end other programs: a training run takes 1 GiB and more")
    return ok("memory", found)


def check_shared_memory(where: Path) -> Finding:
    """Whether processes of this machine can share memory, as those that decode images do; `where` is /dev/shm."""
    try:
        free = shutil.disk_usage(where).free
    except OSError:
        return ok("shared memory", f"there is no {where}")
    found = f"{free / _MiB:,.0f} MiB free in {where}"
    if free < _LEAST_SHARED_MEMORY:
        return warning("shared memory", found, "give a container more, as with docker run --shm-size=1g")
    return ok("shared memory", found)


def check_proxies(environ: Mapping[str, str], coordinator: str) -> Finding:
    """Whether a proxy stands between JAX and the coordinator."""
    proxy = proxy_between(environ, coordinator)
    if proxy is None:
        return ok("proxies", f"none between this host and {coordinator}")
    found = (
        f"{proxy} is set and no_proxy does not name the coordinator {coordinator}: jaxnet goes around it, but programs"
        " that use JAX alone would hang"
    )
    return warning("proxies", found, f"add {coordinator} to the variable no_proxy, or unset {proxy}")


# ---- Names and addresses -------------------------------------------------------------------------------

_HOSTS_CURE = "in /etc/hosts of {host}, give {name} the address at which the other hosts reach it"


def check_names(place: Place, environ: Mapping[str, str], timeout_seconds: float) -> list[Finding]:
    """Resolve this host's name and the coordinator's, and look at the network interface, as this host sees them."""
    found = [_own_name(socket.gethostname(), place)]
    if place.coordinator:
        found.append(_coordinator(place.coordinator, place, BIND in environ, timeout_seconds))
    if place.interface:
        found.append(_interface(place.interface))
    return found


def addresses_of(host: str) -> list[str]:
    """The addresses of the name `host`, each once; OSError or `TimedOut` when there are none."""
    return list(dict.fromkeys(within(_LOOKUP_SECONDS, lambda: look_up(host))))


def _own_name(name: str, place: Place) -> Finding:
    check = "own name"
    try:
        addresses = addresses_of(name)
    except (OSError, TimedOut) as error:
        found = f"{name} has no address ({_reason(error)})"
        return warning(check, found, _HOSTS_CURE.format(host=name, name=name))
    found = f"{name} is {', '.join(addresses)}"
    if place.process_count == 1 or not any(map(is_loopback, addresses)):
        return ok(check, found)
    if place.coordinator and is_loopback(place.coordinator.host):
        return ok(check, f"{found}, a loopback address, as the coordinator's is")
    where = "jaxnet listens elsewhere, but MPI and programs that use JAX alone would wait there for other hosts"
    if place.coordinator is None:
        where = "collectives of the CPU listen there, where no other host can call"
    return warning(check, f"{found}, a loopback address: {where}", _HOSTS_CURE.format(host=name, name=name))


def _coordinator(coordinator: Address, place: Place, bound: bool, timeout_seconds: float) -> Finding:
    check, own = "coordinator", socket.gethostname()
    try:
        addresses = _await_addresses(coordinator.host, timeout_seconds)
    except (OSError, TimedOut) as error:
        cure = f"give {COORDINATOR} a name that {own} knows, or an address"
        return failed(check, f"{own} cannot resolve {coordinator.host} ({_reason(error)})", cure)
    found = str(coordinator)
    if addresses != [coordinator.host]:
        found += f" is {', '.join(addresses)}"
    if is_loopback(coordinator.host):
        return ok(check, f"{found}, loopback: for processes of one host alone")
    loopback = any(map(is_loopback, addresses))
    if place.process_index != 0 and loopback:
        cure = f"in /etc/hosts of {own}, give {coordinator.host} the address of rank 0's host"
        return warning(check, f"{found} on {own}, a loopback address: it leads back to {own}", cure)
    if place.process_index == 0 and not bound and not any(map(is_own, addresses)):
        cure = f"give {COORDINATOR} an address of the host where rank 0 runs"
        return warning(check, f"{found}, which is no address of {own}, where rank 0 runs", cure)
    return ok(check, found)


def _await_addresses(host: str, timeout_seconds: float) -> list[str]:
    """As `addresses_of`, for a name that may take a while to appear, as that of a Kubernetes pod does."""
    give_up = time.monotonic() + timeout_seconds
    while True:
        try:
            return addresses_of(host)
        except socket.gaierror:
            if time.monotonic() > give_up:
                raise
        time.sleep(_POLL_SECONDS)


def _interface(name: str) -> Finding:
    try:
        check_interface(name, INTERFACE)
    except InputError as error:
        return failed("interface", str(error), f"set {INTERFACE} to one of them, or unset it")
    address = interface_address(name)
    if address is None and sys.platform == "linux":
        cure = f"give it one, or set {INTERFACE} to another"
        return warning("interface", f"{name} of {socket.gethostname()} has no IPv4 address", cure)
    return ok("interface", f"{name} has {address}")


def _reason(error: OSError | TimedOut) -> str:
    if isinstance(error, TimedOut):
        return f"no answer within {_LOOKUP_SECONDS:g} s"
    return (error.strerror or str(error)).lower()
