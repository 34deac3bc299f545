"""The prompts are the paper's, character by character, and every label id gets the word that means the same.

`PAPER` and `TEMPLATES` are the two tables of the paper's appendix copied by hand; where the paper's source is at hand
they are compared with it. The columns that fill them are those of the data's own README.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest


class Row(NamedTuple):
    """A row of the paper's tables: what a reader fills in by hand."""

    instruction: str
    template: str
    label_words: list[str]
    """In the paper's order, which is not the order of the label ids."""


SENTIMENT = "Review: {Sentence}\nSentiment: {Label}"

PAPER = {
    "SST-2": Row("", SENTIMENT, ["Positive", "Negative"]),
    "SST-5": Row("", SENTIMENT, ["terrible", "bad", "okay", "good", "great"]),
    "MR": Row("", SENTIMENT, ["Positive", "Negative"]),
    "Subj": Row("", "Input: {Sentence}\nType: {Label}", ["objective", "subjective"]),
    "AP": Row(
        "",
        "Title: {Title}\nReview: {Content}\nIs the review positive or negative? {Label}",
        ["Positive", "Negative"],
    ),
    "AGNews": Row(
        "Classify the news articles into the categories of World, Sports, Business, and Technology.",
        "Article: {Sentence}\nAnswer: {Label}",
        ["World", "Sports", "Business", "Technology"],
    ),
    "DBPedia": Row(
        "Classify the documents based on whether they are about a Company, School, Artist, Athlete, Politician, "
        "Transportation, Building, Nature, Village, Animal, Plant, Album, Film, or Book.",
        "Article: {Sentence}\nAnswer: {Label}",
        [
            "Company",
            "School",
            "Artist",
            "Athlete",
            "Politician",
            "Transportation",
            "Building",
            "Nature",
            "Village",
            "Animal",
            "Plant",
            "Album",
            "Film",
            "Book",
        ],
    ),
    "RTE": Row("", "{Premise}\nquestion: {Hypothesis} True or False?\nanswer: {Label}", ["False", "True"]),
    "TREC": Row(
        "Classify the questions based on whether their answer type is a Number, Location, Person, Description, "
        "Entity, or Abbreviation.",
        "Question: {Sentence}\nAnswer Type: {Label}",
        ["Number", "Location", "Person", "Description", "Entity", "Ab"],
    ),
}
TEMPLATES = {
    "1": Row("", SENTIMENT, ["Positive", "Negative"]),
    "2": Row("", "Input: {Sentence}\nPrediction: {Label}", ["Positive", "Negative"]),
    "3": Row("", SENTIMENT, ["good", "bad"]),
    "4": Row("", "{Sentence} It was {Label}", ["good", "bad"]),
    "5": Row("", "Review: {Sentence}\nPositive Review: {Label}", ["Yes", "No"]),
    "6": Row("", "Review: {Sentence}\nStars: {Label}", ["5", "0"]),
    "7": Row("", "{Sentence} My overall feeling was that the movie was {Label}", ["good", "bad"]),
    "8": Row(
        "",
        "Review: {Sentence}\nQuestion: Is the sentiment of the above review Positive or Negative?\nAnswer: {Label}",
        ["Positive", "Negative"],
    ),
    "9": Row(
        "",
        # The apostrophe is the typographic one, as printed.
        "My review for last night\N{RIGHT SINGLE QUOTATION MARK}s film: {Sentence} The critics agreed that this movie "
        "was {Label}",
        ["good", "bad"],
    ),
}
ESTIMATE_SIZES = {
    "SST-2": 500,
    "SST-5": 2000,
    "MR": 1000,
    "Subj": 1000,
    "AP": 1000,
    "AGNews": 2000,
    "DBPedia": 3000,
    "RTE": 1000,
    "TREC": 2000,
}
"""For the GPT models."""


