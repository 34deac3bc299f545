"""Prompts and requests of documents, above all those that lm-eval does not know: what calibrators are fitted on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from lm_eval_proca.errors import TaskError

NOT_ABOUT_PROMPTS = {"tokenizer_name", "rank", "world_size", "cache_requests", "rewrite_requests_cache"}


def prompt_of(task: ConfigurableTask, doc: dict[str, Any], options: Mapping[str, Any], name: str) -> str:
    """The prompt of a document; `name` is for the sentence, should it have none.

    `options` are those of `build_all_requests`.
    """
    options = {key: value for key, value in options.items() if key not in NOT_ABOUT_PROMPTS}
    try:
        return task.fewshot_context(
            doc, num_fewshot=task.config.num_fewshot or 0, gen_prefix=task.doc_to_prefix(doc), **options
        )
    except TaskError:
        raise
    except Exception as error:  # of any function or template of the YAML
        reason = " ".join(str(error).split())
        raise TaskError(
            f"{task.config.task}: {name} cannot be put into the prompt ({type(error).__name__}: {reason}); make "
            f"doc_to_text fit every text, or drop such rows with process_docs."
        ) from error


def requests_of(
    task: ConfigurableTask, doc_id: int, doc: dict[str, Any], options: Mapping[str, Any], name: str
) -> list[Instance]:
    """One request per label."""
    return task.construct_requests(
        doc=doc,
        ctx=prompt_of(task, doc, options, name),
        metadata=(task.config["task"], doc_id, task.config.repeats),
        apply_chat_template=options.get("apply_chat_template", False),
        chat_template=options.get("chat_template"),
    )


def by_document(instances: Iterable[Instance]) -> dict[int, list[Instance]]:
    """The requests of each document, in the order of its labels."""
    of_document: defaultdict[int, list[Instance]] = defaultdict(list)
    for instance in sorted(instances, key=lambda instance: instance.idx):
        of_document[instance.doc_id].append(instance)
    return of_document
