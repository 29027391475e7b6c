"""Sums between two hosts through Gloo and through MPI, in one table: 64 leaves of 1 KB, and one message of each size.

The hosts are emulated as by `jaxnet lab` (Linux, root, iproute2), a core each, joined at RATE; MPI is Open MPI's mpirun
with mpi4jax (make install-mpi). In each round a job of either transport times all its ways, one call after the other;
the table has the median over rounds of each round's median.

    python -m benchmarks.small_messages [--rate 1gbit] [--rounds 5] [--calls 30] [--json]
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

    from jaxnet.comm import Reducer

ROOT = Path(__file__).resolve().parent.parent
LEAVES, LEAF = 64, 256  # float32: 1 KB each
SIZES = {"1 KiB": 2**10, "16 KiB": 2**14, "64 KiB": 2**16, "256 KiB": 2**18, "1 MiB": 2**20, "4 MiB": 2**22}
Case = tuple[str, str]  # what is summed, and which way
_MCA = {"pml": "ob1", "btl": "self,tcp", "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0"}
_OPTIONS = ["--allow-run-as-root", "--bind-to", "none", *(w for pair in _MCA.items() for w in ("--mca", *pair))]


# ---- In a job: time the sums ----------------------------------------------------------------------------


def work(transport: str, calls: int) -> None:
    """Time every case of a transport; process 0 prints a line of JSON: what is summed, which way, ms."""
    import jax
    import numpy as np

    from jaxnet import comm
    from jaxnet.cluster.start import start

    jax.config.update("jax_platforms", "cpu")
    if transport == "mpi":
        mesh, first = comm.make_mesh(1), comm.mpi_world().rank == 0
        ways: dict[str, Reducer] = {
            f"MPI {name}": comm.mpi_all_reduce(algorithm=name) for name in ("library", "tree", "ring")
        }
    else:
        start()
        mesh, first = comm.make_mesh(), jax.process_index() == 0
        ways = {
            "Gloo all-reduce": comm.all_reduce("host"),
            "Gloo ring": comm.ring("host"),
            "Gloo halving_doubling": comm.halving_doubling("host"),
        }
    found = []
    for case, sizes, reducer in cases(ways):
        values = [np.ones((mesh.shape["host"], 1, size), np.float32) for size in sizes]
        call = summing(reducer, mesh, values)
        found.append((*case, 1e3 * statistics.median(times_of(call, calls))))
    if first:
        print(json.dumps(found), flush=True)


def cases(ways: "Mapping[str, Reducer]") -> "Iterator[tuple[Case, list[int], Reducer]]":
    """Each sum with the elements of its leaves; the same in every process, in the same order."""
    from jaxnet.comm import bucketed

    many = [LEAF] * LEAVES
    for way, reducer in ways.items():
        yield (f"{LEAVES} leaves of 1 KB, each a message", way), many, bucketed(reducer, 1, split=False)
        yield (f"{LEAVES} leaves of 1 KB in one message", way), many, bucketed(reducer, None)
        for name, size in SIZES.items():
            yield (f"one message of {name}", way), [size // 4], bucketed(reducer, None)


def summing(reducer: "Reducer", mesh: "jax.sharding.Mesh", values: "Sequence[object]") -> "Callable[[], object]":
    """A compiled sum of `values`, whose leading dims are [hosts, devices]."""
    import jax

    from jaxnet import comm

    def on_device(values: "list[jax.Array]") -> "list[jax.Array]":
        own = [value[0, 0] for value in values]
        sums, _ = reducer.reduce(own, reducer.init(own, mesh.shape))
        return [comm.varying_along(total, comm.AXES)[None, None] for total in sums]

    each = comm.one_per_device(mesh)
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=each.spec, out_specs=each.spec)
    call = jax.jit(mapped, compiler_options=comm.compiler_options("cpu"))
    placed = jax.device_put(values, each)
    return lambda: jax.block_until_ready(call(placed))


def times_of(call: Callable[[], object], calls: int) -> list[float]:
    """Seconds of each call, after two that do not count. A sum ends nowhere before all have begun it."""
    times = []
    for _ in range(calls + 2):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return times[2:]


# ---- Outside: two hosts, and a job of either transport on them ------------------------------------------


def measured(rate: str, rounds: int, calls: int) -> dict[Case, list[float]]:
    """Run the rounds on hosts of their own; ms of each round, for each case."""
    from jaxnet.cluster.job_token import new_token
    from jaxnet.operations.lab import network
    from jaxnet.operations.lab.run import Lab, rank_on_host, share_cores
    from jaxnet.operations.launchers.job import find_command
    from jaxnet.operations.supervise import Rank

    lab = Lab(2, network.parse_rate(rate), cpus_per_host=1)
    cores = share_cores(sorted(os.sched_getaffinity(0)), lab.hosts, lab.cpus_per_host)
    networks = network.build(cores, lab.rate)
    network.name_hosts(lab.hosts)
    os.environ["PYTHONPATH"] = str(ROOT)
    worker = ["-m", "benchmarks.small_messages", "--calls", str(calls), "--worker"]

    def on_host(host: int, command: Sequence[str], token: str = "") -> Rank:
        return rank_on_host(host, command, lab, networks, cores, token)

    def by_gloo() -> str:
        command, token = [sys.executable, *worker, "gloo"], new_token()
        ranks = [on_host(host, command, token) for host in range(lab.hosts)]
        running = [subprocess.Popen(each.command, env=each.environment, stdout=-1, text=True) for each in ranks]
        first, _ = (process.communicate()[0] for process in running)
        return first

    def by_mpi() -> str:
        with tempfile.TemporaryDirectory() as folder:
            # mpirun calls it as it would call ssh: the host's name, then a line for its shell.
            agent = Path(folder, "agent")
            shell = shlex.join(on_host(1, ["/bin/sh"]).command)
            agent.write_text(f'#!/bin/sh\nshift\nexec {shell} -c "$*"\n')
            agent.chmod(0o755)
            options = [*_OPTIONS, "--mca", "plm_rsh_agent", str(agent), "--host", "host0:1,host1:1"]
            starter = [*find_command(["mpirun"]), *options, "-n", "2", sys.executable, "-m", "mpi4py"]
            command = on_host(0, [*starter, *worker, "mpi"]).command
            return subprocess.run(command, stdout=-1, text=True, check=True).stdout

    found: dict[Case, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for job in (by_gloo, by_mpi):
            for row, way, milliseconds in json.loads(job().splitlines()[-1]):
                found[row, way].append(milliseconds)
    return dict(found)


def table(found: Mapping[Case, Sequence[float]]) -> list[str]:
    """A row for what is summed, a column for each way, ms."""
    rows, ways = (list(dict.fromkeys(case[place] for case in found)) for place in (0, 1))
    lines = ["| ms | " + " | ".join(ways) + " |", "|---" * (1 + len(ways)) + "|"]
    for row in rows:
        lines.append(f"| {row} | " + " | ".join(f"{statistics.median(found[row, way]):.2f}" for way in ways) + " |")
    return lines


def main() -> int:
    """Measure, and print the table."""
    from jaxnet.operations.lab.network import check_tools
    from jaxnet.operations.lab.run import run_isolated

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=("gloo", "mpi"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.calls)
        return 0

    def measure() -> int:
        found = measured(args.rate, args.rounds, args.calls)
        rows = [{"sum": row, "way": way, "ms": times} for (row, way), times in found.items()]
        print(json.dumps(rows) if args.json else "\n".join(table(found)))
        return 0

    check_tools()
    return run_isolated(measure)


if __name__ == "__main__":
    sys.exit(main())
