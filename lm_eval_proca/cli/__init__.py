"""The command line ``lm-eval-proca``: one module per command, imported when the command is called.

A command module has ``add_arguments(parser)`` and ``run(args) -> int`` (the exit code).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from lm_eval_proca import __version__
from lm_eval_proca.errors import ProcaError, did_you_mean

COMMANDS = {
    "analyze": "the paper's analyses: a table and a figure from score tables, or from runs that it makes itself",
    "apply": "use a calibrator saved by `lm-eval-proca calibrate --save` on new scores",
    "calibrate": "calibrate finished runs from their scores: output folders of lm_eval, sample logs, or score tables",
    "classify": "label the texts of a file with a prompt, label words and a model; no labeled text is needed",
    "compare": "compare models and calibrators: the paper's table and a leaderboard from result folders",
    "demo": "run lm_eval on proca_demo, 4 shots, with a small language model from PyPI",
    "generate": "write an estimate set with the model itself, from a few labeled examples (ProCa-g) or label words",
    "self-label": "run a task without any label: the model labels its own demonstrations in a first pass",
    "sweep": "run models x tasks x shots x seeds; finished cells are never repeated, "
    "start again after any interruption",
    "tasks": "list the tasks of lm-eval that can be calibrated, and why the others cannot; no dataset is loaded",
    "tasks-path": "print the folder of the task YAMLs, for `lm_eval --include_path`",
}
"""What each of them does, in one line; here, so that `--help` imports none of their modules."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a mistake of the user ends in one sentence on stderr and exit code 1 (2 for usage)."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="lm-eval-proca",
        description="What surrounds calibrated evaluation; the evaluation itself is plain `lm_eval --tasks proca`.",
    )
    parser.add_argument("--version", action="version", version=f"lm-eval-proca {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    called = next((word for word in argv if word in COMMANDS), "")
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what)
        if name == called:
            module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    if argv and argv[0] not in COMMANDS and not argv[0].startswith("-"):
        parser.error(f"there is no command {argv[0]}; --help lists them.{did_you_mean(argv[0], COMMANDS)}")
    args = parser.parse_args(argv)
    try:
        status = args.run(args)
        sys.stdout.flush()  # here, where a reader that has gone is noticed in time
        return status
    except ProcaError as error:
        print(f"lm-eval-proca {called}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, e.g. `head`, has enough. Python flushes stdout once more when it ends, which must not fail again;
        # the status is the one that the shell gives to programs that end with SIGPIPE.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
