"""Generated estimate sets, written by a tiny language model that has learned the template."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lm_eval_proca.cli.generate import summary
from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.documents import read_estimate_file
from lm_eval_proca.sweep import generation
from lm_eval_proca.sweep.cell import Model
from lm_eval_proca.sweep.generation import Generation, Template, default_per_class, generate
from lm_eval_proca.sweep.runner import load_task
from tests.conftest import made_sentences, train_tokenizer, write_jsonl
from tests.sweep.made_cells import made_cell
from tests.sweep.test_sweep import cells_of, wait_until
from tests.sweep.test_workers import pids_that_run


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer GPT-2 trained for a few seconds on prompts of the template, so that it writes such prompts itself."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("writer")
    tokenizer = train_tokenizer(folder)
    words = ["Negative", "Positive"]
    text = "".join(
        f"Review: {row['sentence'].strip()}\nSentiment: {words[row['label']]}\n\n"
        for row in made_sentences(400, seed=5)
    )
    ids = torch.tensor(tokenizer.encode(text))
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=512, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        starts = torch.randint(len(ids) - 129, (8,)).tolist()
        batch = torch.stack([ids[start : start + 128] for start in starts])
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def model(writer: Path) -> Model:
    return Model("hf", {"pretrained": str(writer)}, batch_size=16, device="cpu")


def task_of(name: str, data_dir: Path, file: Path | None = None):
    return load_task(made_cell(name, 0, 0, settings=(("data_dir", data_dir), ("estimate_size", 30)), file=file), {})


@pytest.fixture
def sst2(data_dir: Path):
    return task_of("proca_sst2", data_dir)


WANTED = Generation(size=12, seed=3, round_size=16, max_generations=160)


def rows_of(path: Path) -> tuple[dict, list[dict]]:
    header, *rows = map(json.loads, path.read_text().split("\n")[:-1])
    return header["lm_eval_proca"], rows


def test_a_real_model_writes_usable_inputs(sst2, model: Model, tmp_path: Path):
    path = tmp_path / "made.jsonl"
    done = generate(sst2, model, WANTED, path, progress=False)
    provenance, rows = rows_of(path)
    assert provenance == json.loads(json.dumps(done))
    assert len(rows) == 12
    assert sum(done["counts"].values()) == done["generations"]
    texts = [row["sentence"] for row in rows]
    assert len(set(texts)) == 12
    assert all(text and "\n" not in text and "Sentiment" not in text for text in texts)
    shown = [demonstration["sentence"] for demonstration in provenance["demonstrations"]]
    assert sorted(d["label"] for d in provenance["demonstrations"]) == ["Negative"] * 2 + ["Positive"] * 2
    assert not set(texts) & set(shown)
    assert not {(text,) for text in shown} & sst2.evaluated_texts
    assert "12 inputs for proca_sst2" in summary(done, "made.jsonl")
    assert not (tmp_path / "made.jsonl.partial").exists()
    assert generate(sst2, model, WANTED, path, progress=False)["rows"] == 12, "a finished file is left as it is"


def test_without_examples_label_words_are_enough(sst2, model: Model, tmp_path: Path, monkeypatch):
    """The labeled rows are not even looked at, and every label is asked for equally often."""
    monkeypatch.setattr(type(sst2.sampler), "sample", lambda *args: pytest.fail("a labeled row is read"))
    asked, plain = [], generation._continuations
    monkeypatch.setattr(generation, "_continuations", lambda *args: asked.extend(args[2]) or plain(*args))
    done = generate(sst2, model, replace(WANTED, per_class=0), tmp_path / "made.jsonl", progress=False)
    provenance, rows = rows_of(tmp_path / "made.jsonl")
    assert (done["rows"], provenance["demonstrations"]) == (12, [])
    assert all(row["sentence"] and "\n" not in row["sentence"] for row in rows)
    counts = Counter(asked)
    assert set(counts) == {"Sentiment: Negative\nReview:", "Sentiment: Positive\nReview:"}
    assert len(set(counts.values())) == 1


def test_an_open_end_is_the_end_of_a_line(sst2):
    template = Template(sst2)
    assert template.cut(" a good film\n\nmore", open_end=True) == ({"sentence": "a good film"}, "")
    assert template.cut(" a good film\nSentiment: Positive", open_end=True) == ({"sentence": "a good film"}, "Positive")
    assert template.cut(" a good film") is None


def test_an_automatic_batch_size_is_the_whole_round(sst2, writer: Path, tmp_path: Path, monkeypatch):
    from lm_eval.models.huggingface import HFLM

    def search(*args, **kwargs):
        raise AssertionError("the largest batch is looked for, and the text depends on free memory")

    monkeypatch.setattr(HFLM, "_detect_batch_size", search)
    rows = {}
    for batch_size in ("auto", 16):  # 16 is the size of a round here
        model = Model("hf-shared-prefix", {"pretrained": str(writer)}, batch_size=batch_size, device="cpu")
        generate(sst2, model, WANTED, tmp_path / f"{batch_size}.jsonl", progress=False)
        assert model.load().batch_size == batch_size
        rows[batch_size] = rows_of(tmp_path / f"{batch_size}.jsonl")[1]
    assert rows["auto"] == rows[16]


def test_an_interrupted_generation_ends_with_the_same_file(sst2, model: Model, tmp_path: Path, monkeypatch):
    generate(sst2, model, WANTED, tmp_path / "whole.jsonl", progress=False)

    plain, calls = generation._continuations, []

    def stop_in_the_second_round(*args):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(generation, "_continuations", stop_in_the_second_round)
    small = Generation(**{**WANTED.__dict__, "size": 30})
    with pytest.raises(KeyboardInterrupt):
        generate(sst2, model, small, tmp_path / "cut.jsonl", progress=False)
    partial = tmp_path / "cut.jsonl.partial"
    with partial.open("ab") as file:
        file.write(b'["a round that was being wri')  # as a SIGKILL in the middle of a write leaves it
    monkeypatch.setattr(generation, "_continuations", plain)
    generate(sst2, model, small, tmp_path / "cut.jsonl", progress=False)
    generate(sst2, model, small, tmp_path / "uncut.jsonl", progress=False)
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "uncut.jsonl").read_bytes()
    assert rows_of(tmp_path / "cut.jsonl")[1][:12] == rows_of(tmp_path / "whole.jsonl")[1]


def test_other_settings_never_mix_with_a_file(sst2, model: Model, tmp_path: Path):
    path = tmp_path / "made.jsonl"
    generate(sst2, model, WANTED, path, progress=False)
    other = Generation(**{**WANTED.__dict__, "seed": 4})
    with pytest.raises(TaskError, match=r"holds an estimate set of another run \(seed\); delete it or choose another"):
        generate(sst2, model, other, path, progress=False)
    quick = Model("hf", {**model.model_args, "add_bos_token": True}, batch_size=16, device="cpu")
    with pytest.raises(TaskError, match=r"of another model \(add_bos_token\)"):
        generate(sst2, quick, WANTED, path, progress=False)
    path.write_text("not ours\n")
    with pytest.raises(TaskError, match="is no generated estimate set"):
        generate(sst2, model, WANTED, path, progress=False)
    path.unlink()
    (tmp_path / "made.jsonl.partial").write_text(json.dumps({"identity": {"run": {"seed": 4}}}) + "\n")
    with pytest.raises(TaskError, match="was begun as an estimate set of another"):
        generate(sst2, model, WANTED, path, progress=False)
    for damaged in ("{\n", "[1]\n"):
        (tmp_path / "made.jsonl.partial").write_text(damaged)
        with pytest.raises(TaskError, match=r"made.jsonl.partial is damaged; delete it"):
            generate(sst2, model, WANTED, path, progress=False)


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_what_is_written_is_read(sst2, model: Model, tmp_path: Path, monkeypatch, character: str):
    texts = [f" a film number {n}{character}of its kind\nSentiment: Positive" for n in range(16)]
    monkeypatch.setattr(generation, "_continuations", lambda *args: texts)
    path = tmp_path / "made.jsonl"
    generate(sst2, model, WANTED, path, progress=False)
    path.write_text(path.read_text() + "\n")
    provenance, docs = read_estimate_file(str(path), task="proca_sst2", text_fields=["sentence"])
    assert provenance["rows"] == len(docs) == 12
    assert docs[0]["sentence"] == f"a film number 0{character}of its kind"


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85"])
def test_rounds_that_were_kept_are_read(sst2, model: Model, tmp_path: Path, monkeypatch, character: str):
    texts = [f" a film number {n}{character}of its kind\nSentiment: Positive" for n in range(16)]
    rounds = iter([texts[:8], None, texts[8:]])

    def next_round(*args):
        found = next(rounds)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(generation, "_continuations", next_round)
    path = tmp_path / "made.jsonl"
    with pytest.raises(KeyboardInterrupt):
        generate(sst2, model, WANTED, path, progress=False)
    assert generate(sst2, model, WANTED, path, progress=False)["generations"] == 16
    assert [row["sentence"] for row in rows_of(path)[1]] == [
        f"a film number {n}{character}of its kind" for n in range(12)
    ]


def test_the_limit_is_kept_and_told(sst2, model: Model, tmp_path: Path):
    done = generate(
        sst2,
        model,
        Generation(size=500, seed=3, round_size=16, max_generations=32),
        tmp_path / "x.jsonl",
        progress=False,
    )
    assert done["generations"] == 32
    assert done["rows"] < 500
    assert "500 were wanted: raise --max_generations" in summary(done, "x.jsonl")


def test_a_node_with_a_disk_of_its_own_gets_the_file(model: Model, data_dir: Path, tmp_path: Path, monkeypatch):
    read = []
    monkeypatch.setattr(generation, "compute_once", lambda compute: b"what the first process, elsewhere, has written\n")
    monkeypatch.setattr(generation, "evaluate_cell", lambda cell, *_: read.append(dict(cell.settings)["estimate_file"]))
    cell = made_cell("proca_sst2", 0, 0, settings=(("data_dir", data_dir), ("estimate_size", 30)), estimate="generated")
    generation.evaluate_generating(cell, model, tmp_path / "runs" / ".unfinished-cell")
    assert [Path(file).read_text() for file in read] == ["what the first process, elsewhere, has written\n"]


TWO_FIELDS = """
class: !function lm_eval_proca.CalibratedTask
task: two_fields
dataset_path: somebody/pairs
validation_split: validation
fewshot_split: train
output_type: multiple_choice
doc_to_text: {template}
doc_to_target: label
doc_to_choice: ["False", "True"]
calibration: {{estimate_split: train, estimate_size: 4, text_fields: [premise, claim], data_folder: pairs}}
"""


@pytest.mark.parametrize(
    ("template", "head", "continuation", "fields", "label"),
    [
        (
            '"{{premise.strip()}}\\nquestion: {{claim.strip()}} True or False?\\nanswer:"',
            "",
            " It rained.\nquestion: The ground is wet. True or False?\nanswer: True\n",
            {"premise": "It rained.", "claim": "The ground is wet."},
            "True",
        ),
        (
            '"Claim: {{claim}}\\nText: {{premise}}\\nIs it so?"',
            "Claim:",
            " Wet.\nText: It rained.\nIs it so? True",
            {"claim": "Wet.", "premise": "It rained."},
            "True",
        ),
    ],
)
def test_two_fields_are_cut_at_the_borders_of_the_template(
    tmp_path: Path, template: str, head: str, continuation: str, fields: dict, label: str
):
    rows = [{"premise": f"p {i}", "claim": f"c {i}", "label": i % 2} for i in range(8)]
    for split, part in (("train", rows[:6]), ("validation", rows[6:])):
        write_jsonl(tmp_path / "pairs" / f"{split}.jsonl", part)
    (tmp_path / "two_fields.yaml").write_text(TWO_FIELDS.format(template=template))
    cut = Template(task_of("two_fields", tmp_path, tmp_path / "two_fields.yaml"))
    assert cut.head == head
    assert cut.cut(continuation) == (fields, label)
    assert cut.cut(continuation[:15]) is None


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ('"{{premise}} {{premise}} {{claim}}:"', "doc_to_text shows the field premise 2 times"),
        ('"{{premise}}\\nClaim: {{claim}}"', "nothing stands between the field claim and the label"),
        ('"{{claim}}\\nText: {{premise}} "', "nothing stands between the field premise and the label"),
        ('"{{premise}} {{claim}}\\nanswer:"', "nothing stands between the field premise and the field claim"),
        ('"{{premise}}\\n\\nClaim: {{claim}}:"', r"fewshot_delimiter \('\\n\\n'\) stands behind the field premise"),
    ],
)
def test_a_template_that_cannot_be_cut_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch, model: Model, template: str, sentence: str
):
    rows = [{"premise": f"p {i}", "claim": f"c {i}", "label": i % 2} for i in range(12)]
    write_jsonl(tmp_path / "pairs" / "train.jsonl", rows[:8])
    write_jsonl(tmp_path / "pairs" / "validation.jsonl", rows[8:])
    (tmp_path / "two_fields.yaml").write_text(TWO_FIELDS.format(template=template))
    task = task_of("two_fields", tmp_path, tmp_path / "two_fields.yaml")
    monkeypatch.setattr(Model, "load", lambda self: pytest.fail("the model is loaded"))
    with pytest.raises(TaskError, match=f"^two_fields: {sentence}"):
        generate(task, model, WANTED, tmp_path / "made.jsonl", progress=False)
    assert not (tmp_path / "made.jsonl.partial").exists()


def test_a_target_delimiter_is_a_border_too(tmp_path: Path):
    rows = [{"premise": f"p {i}", "claim": f"c {i}", "label": i % 2} for i in range(12)]
    write_jsonl(tmp_path / "pairs" / "train.jsonl", rows[:8])
    write_jsonl(tmp_path / "pairs" / "validation.jsonl", rows[8:])
    template = '"{{premise}}\\nClaim: {{claim}}"\ntarget_delimiter: "\\nIs it so? "'
    (tmp_path / "two_fields.yaml").write_text(TWO_FIELDS.format(template=template))
    cut = Template(task_of("two_fields", tmp_path, tmp_path / "two_fields.yaml"))
    assert cut.cut(" It rained.\nClaim: Wet.\nIs it so? True") == ({"premise": "It rained.", "claim": "Wet."}, "True")


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_sampling_needs_a_temperature(temperature: float):
    with pytest.raises(TaskError, match=f"temperature is {temperature}, but sampling needs a finite number above 0"):
        Generation(size=12, temperature=temperature)


def no_file(folder: Path) -> Path:
    (folder / "made.jsonl").mkdir()
    return folder / "made.jsonl"


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("rows\n")
    return folder / "file" / "made.jsonl"


def no_file_for_rounds(folder: Path) -> Path:
    (folder / "made.jsonl.partial").mkdir()
    return folder / "made.jsonl"


def in_a_folder_that_takes_no_files(folder: Path) -> Path:
    return Path("/proc/made.jsonl")  # nor from root, whom permissions do not stop


def no_name(folder: Path) -> Path:
    return Path(".")


@pytest.mark.parametrize("place", [no_file, no_name, below_a_file, no_file_for_rounds, in_a_folder_that_takes_no_files])
def test_a_place_that_cannot_be_written_is_told_before_the_model_is_loaded(
    data_dir: Path, writer: Path, tmp_path: Path, monkeypatch, capsys, place
):
    from lm_eval_proca.cli import main

    monkeypatch.setattr(Model, "load", lambda self: pytest.fail("the model is loaded"))
    path = place(tmp_path)
    given = ["--model", "hf", "--model_args", f"pretrained={writer}", "--task", "proca_sst2", "--device", "cpu"]
    settings = ["--metadata", f"proca.data_dir={data_dir}", "proca.estimate_size=20"]
    assert main(["generate", *given, *settings, "--output", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lm-eval-proca generate: {path}")
    assert " cannot be written (" in line


def test_a_full_disk_in_mid_round_keeps_the_rounds_before(sst2, model: Model, tmp_path: Path, monkeypatch):
    """The file may not grow any more, which the system says as it says that the disk is full."""
    plain, calls, limit = generation._continuations, [], resource.getrlimit(resource.RLIMIT_FSIZE)
    path, partial = tmp_path / "made.jsonl", tmp_path / "made.jsonl.partial"

    def disk_is_full_in_the_second_round(*args):
        calls.append(1)
        texts = plain(*args)
        if len(calls) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (partial.stat().st_size + 100, limit[1]))
        return texts

    wanted = Generation(**{**WANTED.__dict__, "size": 30})
    monkeypatch.setattr(generation, "_continuations", disk_is_full_in_the_second_round)
    try:
        with pytest.raises(TaskError) as error:
            generate(sst2, model, wanted, path, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert str(error.value) == (
        f"{partial} cannot be written (File too large): mend that and repeat the command, which goes on with the "
        "rounds that are kept, or choose another place."
    )
    generate(sst2, model, wanted, path, progress=False)
    calls_in_all = len(calls)
    monkeypatch.setattr(generation, "_continuations", plain)
    done = generate(sst2, model, wanted, tmp_path / "uncut.jsonl", progress=False)
    assert path.read_bytes() == (tmp_path / "uncut.jsonl").read_bytes()
    assert calls_in_all == done["generations"] // WANTED.round_size + 1  # one round was lost


def test_the_papers_number_of_demonstrations():
    assert [default_per_class(labels) for labels in (2, 6, 14)] == [2, 2, 1]


@pytest.fixture
def generating(data_dir: Path, writer: Path) -> list[str]:
    """A sweep of two cells that share an estimate set; without the folder."""
    return [
        *("sweep", "--model", "hf", "--model_args", f"pretrained={writer}", "--device", "cpu", "--batch_size", "16"),
        *("--tasks", "proca_sst2", "--num_fewshot", "0", "1", "--seeds", "0", "--limit", "10"),
        *("--estimate", "generated", "--metadata", f"proca.data_dir={data_dir}", "proca.estimate_size=20"),
        "--output_path",
    ]


def test_a_sweep_generates_and_uses_the_file(generating: list[str], tmp_path: Path, capsys):
    from lm_eval_proca.cli import main

    assert main([*generating, str(tmp_path)]) == 0, capsys.readouterr()
    (file,) = tmp_path.rglob("generated/*.jsonl")
    results = [json.loads(path.read_text()) for path in tmp_path.rglob("results_*.json")]
    assert len(results) == 2
    for result in results:
        record = result["configs"]["proca_sst2"]["metadata"]["proca"]
        assert record["estimate_source"] == f"file:{file}"
        assert record["generated_by"]["kind"] == "generated estimate set"


def test_no_data_at_all(generating: list[str], tmp_path: Path, capsys):
    """The model writes the unlabeled rows and labels its own demonstrations; both passes read one file."""
    from lm_eval_proca.cli import main

    nothing = ["described" if word == "generated" else word for word in generating]
    options = ["--demonstrations", "self", "--num_fewshot", "1", "--metadata", "proca.prompts=3"]
    assert main([*nothing, str(tmp_path), *options]) == 0, capsys.readouterr()
    (file,) = tmp_path.rglob("generated/*.jsonl")
    provenance, rows = rows_of(file)
    assert provenance["demonstrations"] == []
    written = {row["sentence"] for row in rows}
    (shown,) = tmp_path.rglob("demonstrations.jsonl")
    assert {row["sentence"] for row in rows_of(shown)[1]} <= written
    records = [
        json.loads(path.read_text())["configs"]["proca_sst2"]["metadata"]["proca"]
        for path in tmp_path.rglob("results_*.json")
    ]
    assert {record["estimate_source"] for record in records} == {f"file:{file}"}
    assert sorted(record["estimate_size"] for record in records) == [18, 20]


def test_one_worker_writes_the_file_that_two_need(generating: list[str], start_command: Callable, tmp_path: Path):
    """The first is killed in the middle, while the second waits for it; then that one goes on where it stopped."""
    alone = start_command([*generating, str(tmp_path / "alone")], tmp_path / "log")
    alone.join()
    runs = tmp_path / "runs"
    first = start_command([*generating, str(runs)], tmp_path / "first")
    wait_until(lambda: any(runs.glob("*/generated/*.partial")))
    os.kill(first.pid, signal.SIGSTOP)
    (partial,) = runs.glob("*/generated/*.partial")
    begun = partial.read_bytes()
    second = start_command([*generating, str(runs)], tmp_path / "second")
    wait_until(lambda: second.pid in pids_that_run(runs))
    time.sleep(1)
    assert partial.read_bytes() == begun, "two workers write one file"
    first.kill()
    first.join()
    second.join()
    assert (alone.exitcode, second.exitcode) == (0, 0), (tmp_path / "second").read_text()
    (file,), (expected,) = (folder.glob("*/generated/*") for folder in (runs, tmp_path / "alone"))
    assert file.read_bytes() == expected.read_bytes()
    assert len(cells_of(runs)) == 2
