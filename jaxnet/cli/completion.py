"""`jaxnet completion` prints a script with which a shell completes commands, options, names and files."""

import argparse
from collections.abc import Iterator

from jaxnet.command_line import Commands, Parser, given_path

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
    for action in _actions(whole):  # the parser has done its work, so it may be changed
        if action.type is given_path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab looks for it there
        elif known := names.get(action.option_strings[0] if action.option_strings else ""):
            action.choices = known
    print(shtab.complete(whole, shell))
    return 0


def _names() -> dict[str, list[str]]:
    from jaxnet.comm import STRATEGIES, installed_strategies
    from jaxnet.cost.accelerators import ACCELERATORS
    from jaxnet.cost.machines import MACHINES
    from jaxnet.models.zoo import ZOO

    places = [*(f"{kind}:" for kind in ACCELERATORS), *MACHINES]
    return {"--strategy": [*STRATEGIES, *installed_strategies()], "--model": [*ZOO], "--on": places}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action
