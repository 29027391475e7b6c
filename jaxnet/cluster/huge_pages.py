"""Start a program again with huge pages of glibc, which reads its setting only as a process begins.

This is a file of its own because it runs before all imports that take time.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.hugetlb"
_FIRST_GLIBC = (2, 35)  # the first that knows the tunable
_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use_huge_pages() -> None:
    """Start this program again, once, with `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, which makes steps on CPUs faster.

    XLA:CPU maps its scratch memory anew for each step, and the kernel fills it page by page. ResNet-50 at batch 16
    takes 566,000 pages of 4 KiB, or a few thousand of 2 MiB. The process keeps its number, its arguments and its files.

    Does nothing where it would not help, see `wanted`, or where it could harm: MPI cannot start twice in a process, and
    a debugger would lose its settings.
    """
    value = wanted(os.environ)
    if value is None or not sys.executable or "mpi4py.MPI" in sys.modules or sys.gettrace() is not None:
        return
    again = [sys.executable, *sys.orig_argv[1:]]
    with suppress(OSError):  # if it fails, the program continues as it is
        os.execve(sys.executable, again, {**os.environ, VARIABLE: value})


def wanted(environ: Mapping[str, str], kernel: str | None = None, libc: str | None = None) -> str | None:
    """What `GLIBC_TUNABLES` should be for a process that begins with `environ`; None: leave it.

    Args:
        environ: the variables of the process. A value of `glibc.malloc.hugetlb` in them is the user's choice.
        kernel: the text of `/sys/kernel/mm/transparent_hugepage/enabled`; None: this kernel's. The tunable matters only
            where the kernel gives huge pages to those who ask (`madvise`).
        libc: the C library and its version, as `os.confstr` gives them; None: this process's.

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
