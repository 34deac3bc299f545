"""The notebook docs/story.ipynb: it runs, its prose is true, and what is committed is small and of no machine.

`python -m tests.real.test_notebook` executes it again, with all sentences, and writes it with its new outputs.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

from tests.conftest import ROOT
from tests.launch import SECONDS

pytestmark = [pytest.mark.real, pytest.mark.slow]

NOTEBOOK = ROOT / "docs" / "story.ipynb"
PLACE = re.compile(r"(?<![\w.:/<])(?:/[\w.+-]+){2,}|[A-Za-z]:\\|file://|~/|\bip-\d+|localhost")
"""An absolute path, or the name of a host."""

Numbers = dict[str, list[float]]


def read() -> NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def execute(**variables: str) -> NotebookNode:
    """The notebook with new outputs, as somebody has it who opens it in an empty folder."""
    notebook = read()
    with tempfile.TemporaryDirectory() as folder:  # pytest's own have names that are too long for a socket
        kernel = {"transport": "ipc", "ip": f"{folder}/kernel", "connection_file": f"{folder}/kernel.json"}
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": folder}},
            config=Config(KernelManager=kernel),
        )
        client.execute(env={**os.environ, "IPYTHONDIR": folder, **variables})
    return notebook


@pytest.fixture(scope="module")
def committed() -> NotebookNode:
    return read()


@pytest.fixture(scope="module")
def short(smollm2_installed: None, lm_eval_project: Path) -> NotebookNode:
    """Executed with a few sentences, to stay quick; a cell that fails ends the test."""
    path = os.pathsep.join(filter(None, [str(lm_eval_project), str(ROOT), os.environ.get("PYTHONPATH")]))
    return execute(PYTHONPATH=path, OMP_NUM_THREADS="1", STORY_SENTENCES="50")


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def without_progress(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Progress bars, which are for those who wait, go to stderr."""
    return [output for output in outputs if output.get("name") != "stderr"]


def texts(cell: NotebookNode) -> list[str]:
    """What a reader can read below a cell."""
    outputs = without_progress(cell.outputs)
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]


def printed(notebook: NotebookNode, cell: str) -> str:
    (found,) = [one for one in notebook.cells if one.id == cell]
    return "".join(texts(found))


def table(notebook: NotebookNode, cell: str) -> Numbers:
    """The numbers of each row of a printed table."""
    lines = re.findall(r"^(\w+)((?: +\d+\.\d+)+) *$", printed(notebook, cell), flags=re.MULTILINE)
    return {name: [float(number) for number in numbers.split()] for name, numbers in lines}


@pytest.mark.parametrize("which", ["committed", "short"])
def test_the_prose_is_true(which: str, request: pytest.FixtureRequest) -> None:
    notebook = request.getfixturevalue(which)
    by_prompt = table(notebook, "raw")
    assert list(by_prompt) == ["0", "1", "2"]
    answers_positive = [answers for _, answers, _ in by_prompt.values()]
    assert answers_positive[0] > 85, "prompt 0 nearly always answers Positive"
    assert answers_positive[1] < 25, "prompt 1 seldom does"

    (share,) = re.findall(r"right of zero: (\d+)%", printed(notebook, "unlabeled"))
    assert int(share) > 85, "nearly all of the grey stands to the right of zero"
    negative, positive = map(float, re.findall(r"mean (-?[\d.]+)", printed(notebook, "coloured")))
    assert positive > negative, "positive sentences stand further to the right"

    alone = {name: accuracy for name, (accuracy, *_) in table(notebook, "fit").items()}
    assert list(alone) == ["none", "bc", "proca", "proca_h"]
    assert min(alone["bc"], alone["proca"], alone["proca_h"]) > alone["none"], "calibration helps under prompt 0"

    prompts = table(notebook, "prompts")
    assert {name: row[0] for name, row in prompts.items()} == alone, "by hand as in the run"
    assert prompts["none"][:3] == [accuracy for accuracy, *_ in by_prompt.values()]
    deviation = {name: row[4] for name, row in prompts.items()}
    assert deviation["none"] == max(deviation.values()), "raw depends most on the prompt"


def test_the_prose_is_true_of_all_sentences(committed: NotebookNode) -> None:
    """What a few sentences cannot show."""
    assert [truly for *_, truly in table(committed, "raw").values()] == [50.0] * 3, "half of them are positive"
    calibrated = table(committed, "fit")
    (bc, stderr, _), rows = calibrated["bc"], ("proca", "proca_h")
    assert all(abs(calibrated[name][0] - bc) < stderr for name in rows), "they differ by less than a standard error"

    prompts = table(committed, "prompts")
    assert max(prompts["bc"][:3]) - min(prompts["bc"][:3]) < 3, "bc says nearly the same under every prompt"
    assert prompts["proca_h"][0] > prompts["bc"][0], "proca_h is ahead under prompt 0"
    assert prompts["proca_h"][1] < prompts["bc"][1], "and behind under prompt 1"
    assert "proca_h: Prompt 1 has gone wrong" in printed(committed, "prompts"), "which the run has found"
    assert prompts["proca_h"][-1] < max(row[-1] for row in prompts.values()), "it does not lead here"
    assert prompts["none"][-1] >= prompts["bc"][-1] - 1, "together, raw is as good as bc here"


@pytest.mark.parametrize("which", ["committed", "short"])
def test_nothing_but_the_story_is_printed(which: str, request: pytest.FixtureRequest) -> None:
    notebook = request.getfixturevalue(which)
    figures = [output for cell in code(notebook) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(figures) == 2
    assert [found for cell in code(notebook) for text in texts(cell) for found in PLACE.findall(text)] == []


def test_what_is_committed_is_small_and_of_no_machine(committed: NotebookNode) -> None:
    nbformat.validate(committed)
    assert NOTEBOOK.stat().st_size < 150_000
    assert [cell.execution_count for cell in code(committed)] == list(range(1, len(code(committed)) + 1))
    assert set(committed.metadata) == {"kernelspec", "language_info"}
    assert committed.metadata.language_info == {"name": "python"}
    assert [cell.metadata for cell in committed.cells if cell.metadata] == []
    assert [cell.id for cell in code(committed) if without_progress(cell.outputs) != cell.outputs] == []
    assert [found for cell in committed.cells for found in PLACE.findall(cell.source)] == []


def write() -> None:
    """Execute the notebook and write it without progress bars and the version of the kernel."""
    notebook = execute()
    for cell in code(notebook):
        cell.outputs = without_progress(cell.outputs)
    notebook.metadata.language_info = NotebookNode(name="python")
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    write()
