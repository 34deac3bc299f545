"""The command line ``lm-eval-proca``: one module per command, imported when the command is called.

A command module has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(args) -> int`` (the exit code).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from lm_eval_proca import __version__
from lm_eval_proca.errors import ProcaError

COMMANDS = ("analyze", "apply", "calibrate", "compare", "demo", "generate", "sweep", "tasks", "tasks-path")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a mistake of the user ends in one sentence on stderr and exit code 1 (2 for usage)."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="lm-eval-proca",
        description="What surrounds calibrated evaluation; the evaluation itself is plain `lm_eval --tasks proca`.",
    )
    parser.add_argument("--version", action="version", version=f"lm-eval-proca {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    called = argv[0] if argv else ""
    for name in [called] if called in COMMANDS else COMMANDS:
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    try:
        return args.run(args)
    except ProcaError as error:
        print(f"lm-eval-proca {called}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
