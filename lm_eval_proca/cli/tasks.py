"""``lm-eval-proca tasks``: which tasks can be calibrated, from their YAML files alone."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lm_eval_proca.cli.options import add_include_path
from lm_eval_proca.compare.formats.tabular import text_table
from lm_eval_proca.harness.stock_tasks import judge
from lm_eval_proca.sweep.task_files import find_task_configs

SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "a task, group, tag or pattern, e.g. 'mmlu*'"
    parser.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help=about)
    add_include_path(parser)


def run(args: argparse.Namespace) -> int:
    configs = find_task_configs(args.pattern, args.include_path)
    verdicts = {name: judge(config) for name, config in sorted(configs.items())}
    rows = [
        {
            "task": name,
            "calibrated": "yes" if verdict.labels else "no" if verdict.final else "the run decides",
            "labels": len(verdict.labels) if verdict.labels else None,
            "splits": _splits(configs[name]),
            "why": verdict.obstacle,
        }
        for name, verdict in verdicts.items()
    ]
    print(text_table(rows))
    sizes = Counter(len(verdict.labels) for verdict in verdicts.values() if verdict.labels)
    obstacles = Counter((not verdict.final, verdict.obstacle) for verdict in verdicts.values() if verdict.obstacle)
    by_size = ", ".join(f"{count} with {labels} labels" for labels, count in sorted(sizes.items())) or "-"
    print(f"\n{sizes.total()} of {len(rows)} tasks have one fixed list of labels and can be calibrated: {by_size}")
    for (open_, obstacle), count in sorted(obstacles.items(), key=lambda item: -item[1]):
        print(f"{count}: {obstacle}{'; calibrated if they turn out the same for all documents of a run' * open_}")
    return 0


def _splits(config: Mapping[str, Any]) -> str:
    """Without repetition: lm-eval evaluates on the test split, else on the validation split."""
    return ", ".join(dict.fromkeys(str(config[key]) for key in SPLITS if config.get(key)))
