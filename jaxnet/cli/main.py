"""The `jaxnet` command. Each sub-command has one function that adds its options and says what to run."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from jaxnet.cluster.huge_pages import use_huge_pages
from jaxnet.errors import causes_shown, drop, exit_cleanly, has_lost_reader, say

_DESCRIPTION = "Train Flax models on many devices and hosts, and see, measure and choose how their gradients travel."

_EXAMPLES = """\
examples:
  jaxnet new my_config.py && jaxnet train --config my_config.py
  jaxnet train --config configs/digits.py
  jaxnet launch local --processes 2 -- jaxnet train --config configs/digits.py
  jaxnet launch local --help
  jaxnet lab --hosts 2 --rate 1gbit -- jaxnet train --config configs/digits.py
  jaxnet doctor --config configs/digits.py
  jaxnet plan --config configs/digits.py strategy=hierarchical
  jaxnet strategies
  jaxnet models
  jaxnet import --help
  jaxnet predict runs/digits photos/
  jaxnet export runs/digits --out digits.stablehlo
  jaxnet bench step --mesh 2x4 --strategy xla --strategy hierarchical
  jaxnet tune --config configs/digits.py --mesh 2x4
  jaxnet simulate --model resnet50 --batch 128 --rate 397 --on v100-edr:4x8
  jaxnet timeline runs/digits
  jaxnet report runs/digits
  jaxnet data prepare imagenet2012 --manual-dir ~/downloads
  jaxnet completion bash
"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, the process's own by default, and exit with its status."""
    if argv is None:
        use_huge_pages()
    given = sys.argv[1:] if argv is None else argv
    exit_cleanly(lambda: _to_the_end(given))


def _to_the_end(argv: Sequence[str]) -> int:
    """Run a command line. The status is 1 if output is lost, in silence when its reader has gone, as after `| head`.

    A pipe to another process, which may break too, is none of that: where the output still has its reader, the error is
    shown.
    """
    try:
        status = run(argv)
        sys.stdout.flush()  # here, where a failure can still be reported
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            of_output = has_lost_reader(sys.stdout)
        else:
            of_output = error.errno == errno.ENOSPC and error.filename is None
        if not of_output:
            raise
        drop(sys.stdout, error)
        if not isinstance(error, BrokenPipeError):
            say(f"error: the output cannot be written: {error.strerror}")
        return 1
    return status


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    # The program may have been started again (`use_huge_pages`), so its modules are imported here, and none of them
    # imports JAX before it runs a command: `jaxnet --help` answers at once.
    from jaxnet.cli.bench import add_bench
    from jaxnet.cli.completion import add_completion
    from jaxnet.cli.data import add_data
    from jaxnet.cli.doctor import add_doctor
    from jaxnet.cli.launch import add_lab, add_launch
    from jaxnet.cli.models import add_import, add_models
    from jaxnet.cli.new import add_new
    from jaxnet.cli.plan import add_plan
    from jaxnet.cli.predict import add_export, add_predict
    from jaxnet.cli.report import add_report, add_timeline
    from jaxnet.cli.simulate import add_simulate
    from jaxnet.cli.strategies import add_strategies
    from jaxnet.cli.train import add_train
    from jaxnet.cli.tune import add_tune
    from jaxnet.command_line import Parser, check_device_variable

    parser = Parser(
        prog="jaxnet",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_version()
    commands = parser.add_commands("COMMAND")
    for add_command in (
        *(add_new, add_train, add_launch, add_lab, add_doctor, add_plan, add_strategies, add_models, add_import),
        *(add_predict, add_export, add_bench, add_tune, add_simulate, add_timeline, add_report, add_data),
    ):
        add_command(commands)
    add_completion(commands, parser)
    args = parser.parse_args(argv)
    check_device_variable(os.environ)
    with causes_shown(getattr(args, "verbose", False)):  # an option of commands that run a config
        status: int = args.run(args)
    return status
