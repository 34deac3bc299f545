"""Agreement between real processes of a gloo group."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from lm_eval_proca.errors import CalibrationError, DistributedError, ProcaError, ScoreTableError
from lm_eval_proca.harness.gather import compute_once, gather, is_first_process
from lm_eval_proca.harness.shards import Row, Shard, merge

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
    bad = Shard([], "document 3 has a score that is not a number" if rank == 1 else None)
    try:
        merge(gather(bad), {}, task="t")
    except ScoreTableError as error:
        said["bad news"] = str(error)
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
    assert said[0]["bad news"] == "document 3 has a score that is not a number"


def row(role: str, index: int, score: float = -1.0) -> Row:
    return Row(role, index, -1, [score, -2.0], None)


def test_duplicates_count_once_and_rows_come_in_order():
    everything = [row("estimate", 1), row("eval", 4), row("estimate", 0)]
    copy = [row("estimate", 0, -9.0), row("eval", 4, -9.0), row("estimate", 1, -9.0)]
    merged = merge([Shard(everything, None), Shard(copy, None)], {"eval": [4], "estimate": [0, 1]}, task="t")
    assert [(r.role, r.index) for r in merged] == [("eval", 4), ("estimate", 0), ("estimate", 1)]
    assert {r.scores[0] for r in merged} == {-1.0}, "the first copy counts"


def test_a_missing_document_names_the_cause():
    with pytest.raises(
        DistributedError, match=r"1 documents were scored by none of the 2 processes, the first is"
    ) as error:
        merge([Shard([row("eval", 0)], None), Shard([], None)], {"eval": [0], "estimate": [0]}, task="t")
    assert "estimate document 0" in str(error.value)
    assert "use `--model hf-shared-prefix`" in str(error.value)
