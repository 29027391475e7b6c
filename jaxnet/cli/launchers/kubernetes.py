"""`jaxnet launch kubernetes`."""

import argparse
import os
from typing import TYPE_CHECKING

from jaxnet.cli.launchers.common import add_command, add_devices, command_of, new_kind, not_negative, show
from jaxnet.cli.parser import positive

if TYPE_CHECKING:
    from jaxnet.cli.launchers.common import Kinds

_ABOUT = """\
Make a JobSet of N pods, a process in each, and give it to kubectl. It needs the JobSet controller in the cluster,
an image (see launch/Dockerfile) and a PersistentVolumeClaim that all pods can write, where the command starts.
When a pod fails, the whole set is started anew. Variables travel only if --env names them.

examples:
  jaxnet launch kubernetes --pods 2 --gpus 8 --image registry.example/jaxnet:1 --claim work -- train.py --config c.py
  jaxnet launch kubernetes --pods 4 --image jaxnet:1 --claim work --dry-run -- train.py --config configs/digits.py
"""


def add_kind(kinds: "Kinds") -> None:
    """Add `kubernetes`."""
    parser = new_kind(kinds, "kubernetes", "a JobSet of Kubernetes", _ABOUT, run)
    parser.add_argument("--pods", type=positive, required=True, metavar="N", help="how many processes")
    parser.add_argument("--image", required=True, help="the container image")
    parser.add_argument("--claim", required=True, metavar="NAME", help="the PersistentVolumeClaim all pods write")
    parser.add_argument("--mount", default="/work", metavar="PATH", help="where it is mounted; default /work")
    parser.add_argument("--name", default="jaxnet", help="of the set; default jaxnet")
    parser.add_argument("--namespace", metavar="NAME", help="default: kubectl's own")
    parser.add_argument("--cpus", default="4", metavar="Q", help="CPU cores of each pod; default 4")
    parser.add_argument("--memory", default="16Gi", metavar="Q", help="of each pod; default 16Gi")
    parser.add_argument("--shared-memory", default="2Gi", metavar="Q", help="/dev/shm of each pod; default 2Gi")
    parser.add_argument("--gpus", type=not_negative, default=0, metavar="G", help="of each pod; default 0")
    parser.add_argument(
        "--restarts", type=not_negative, default=3, metavar="R", help="of the whole set, after failures; default 3"
    )
    parser.add_argument("--grace", type=positive, default=120, metavar="S", help="seconds to save in; default 120")
    parser.add_argument(
        "--node-selector", action="append", default=[], metavar="LABEL=VALUE", help="of nodes that will do"
    )
    parser.add_argument("--python", default="python3", metavar="PATH", help="the image's; default python3")
    add_devices(parser)
    add_command(parser, "the manifest")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch kubernetes`."""
    from jaxnet.cluster.launchers.job import passed_environment, whole_command
    from jaxnet.cluster.launchers.kubernetes import KubernetesJob, apply, manifest

    text = manifest(
        KubernetesJob(
            whole_command(command_of(args), args.python),
            args.image,
            args.pods,
            args.claim,
            mount=args.mount,
            name=args.name,
            environment=passed_environment(os.environ, args.env, devices=args.devices_per_process),
            namespace=args.namespace,
            cpus=args.cpus,
            memory=args.memory,
            shared_memory=args.shared_memory,
            gpus=args.gpus,
            restarts=args.restarts,
            grace_seconds=args.grace,
            selector={label: value for label, _, value in (text.partition("=") for text in args.node_selector)},
        )
    )
    return show(text) if args.dry_run else apply(text)
