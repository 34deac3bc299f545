"""``lm-eval-proca tasks-path``: for those who prefer ``lm_eval --include_path``."""

from __future__ import annotations

import argparse

from lm_eval_proca_discovery import task_configs_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(args: argparse.Namespace) -> int:
    print(task_configs_path())
    return 0
