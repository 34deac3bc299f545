"""Agreement between real processes of a gloo group."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from lm_eval_proca.distributed import compute_once, gather, is_first_process
from lm_eval_proca.errors import CalibrationError, DistributedError, ProcaError
from lm_eval_proca.harness.documents import Document
from lm_eval_proca.harness.filters import ScoredDocument, merge

PROCESSES = 2


def fail_on_the_first() -> None:
    raise CalibrationError("too few documents")


def fail_unexpectedly() -> None:
    raise KeyError("label")


def take_part(rank: int, meeting: str, answers) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES)
    said = {"gathered": gather({"rank": rank}), "first": is_first_process(), "once": compute_once(lambda: f"by {rank}")}
    for name, failing in (("ours", fail_on_the_first), ("theirs", fail_unexpectedly)):
        try:
            compute_once(failing)
        except ProcaError as error:
            said[name] = (type(error).__name__, str(error))
    answers.put((rank, said))
    dist.destroy_process_group()


def test_all_processes_know_the_same(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [
        context.Process(target=take_part, args=(rank, str(tmp_path / "meeting"), answers)) for rank in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    said = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert [said[rank].pop("first") for rank in range(PROCESSES)] == [True, False]
    assert said[0] == said[1]
    assert said[0]["gathered"] == [{"rank": 0}, {"rank": 1}]
    assert said[0]["once"] == "by 0"
    assert said[0]["ours"] == ("CalibrationError", "too few documents")
    assert said[0]["theirs"] == ("ProcaError", "The first process failed with KeyError: 'label'")


def scored(role: str, index: int, score: float = -1.0) -> ScoredDocument:
    return ScoredDocument(Document(role, index, -1), [score, -2.0], None, None)


def test_duplicates_count_once_and_documents_come_in_order():
    everything = [scored("estimate", 1), scored("eval", 4), scored("estimate", 0)]
    copy = [scored("estimate", 0, -9.0), scored("eval", 4, -9.0), scored("estimate", 1, -9.0)]
    expected = [one.document for one in everything]
    merged = merge([everything, copy], expected, task="t")
    assert [(one.document.role, one.document.index) for one in merged] == [
        ("eval", 4),
        ("estimate", 0),
        ("estimate", 1),
    ]
    assert {one.scores[0] for one in merged} == {-1.0}, "the first copy counts"


def test_a_missing_document_names_the_cause():
    expected = [Document("eval", 0, -1), Document("estimate", 0, -1)]
    with pytest.raises(
        DistributedError, match=r"1 documents were not scored by any of the 2 processes, the first is"
    ) as error:
        merge([[scored("eval", 0)], []], expected, task="t")
    assert "estimate document 0" in str(error.value)
    assert "use `--model hf-shared-prefix`" in str(error.value)
