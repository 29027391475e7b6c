"""Large pages for the memory of a process, which it has to have asked the C library for before it began."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.hugetlb"
_FIRST_GLIBC = (2, 35)  # of those that know it
_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use_huge_pages() -> None:
    """Start this program again, once, with `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`: a step on CPUs takes less time.

    XLA:CPU maps its scratch memory anew for each step, and the kernel fills it page by page. ResNet-50 at batch 16
    takes 566,000 pages of 4 KiB, or some thousand of 2 MiB. The C library reads the variable as a process begins,
    so this comes before all imports that take time. The process keeps its number, its arguments and its files.

    Does nothing where it would not help (see `wanted`) or could harm: MPI cannot be begun twice, and a debugger
    would have to be told everything again.
    """
    value = wanted(os.environ)
    if value is None or not sys.executable or "mpi4py.MPI" in sys.modules or sys.gettrace() is not None:
        return
    again = [sys.executable, *sys.orig_argv[1:]]
    with suppress(OSError):  # then it goes on as it is
        os.execve(sys.executable, again, {**os.environ, VARIABLE: value})


def wanted(environ: Mapping[str, str], kernel: str | None = None, libc: str | None = None) -> str | None:
    """What `GLIBC_TUNABLES` should be for a process that begins with `environ`; None: as it is.

    Args:
        environ: the variables of the process; a value of `glibc.malloc.hugetlb` in them is the user's choice.
        kernel: the kernel's setting, as in `/sys/kernel/mm/transparent_hugepage/enabled`, by default this one's. Only
            one that gives huge pages to those who ask makes a difference.
        libc: the C library and its version, as `os.confstr` says them; by default this process's.

    >>> wanted({}, "always [madvise] never", "glibc 2.36")
    'glibc.malloc.hugetlb=1'
    >>> wanted({"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, "always [madvise] never", "glibc 2.36")
    'glibc.malloc.arena_max=4:glibc.malloc.hugetlb=1'
    >>> wanted({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, "always [madvise] never", "glibc 2.36")
    >>> wanted({}, "[always] madvise never", "glibc 2.36")
    """
    given = environ.get(VARIABLE, "")
    asks = "[madvise]" in (_kernel_setting() if kernel is None else kernel)
    if _TUNABLE in given or not asks or not _knows(_libc() if libc is None else libc):
        return None
    return ":".join(filter(None, (given, f"{_TUNABLE}=1")))


def _knows(libc: str) -> bool:
    name, _, version = libc.partition(" ")
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return name == "glibc" and tuple(numbers) >= _FIRST_GLIBC


def _kernel_setting() -> str:
    try:
        return _KERNEL.read_text()
    except OSError:
        return ""


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):  # another C library
        return ""
