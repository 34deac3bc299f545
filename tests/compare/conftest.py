"""Result folders for the tests.

`lm_eval_folder` is what lm-eval itself writes: a real run of a calibrated task by a model with scripted scores. The
small folders of the arithmetic tests are made from that run's files, with other numbers in them.
"""

from __future__ import annotations

import copy
import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

TASKS = ("proca_toy", "proca_other")
GROUP_YAML = """
group: proca_group
task: [proca_toy, proca_other]
aggregate_metric_list: [{metric: acc, aggregation: mean, weight_by_size: false}]
"""

TASK_YAML = """
class: !function lm_eval_proca.CalibratedTask
task: {name}
custom_dataset: !function rows.load
output_type: multiple_choice
validation_split: validation
fewshot_split: train
doc_to_text: "Review: {{{{text}}}}\\nSentiment:"
doc_to_choice: ["Negative", "Positive"]
doc_to_target: label
filter_list:
  - {{name: none, filter: [{{function: take_first}}]}}
  - {{name: bc, filter: [{{function: bc}}]}}
  - {{name: conca, filter: [{{function: conca}}]}}
  - {{name: proca, filter: [{{function: proca, n_init: 5}}]}}
calibration:
  estimate_split: train
  estimate_size: 60
  text_fields: [text]
metadata:
  version: 1
"""

ROWS_PY = """
import datasets

def load(**kwargs):
    def rows(split, count):
        return datasets.Dataset.from_list([{"text": f"{split} {k}", "label": k % 2} for k in range(count)])
    return datasets.DatasetDict(train=rows("train", 90), validation=rows("validation", 40))
"""


def uniform(*parts: object) -> float:
    """A number in [0, 1) that is the same on every machine."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:12], 16) / 16**12


@pytest.fixture(scope="session")
def lm_eval_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, two tasks, two seeds, as `lm_eval --output_path DIR --log_samples` leaves them."""
    import lm_eval.evaluator
    from lm_eval.api.model import LM
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    class BiasedLM(LM):
        """Knows the label a little and likes "Positive" a lot, as small language models do."""

        def __init__(self, skill: float) -> None:
            super().__init__()
            self.skill = skill

        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            return [(self._score(*request.args), False) for request in requests]

        def _score(self, context: str, continuation: str) -> float:
            text = context.rpartition("Review: ")[2].partition("\n")[0]
            number = text.rpartition(" ")[2]
            positive = self.skill * (1 if number.isdigit() and int(number) % 2 else -1) + 2
            noise = 2 * uniform(context, continuation)
            return noise - 5 + (positive if continuation.strip() == "Positive" else -positive) / 2

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise NotImplementedError

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise NotImplementedError

    folder = tmp_path_factory.mktemp("lm_eval")
    task_files = folder / "tasks"
    task_files.mkdir()
    (task_files / "rows.py").write_text(ROWS_PY)
    for name in TASKS:
        (task_files / f"{name}.yaml").write_text(TASK_YAML.format(name=name))
    (task_files / "group.yaml").write_text(GROUP_YAML)
    output = folder / "results"
    with pytest.MonkeyPatch.context() as patch:
        # Seconds of asking the machine about itself, which nothing here reads.
        patch.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)
        for name, skill in (("org/small", 0.6), ("org/large", 1.2)):
            for seed in (0, 1):
                tracker = EvaluationTracker(output_path=str(output))
                args = {"pretrained": name}
                results = lm_eval.evaluator.simple_evaluate(
                    model=BiasedLM(skill),
                    model_args=args,
                    tasks=["proca_group"],
                    num_fewshot=2,
                    task_manager=TaskManager(include_path=str(task_files), include_defaults=False, metadata=args),
                    fewshot_random_seed=seed,
                    log_samples=True,
                    bootstrap_iters=0,
                    evaluation_tracker=tracker,
                )
                samples = results.pop("samples")
                tracker.save_results_aggregated(results=results, samples=samples)
                for task in TASKS:
                    tracker.save_results_samples(task_name=task, samples=samples[task])
    return output


WriteResult = Callable[..., Path]


@pytest.fixture
def write_result(writer_into: Callable[[Path], WriteResult], tmp_path: Path) -> WriteResult:
    """Write results into `tmp_path / "results"`."""
    return writer_into(tmp_path / "results")


