"""jaxnet's strategies on a workload of `jaxnet bench step`, a round at a time, for compare.py."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.rounds import serve
from jaxnet.cluster.start import leave, start
from jaxnet.errors import exit_cleanly

COMPUTE = "jaxnet-compute"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--strategy", action="append", default=[])
    args = parser.parse_args()
    start()

    from jaxnet.comm import make_mesh
    from jaxnet.cost.rounds import seconds_a_step, warm_up
    from jaxnet.cost.step_bench import in_pieces, labelled_strategy
    from jaxnet.cost.steps import compute_only, full_step
    from jaxnet.cost.workloads import named_workload

    strategies = {label: labelled_strategy(label) for label in args.strategy}
    workload = named_workload(args.model, make_mesh(), args.batch)
    tasks = {COMPUTE: compute_only(workload)}
    for label, strategy in strategies.items():
        tasks[label] = full_step(workload, strategy, pieces=in_pieces(label))
    for task in tasks.values():
        warm_up(task)
    serve("jaxnet", lambda variant, steps: seconds_a_step(tasks[variant], steps))
    return 0


if __name__ == "__main__":
    exit_cleanly(main, leave)
