"""`jaxnet lab ... -- COMMAND`: one Linux machine as several hosts, joined by links of a chosen speed."""

import argparse
from typing import TYPE_CHECKING

from jaxnet.cli.launchers.common import add_devices, add_words, command_of
from jaxnet.cli.parser import Parser, positive

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

_USAGE = """\
jaxnet lab --hosts N [--rate RATE] [--processes-per-host P] [--devices-per-process D]
                  [--cpus-per-host C] -- COMMAND..."""

_DESCRIPTION = """\
Run a job on N hosts that are made of this machine: each has its own network, host name (host0, host1, ...) and
address, and is joined to the others by a link of the speed RATE, in both directions. Processes of one host talk
over its loopback, which is fast. Process i runs on host i // P; all run as under `jaxnet launch local`.

It needs Linux, root and iproute2. The hosts cannot reach anything outside, and share this machine's files.
Nothing outside is changed, and nothing is left behind."""

_EXAMPLES = """\
examples:
  jaxnet lab --hosts 2 --rate 1gbit -- train.py --config configs/digits.py epochs=1
  jaxnet lab --hosts 2 --rate 250mbit --devices-per-process 4 -- train.py --config configs/digits.py
  jaxnet lab --hosts 4 --rate 1gbit --processes-per-host 2 -- train.py --config configs/digits.py hosts=4
  jaxnet lab --hosts 2 -- sh -c 'hostname; ip -brief address; tc qdisc'
"""


def add_parser(commands: "Commands") -> None:
    """Add `lab` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "lab",
        help="run a job on hosts emulated on this machine, with links of a chosen speed",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("--hosts", type=positive, required=True, metavar="N", help="how many hosts")
    parser.add_argument("--rate", metavar="RATE", help="of each link, such as 1gbit or 250mbit; default unlimited")
    parser.add_argument("--processes-per-host", type=positive, default=1, metavar="P", help="default 1")
    add_devices(parser)
    parser.add_argument(
        "--cpus-per-host", type=positive, metavar="C", help="give each host C CPU cores of its own; default: share all"
    )
    add_words(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet lab`."""
    from jaxnet.cluster.lab.rate import parse_rate
    from jaxnet.cluster.lab.run import Lab, run_lab

    rate = None if args.rate is None else parse_rate(args.rate)
    lab = Lab(args.hosts, rate, args.processes_per_host, args.devices_per_process, args.cpus_per_host)
    return run_lab(command_of(args), lab)