@pytest.fixture(scope="session")
def writer_into(lm_eval_folder: Path) -> Callable[[Path], WriteResult]:
    return lambda folder: _writer(lm_eval_folder, folder)


def of_prompts(
    prompts: Mapping[str, Sequence[Sequence[int]]], together: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the record of a run with several prompts says about them."""
    known = {name: {"accuracy": [sum(one) / len(one) for one in found]} for name, found in prompts.items()}
    return {"prompts": len(next(iter(prompts.values()))), "vary": "demonstrations", "together": together or known}


def over_prompts(
    prompts: Mapping[str, Sequence[Sequence[int]]], together: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """What the results of such a run have beside `acc`."""
    values = {}
    for name, found in prompts.items():
        means = [sum(one) / len(one) for one in found]
        values |= {f"acc_prompts,{name}": statistics.fmean(means), f"acc_prompts_stderr,{name}": 0.01}
        values |= {f"acc_sd,{name}": statistics.stdev(means), f"acc_worst,{name}": min(means)}
        values[f"acc_together,{name}"] = sum(together[name]) / len(together[name])
    return values


def _writer(lm_eval_folder: Path, default_folder: Path) -> WriteResult:
    """Write one result of one task, with chosen numbers in a real file's place of them.

    `correct` maps filters to a 0/1 per document: the accuracies follow from it and the samples are logged. `accuracy`
    maps filters to an accuracy and logs no samples. `prompts` maps filters to the 0/1 of a run with several prompts, of
    shape (prompts, documents), and `together` to those of all prompts together.
    """
    real = json.loads(next(iter(sorted(lm_eval_folder.rglob("results_*.json")))).read_text())
    real_samples = next(iter(sorted(lm_eval_folder.rglob(f"samples_{TASKS[0]}_*.jsonl"))))
    real_sample = json.loads(real_samples.read_text().splitlines()[0])
    count = 0

    def write(
        *,
        model: str = "org/model",
        task: str = "proca_sst2",
        shots: int = 4,
        seed: int = 0,
        accuracy: Mapping[str, float] | None = None,
        correct: Mapping[str, Sequence[int]] | None = None,
        prompts: Mapping[str, Sequence[Sequence[int]]] | None = None,
        together: Mapping[str, Sequence[int]] | None = None,
        together_record: Mapping[str, Any] | None = None,
        date: int | None = None,
        version: int = 1,
        model_args: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        **record: Any,
    ) -> Path:
        nonlocal count
        count += 1
        day = f"2026-01-01T00-00-00.{date or count:06d}"
        folder = folder or default_folder
        folder.mkdir(parents=True, exist_ok=True)
        document = copy.deepcopy(real)
        if prompts is not None:
            correct = {name: answers[0] for name, answers in prompts.items()}
            record = {**of_prompts(prompts, together_record), **record}
        if correct is not None:
            accuracy = {name: sum(answers) / len(answers) for name, answers in correct.items()}
        values = {f"acc,{name}": value for name, value in (accuracy or {}).items()}
        values |= over_prompts(prompts or {}, together or {})
        config = document["configs"][TASKS[0]]
        config["num_fewshot"] = shots
        config["metadata"]["proca"] |= {"num_fewshot": shots, "seed": seed, **record}
        document["results"] = {task: {"alias": task, **values}}
        document["configs"] = {task: config}
        document["versions"] = {task: version}
        document["config"]["model_args"] = {"pretrained": model} if model_args is None else dict(model_args)
        document["config"]["fewshot_seed"] = seed
        document["date"] = float(date or count)
        path = folder / f"results_{day}.json"
        path.write_text(json.dumps(document))
        lines = [
            {**real_sample, "doc_id": k, "filter": name, "doc_hash": f"{k:064d}", "acc": float(answer)}
            for name, answers in (correct or {}).items()
            for k, answer in enumerate(answers)
        ]
        for line in lines if prompts and together else ():
            of_filter, k = line["filter"], line["doc_id"]
            line["acc_prompts"] = [float(of_prompt[k]) for of_prompt in prompts[of_filter]]
            line["acc_together"] = float(together[of_filter][k])
        if lines:
            (folder / f"samples_{task}_{day}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write
