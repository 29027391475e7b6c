"""`jaxnet completion` prints a script with which a shell completes commands, options, names and files."""

import argparse
from collections.abc import Iterator
from contextlib import suppress

from jaxnet.command_line import Commands, Parser, given_path
from jaxnet.errors import InputError

_DESCRIPTION = """\
Print a script for your shell. With it, Tab completes commands, options, files, and the names of strategies, networks
and accelerators. The script knows this version of jaxnet: print it again after an update."""

_EXAMPLES = """\
examples:
  jaxnet completion bash > ~/.local/share/bash-completion/completions/jaxnet
  jaxnet completion zsh > ~/.zfunc/_jaxnet        (a folder of your fpath)
"""


def add_completion(commands: Commands, whole: Parser) -> None:
    """Add `completion` to the commands of `jaxnet`; `whole` is the parser of all of them."""
    parser = commands.add_parser(
        "completion", help="print a script that completes commands", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), metavar="SHELL", help="bash, zsh or tcsh")
    parser.set_defaults(run=lambda args: _print_script(whole, args.shell))


def _print_script(whole: Parser, shell: str) -> int:
    import shtab

    names = _names()
    for command, action in _actions(whole):  # the parser has done its work, so it may be changed
        if action.type is given_path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab looks for it there
        elif known := names.get((command, action.option_strings[0] if action.option_strings else "")):
            action.choices = known
    print(shtab.complete(whole, shell))
    return 0


def _names() -> dict[tuple[str, str], list[str]]:
    """What commands take, by command and option: the same option takes other names elsewhere."""
    from jaxnet.cost.accelerators import ACCELERATORS
    from jaxnet.cost.machines import MACHINES
    from jaxnet.cost.shapes import SIZES
    from jaxnet.models.zoo import ZOO

    tpus = [kind for kind, about in ACCELERATORS.items() if about.platform == "tpu"]
    compiled = [*(f"{kind}:" for kind in ACCELERATORS), "here"]
    networks = ("bench inference", "simulate", "import", "predict", "export")
    return {
        **{(command, "--strategy"): _timed_strategies() for command in ("bench step", "simulate")},
        **{(command, "--model"): [*ZOO] for command in networks},
        **{(command, "--model"): [*SIZES] for command in ("bench step", "tune")},
        **{(command, "--on"): compiled for command in ("plan", "strategies")},
        ("simulate", "--on"): [f"{name}:" for name in (*MACHINES, *tpus)],
    }


def _timed_strategies() -> list[str]:
    """The strategies whose single steps can be timed."""
    from jaxnet.comm import STRATEGIES, installed_strategies
    from jaxnet.cost.step_bench import labelled_strategy

    found = []
    for name in (*STRATEGIES, *installed_strategies()):
        with suppress(InputError):
            labelled_strategy(name)
            found.append(name)
    return found


def _actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """The actions of all commands, each with the name of its command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield parser.prog.partition(" ")[2], action
