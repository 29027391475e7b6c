"""A container for the processes of a batch job: through pyxis, which adds options to srun, or through Apptainer."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxnet.command_line import Parser
from jaxnet.errors import InputError

_KINDS = ("pyxis", "apptainer")


@dataclass(frozen=True)
class Container:
    """An image in which every process runs.

    Attributes:
        kind: who runs it, "pyxis" or "apptainer".
        image: in the form of its kind: `nvcr.io#nvidia/jax:26.01-py3` or a .sqsh file for pyxis, a .sif file or
            `docker://...` for Apptainer.
        mounts: folders of the host that it sees, each SOURCE:TARGET.
    """

    kind: str
    image: str
    mounts: Sequence[str] = ()


def srun_options(container: Container | None, directory: str, variables: Iterable[str]) -> list[str]:
    """The options by which srun starts processes in a container of pyxis, in `directory`.

    Args:
        container: None, or one of Apptainer, gives none.
        directory: mounted under its own name.
        variables: those of the job, which shall win over the image's. srun passes on all, but the image's own win.

    >>> srun_options(Container("pyxis", "jax.sqsh"), "/work", ["XLA_FLAGS"])
    ['--container-image=jax.sqsh', '--container-mounts=/work:/work', '--container-workdir=/work',
     '--container-env=XLA_FLAGS']
    """
    if container is None or container.kind != "pyxis":
        return []
    mounts = _mounts(container, directory)
    if odd := [mount for mount in mounts if "," in mount]:
        raise InputError(f"--mount {odd[0]!r}: pyxis takes no comma in a path")
    return [
        f"--container-image={container.image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={directory}",
        f"--container-env={','.join(variables)}",
    ]


def contained(command: Sequence[str], container: Container | None, directory: str, *, gpus: bool) -> list[str]:
    """`command` in a container of Apptainer, in `directory`; the command itself without a container, or with pyxis.

    >>> contained(["run"], Container("apptainer", "jax.sif", ["/data:/data"]), "/work", gpus=True)
    ['apptainer', 'exec', '--nv', '--bind', '/work:/work', '--bind', '/data:/data', '--pwd', '/work', 'jax.sif', 'run']
    """
    if container is None or container.kind != "apptainer":
        return list(command)
    binds = [word for mount in _mounts(container, directory) for word in ("--bind", mount)]
    nvidia = ["--nv"] if gpus else []
    return ["apptainer", "exec", *nvidia, *binds, "--pwd", directory, container.image, *command]


def _mounts(container: Container, directory: str) -> list[str]:
    if ":" in directory:
        raise InputError(f"a container cannot mount {directory}: its name holds a colon; start in another folder")
    return [f"{directory}:{directory}", *container.mounts]


# ---- Command line ---------------------------------------------------------------------------------------


def add_container(parser: Parser) -> None:
    """Add `--pyxis`, `--apptainer` and `--mount`, which `container_of` reads."""
    images = parser.add_mutually_exclusive_group()
    images.add_argument("--pyxis", metavar="IMAGE", help="run in this container, by srun with the plugin pyxis")
    images.add_argument("--apptainer", metavar="IMAGE", help="run in this container, by Apptainer")
    parser.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="FOLDER[:TARGET]",
        help="let the container see a folder of the host, beside this one; may be repeated",
    )


def container_of(args: argparse.Namespace) -> Container | None:
    """The container that the command line asks for; None for none."""
    for kind in _KINDS:
        if (image := getattr(args, kind)) is not None:
            return Container(kind, image, [_mount(text) for text in args.mount])
    if args.mount:
        raise InputError(f"--mount {args.mount[0]}: there is no container to mount it in; add --pyxis or --apptainer")
    return None


def _mount(text: str) -> str:
    source, _, target = text.partition(":")
    if not source.startswith("/") or not (target or source).startswith("/"):
        raise InputError(f"--mount {text}: wanted absolute paths, as in /data or /data:/mnt/data")
    return f"{source}:{target or source}"