class Source(NamedTuple):
    """Where the rows of a dataset are, and how their columns and label ids read in the paper's words."""

    folder: str
    eval_split: str
    fields: dict[str, str]
    label_column: str
    words: dict[str, str]
    """From the name of a label, in the data, to the paper's word for it."""


SENTENCE = {"Sentence": "text"}
POLARITY = {"negative": "Negative", "positive": "Positive"}
SST2 = Source("sst2", "validation", {"Sentence": "sentence"}, "label", POLARITY)
SOURCES = {
    "SST-2": SST2,
    "SST-5": Source(
        "sst5",
        "validation",
        SENTENCE,
        "label",
        {
            "very negative": "terrible",
            "negative": "bad",
            "neutral": "okay",
            "positive": "good",
            "very positive": "great",
        },
    ),
    "MR": Source("mr", "validation", SENTENCE, "label", POLARITY),
    "Subj": Source("subj", "test", SENTENCE, "label", {"objective": "objective", "subjective": "subjective"}),
    "AP": Source("amazon_polarity", "test", {"Title": "title", "Content": "content"}, "label", POLARITY),
    "AGNews": Source(
        "ag_news",
        "test",
        SENTENCE,
        "label",
        {"World": "World", "Sports": "Sports", "Business": "Business", "Sci/Tech": "Technology"},
    ),
    "DBPedia": Source(
        "dbpedia_14",
        "test",
        {"Sentence": "content"},
        "label",
        {
            "Company": "Company",
            "EducationalInstitution": "School",
            "Artist": "Artist",
            "Athlete": "Athlete",
            "OfficeHolder": "Politician",
            "MeanOfTransportation": "Transportation",
            "Building": "Building",
            "NaturalPlace": "Nature",
            "Village": "Village",
            "Animal": "Animal",
            "Plant": "Plant",
            "Album": "Album",
            "Film": "Film",
            "WrittenWork": "Book",
        },
    ),
    "RTE": Source(
        "rte",
        "validation",
        {"Premise": "sentence1", "Hypothesis": "sentence2"},
        "label",
        {"entailment": "True", "not_entailment": "False"},
    ),
    "TREC": Source(
        "trec",
        "test",
        SENTENCE,
        "coarse_label",
        {
            "ABBR": "Ab",
            "ENTY": "Entity",
            "DESC": "Description",
            "HUM": "Person",
            "LOC": "Location",
            "NUM": "Number",
        },
    ),
}

DATASETS = {f"proca_{name.lower().replace('-', '')}": name for name in PAPER}
"""Task name to the paper's name of the dataset."""
CASES = {task: (PAPER[name], SOURCES[name]) for task, name in DATASETS.items()} | {
    f"proca_sst2_template{number}": (
        row,
        SST2._replace(words=dict(zip(["positive", "negative"], row.label_words, strict=True))),
    )
    for number, row in TEMPLATES.items()
}
"""Task name to what the paper prints and where the rows are."""


