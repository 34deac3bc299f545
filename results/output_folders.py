"""Output folders of `lm_eval --log_samples`, made from score matrices: files as lm-eval 0.4.13 would have written them.

Published scores become runs that `calibrate` takes, and so do matrices of tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.files import replacing

DATE = "2025-01-31T12-00-00.000001"


class Matrix(NamedTuple):
    """Log-likelihoods (documents, labels), the gold labels, and the label words."""

    scores: np.ndarray
    gold: np.ndarray
    labels: Sequence[str] = ("A", "B", "C", "D")


def write_output(
    folder: Path,
    model: str,
    tasks: Mapping[str, Matrix],
    *,
    groups: Mapping[str, Sequence[str]] | None = None,
    by_size: bool = True,
    shots: int = 0,
    date: str = DATE,
    letters: int = 700,
) -> Path:
    """One run: a sample log per task in the folder of the model and, once all are there, `results_<date>.json`.

    Prompts are made up, of so many `letters` at least; 700 are about as many as those of MMLU have.
    """
    folder = folder / model.replace("/", "__")
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    for task, matrix in tasks.items():
        right = matrix.scores.argmax(axis=1) == matrix.gold
        results[task] = {
            "name": task,
            "alias": task.removeprefix("mmlu_"),
            "sample_len": len(right),
            "acc,none": float(right.mean()),
            "acc_stderr,none": float(right.std(ddof=1) / np.sqrt(len(right))),
        }
        with (folder / f"samples_{task}_{date}.jsonl").open("w", encoding="utf-8") as lines:
            for doc_id, (scores, gold) in enumerate(zip(matrix.scores.tolist(), matrix.gold.tolist(), strict=True)):
                sample = _sample(task, doc_id, scores, gold, matrix.labels, letters)
                lines.write(json.dumps(sample, ensure_ascii=False) + "\n")
    for group in groups or {}:
        of_group = [results[task] for task in _leaves(groups or {}, group)]
        sizes = [task["sample_len"] for task in of_group]
        average = np.average([task["acc,none"] for task in of_group], weights=sizes if by_size else None)
        results[group] = {"name": group, "alias": group, "sample_len": sum(sizes), "acc,none": float(average)}
        results[group]["acc_stderr,none"] = 0.01
    document = {
        "results": results,
        "groups": {group: dict(results[group]) for group in groups or {}},
        "group_subtasks": dict(groups or {}),
        "configs": {task: _config(task, matrix, shots) for task, matrix in tasks.items()},
        "versions": dict.fromkeys(results, 1.0),
        "n-shot": dict.fromkeys(results, shots),
        "higher_is_better": {name: {"acc": True} for name in results},
        "n-samples": {task: {"original": len(m.gold), "effective": len(m.gold)} for task, m in tasks.items()},
        "config": {"model": "hf", "model_args": {"pretrained": model}, "limit": None, "fewshot_seed": 1234},
        "date": 1738324800.0,
        "model_name": model,
        "model_name_sanitized": model.replace("/", "__"),
    }
    file = folder / f"results_{date}.json"
    with replacing(file) as unfinished:
        unfinished.write_text(json.dumps(document, indent=2), encoding="utf-8")
    return file


def _config(task: str, matrix: Matrix, shots: int) -> dict[str, Any]:
    return {
        "task": task,
        "output_type": "multiple_choice",
        "doc_to_choice": list(matrix.labels),
        "doc_to_target": "answer",
        "num_fewshot": shots,
        "metadata": {"version": 1.0},
    }


def _sample(
    task: str, doc_id: int, scores: Sequence[float], gold: int, labels: Sequence[str], letters: int
) -> dict[str, Any]:
    question = f'{task}, "question" {doc_id}: {{"target": "no", "resps": [0]}}\n'
    prompt = question + "A made-up question, é. " * ((letters - len(question)) // 23) + "Answer:"
    responses = [[[str(score), "False"]] for score in scores]
    return {
        "doc_id": doc_id,
        "doc": {"question": question, "answer": gold, "target": "another", "arguments": {"resps": []}},
        "target": str(gold),
        "arguments": {f"gen_args_{k}": {"arg_0": prompt, "arg_1": f" {word}"} for k, word in enumerate(labels)},
        "resps": responses,
        "filtered_resps": [response[0] for response in responses],
        "filter": "none",
        "metrics": ["acc"],
        "doc_hash": sha256(question.encode()).hexdigest(),
        "prompt_hash": sha256(prompt.encode()).hexdigest(),
        "target_hash": sha256(str(gold).encode()).hexdigest(),
        "acc": float(np.argmax(scores) == gold),
    }


def _leaves(groups: Mapping[str, Sequence[str]], name: str) -> list[str]:
    return [leaf for child in groups[name] for leaf in _leaves(groups, child)] if name in groups else [name]
