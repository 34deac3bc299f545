"""Options that several commands share, read as lm_eval reads them."""

from __future__ import annotations

import argparse
import ast
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lm_eval_proca.errors import CalibrationError, TaskError

if TYPE_CHECKING:
    from lm_eval_proca.sweep.cell import GivenSettings, Model

BACKEND = "hf-shared-prefix"


def quiet_logging() -> None:
    """Errors, and models that score in another way than asked: more would bury the progress.

    LMEVAL_LOG_LEVEL, if set, wins.
    """
    from lm_eval.utils import setup_logging  # not at the top: `compare` and `apply` begin without lm-eval

    setup_logging("ERROR")
    of_models = logging.getLogger("lm_eval.proca.models")
    of_models.setLevel(min(logging.WARNING, of_models.getEffectiveLevel()))


def add_param_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--param",
        nargs="+",
        action="extend",
        default=[],
        metavar="CALIBRATOR.NAME=VALUE",
        help="parameter of a calibrator, e.g. proca.n_init=10",
    )


def add_jobs_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="calibrate so many tasks at the same time, each in a process (default: as many as there are cores)",
    )


def calibrator_params(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`["proca.n_init=10"]` as `{"proca": {"n_init": 10}}`."""
    params: dict[str, dict[str, Any]] = {}
    for text in given:
        name, dot, rest = text.partition(".")
        key, equals, value = rest.partition("=")
        if not (name and dot and key and equals):
            raise CalibrationError(f"--param {text} is not of the form CALIBRATOR.NAME=VALUE, e.g. proca.n_init=10.")
        try:
            params.setdefault(name, {})[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):  # a word, such as selection=likelihood
            params.setdefault(name, {})[key] = value
    return params


def add_include_path(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--include_path", action="append", default=[], metavar="DIR", help="a folder of YAMLs of your own; repeatable"
    )


def add_model_options(parser: argparse._ActionsContainer, *, batch_size: int | str, **model_args: Any) -> None:
    """The model, in lm_eval's words; `model_args` change that option."""
    add = parser.add_argument
    add("--model", default=BACKEND, help=f"lm-eval's name of the backend (default: {BACKEND})")
    add("--batch_size", default=batch_size, help="as for lm_eval: a number, auto or auto:N (default: %(default)s)")
    add("--device", default="cuda:0", help="as for lm_eval (default: %(default)s, or the CPU where there is none)")
    model_args.setdefault("help", "as for lm_eval, e.g. pretrained=NAME,dtype=float16")
    add("--model_args", nargs="+", metavar="KEY=VALUE", **model_args)


def add_backend_options(parser: argparse._ActionsContainer, *, batch_size: int | str, **model_args: Any) -> None:
    """The model, the settings of the tasks and their folders."""
    add_include_path(parser)
    add_model_options(parser, batch_size=batch_size, **model_args)
    parser.add_argument(
        "--metadata",
        nargs="+",
        action="extend",
        default=[],
        metavar="proca.KEY=VALUE",
        help="settings for every task, as for lm_eval",
    )


def model_of(args: argparse.Namespace, given: Sequence[str]) -> Model:
    from lm_eval_proca.sweep.cell import Model

    model_args = key_values(given, "--model_args")
    return Model(args.model, model_args, batch_size=args.batch_size, device=args.device)


def settings_of(args: argparse.Namespace) -> GivenSettings:
    from lm_eval_proca.sweep.cell import settings_from_metadata

    return settings_from_metadata(key_values(args.metadata, "--metadata"))


def key_values(given: Sequence[str], option: str) -> dict[str, Any]:
    """`--model_args` and `--metadata`, exactly as lm_eval reads them."""
    from lm_eval._cli.utils import key_val_to_dict, try_parse_json

    parsed: dict[str, Any] = {}
    try:
        for part in given:
            value = try_parse_json(part)
            parsed.update(value if isinstance(value, dict) else key_val_to_dict(part))
    except ValueError as error:
        raise TaskError(f"{option} {' '.join(given)} cannot be read: {error}.") from error
    return parsed


def names(given: Sequence[str]) -> list[str]:
    """Words separated by spaces or commas."""
    return [name for part in given for name in part.split(",") if name]


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return number


whole_number, positive = partial(_at_least, 0), partial(_at_least, 1)


class WholeNumbers(argparse.Action):
    """Whole numbers, separated by spaces or commas."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        try:
            setattr(namespace, self.dest, [whole_number(one) for one in names(values) or values])
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from error