def rows_of(real_data: Path, folder: str, split: str) -> list[dict]:
    lines = (real_data / folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def label_names(real_data: Path, source: Source) -> list[str]:
    """Names of a dataset's labels in the order of their ids, from the rows or else from the data's README."""
    rows = rows_of(real_data, source.folder, source.eval_split)
    if "label_text" in rows[0]:
        names = {row["label"]: row["label_text"] for row in rows}
    else:
        line = next(
            line for line in (real_data / "README.md").read_text("utf-8").splitlines() if f"| {source.folder} |" in line
        )
        names = {int(i): name for i, name in re.findall(r"(\d+) ([\w/]+)", line.split("|")[4])}
    return [names[i] for i in range(len(names))]


def fill(printed: Row, source: Source, words: list[str], doc: dict) -> str:
    """The paper's template with the columns of a row and its label in place of the braces."""
    texts = {slot: doc[column].strip() for slot, column in source.fields.items()}
    return printed.template.format(**texts, Label=words[doc[source.label_column]])


@pytest.mark.parametrize("task_name", CASES)
def test_prompt_is_the_papers_template(task_name, load_task, real_data):
    """Every row below is rendered by lm-eval, with its label, and compared with the template filled by hand."""
    printed, source = CASES[task_name]
    words = [source.words[name] for name in label_names(real_data, source)]
    task = load_task(task_name)
    instruction = f"{printed.instruction}\n\n" if printed.instruction else ""
    real = {json.dumps(row, sort_keys=True) for row in rows_of(real_data, source.folder, source.eval_split)}
    docs = [task.eval_docs[i] for i in range(20)]
    for doc in docs:
        assert json.dumps(doc, sort_keys=True) in real
        context = task.fewshot_context(doc, num_fewshot=0)
        requests = task.construct_requests(doc, context)
        gold = requests[task.doc_to_target(doc)]
        assert "".join(gold.args) == instruction + fill(printed, source, words, doc)
        assert [request.args[1] for request in requests] == [f" {word}" for word in words]


@pytest.mark.parametrize("task_name", CASES)
def test_demonstrations_are_filled_templates_joined_by_a_blank_line(task_name, load_task, real_data):
    printed, source = CASES[task_name]
    words = [source.words[name] for name in label_names(real_data, source)]
    task = load_task(task_name)
    task.set_fewshot_seed(1234)
    doc = task.eval_docs[0]
    prompt = task.fewshot_context(doc, num_fewshot=3)
    zero_shot = task.fewshot_context(doc, num_fewshot=0)
    instruction = f"{printed.instruction}\n\n" if printed.instruction else ""
    question = zero_shot.removeprefix(instruction)
    assert prompt.startswith(instruction)
    assert prompt.endswith(f"\n\n{question}")
    demonstrations = prompt.removeprefix(instruction).removesuffix(f"\n\n{question}").split("\n\n")
    assert len(demonstrations) == 3
    labeled = {fill(printed, source, words, row) for row in rows_of(real_data, source.folder, "train")}
    assert set(demonstrations) <= labeled


TELLING = {
    "proca_sst2": {"Negative": r"\b(worst|tedious|lousy)\b", "Positive": r"\b(delightful|wonderful|enjoyable)\b"},
    "proca_sst5": {"terrible": r"\bworst\b", "great": r"\b(masterpiece|wonderful|brilliant)"},
    "proca_mr": {"Negative": r"\b(worst|tedious|lousy)\b", "Positive": r"\b(delightful|wonderful|enjoyable)\b"},
    "proca_subj": {"objective": r"\b(his wife|kidnapped|discovers)\b", "subjective": r"\b(entertaining|funny)\b"},
    "proca_ap": {"Negative": r"\b(waste of|refund|worst)\b", "Positive": r"\b(highly recommend|excellent)\b"},
    "proca_agnews": {
        "World": r"\b(Iraqi|Palestinian|militants)\b",
        "Sports": r"\b(quarterback|touchdown|coach)\b",
        "Business": r"\b(quarterly|earnings|profit)\b",
        "Technology": r"\b(software|NASA|Linux)\b",
    },
    "proca_dbpedia": {
        "Company": r"\bis an? [\w ]*company\b",
        "School": r"\bhigh school\b",
        "Artist": r"\b(singer|painter)\b",
        "Athlete": r"\b(footballer|baseball player)\b",
        "Politician": r"\bpolitician\b",
        "Transportation": r"\b(aircraft|locomotive|destroyer)\b",
        "Building": r"\b(historic house|church|building) ",
        "Nature": r"\b(river|lake|mountain)\b",
        "Village": r"\bis a village\b",
        "Animal": r"\bspecies of (moth|beetle|fish|frog|snail)",
        "Plant": r"\bspecies of (flowering )?plant",
        "Album": r"\bstudio album\b",
        "Film": r"\b(drama|comedy) film\b",
        "Book": r"\b(novel by|novel written|magazine|journal)\b",
    },
    "proca_trec": {
        "Ab": r"\b(stand for|abbreviation)\b",
        "Entity": r"^What (color|animal|sport|film)",
        "Description": r"^(Why|How do)\b",
        "Person": r"^Who\b",
        "Location": r"^Where\b",
        "Number": r"^(How many|When)\b",
    },
}
"""Words after which a reader knows the label, whatever its id."""


@pytest.mark.parametrize("task_name", TELLING)
def test_label_word_says_what_the_text_says(task_name, load_task):
    """Independent of label ids and their names: most rows that speak of a river are labeled Nature."""
    task = load_task(task_name)
    columns = SOURCES[DATASETS[task_name]].fields.values()
    given: dict[str, Counter] = {word: Counter() for word in TELLING[task_name]}
    for doc in task.dataset["train"]:
        text = "\n".join(doc[column] for column in columns)
        for word, pattern in TELLING[task_name].items():
            if re.search(pattern, text):
                given[word][task.doc_to_choice(doc)[task.doc_to_target(doc)]] += 1
    assert {word: counts.most_common(1)[0][0] for word, counts in given.items()} == {word: word for word in given}


def test_rte_is_true_where_the_premise_contains_the_hypothesis(load_task):
    task = load_task("proca_rte")
    overlaps: dict[str, list[float]] = {"True": [], "False": []}
    for doc in task.dataset["train"]:
        premise, hypothesis = (set(re.findall(r"\w+", doc[f"sentence{i}"].lower())) for i in (1, 2))
        overlaps[task.doc_to_choice(doc)[task.doc_to_target(doc)]].append(len(premise & hypothesis) / len(hypothesis))
    mean = {word: sum(values) / len(values) for word, values in overlaps.items()}
    assert mean["True"] > mean["False"] + 0.05


@pytest.mark.parametrize(("task_name", "name"), DATASETS.items())
def test_sizes_are_the_papers(task_name, name, load_task, real_data):
    task = load_task(task_name)
    assert task.settings.estimate_size == ESTIMATE_SIZES[name]
    # "the full validation set for evaluation except for AGNews, DBPedia and AP, for which we randomly sample 2000"
    source = SOURCES[name]
    full = len(rows_of(real_data, source.folder, source.eval_split))
    assert len(task.eval_docs) == (2000 if name in {"AGNews", "DBPedia", "AP"} else full)


def test_tables_are_copied_from_the_paper_without_a_slip(paper):
    assert printed_rows(paper, "Prompt templates for nine datasets") == PAPER
    assert printed_rows(paper, "Different templates used in") == TEMPLATES
    ((header, sizes),) = re.findall(r"Estimate set size for.*?\nLM &(.*?)\\\\.*?\nGPT &(.*?)\\\\", paper, re.DOTALL)
    names = [name.strip().replace("DBpedia", "DBPedia") for name in header.split("&")]
    assert dict(zip(names, map(int, sizes.split("&")), strict=True)) == ESTIMATE_SIZES


def printed_rows(paper: str, caption: str) -> dict[str, Row]:
    """The rows of a template table in the LaTeX source: a space below the first line marks it as an instruction."""
    (body,) = re.findall(rf"\\caption{{{caption}.*?\\midrule(.*?)\\bottomrule", paper, re.DOTALL)
    rows = {}
    for block in body.split(r"\midrule"):
        cells = [
            [cell.strip() for cell in line.removesuffix(r"\\").split("&")]
            for line in map(str.strip, block.splitlines())
            if line.endswith(r"\\")
        ]
        name, _, label_words = cells[0]
        lines = [cell[1].replace(r"\{", "{").replace(r"\}", "}") for cell in cells]
        instruction = lines.pop(0) if r"\specialrule" in block else ""
        rows[name] = Row(instruction, "\n".join(lines), label_words.split(" / "))
    return rows
