"""Right or wrong, document by document, behind the accuracies of a comparison: what its paired tests need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lm_eval_proca.compare.results import Notice, Run
from lm_eval_proca.errors import ProcaError
from lm_eval_proca.runs.groups import some_of
from lm_eval_proca.runs.sample_logs import Correct, UnclearTarget, joined, read_correct


class LoggedAnswers:
    """The answers of each run, its logs read once, and why some are not known."""

    def __init__(self, known: Mapping[Path, Correct]) -> None:
        self._known = known  # in place of the logs of their paths
        self._read: dict[Run, Correct | None] = {}
        self._notices: dict[Path, Notice] = {}
        self._not_logged: dict[Path, None] = {}

    def __call__(self, run: Run) -> Correct | None:
        if run not in self._read:
            self._read[run] = self._of_run(run)
        return self._read[run]

    def notices(self) -> list[Notice]:
        notices = list(self._notices.values())
        if self._not_logged:
            folders = some_of([str(file.parent) for file in self._not_logged], shown=3)
            text = f"Documents of {len(self._not_logged)} results are not logged, so their paired tests are left out "
            notices.append(Notice("no test", f"{text}(run lm_eval with --log_samples): {folders}."))
        return notices

    def _of_run(self, run: Run) -> Correct | None:
        files = run.samples_files
        found = [one for one in map(self._of_file, files) if one is not None]
        if len(found) < len(files):
            return None
        correct = joined(found)
        for name, number, accuracy in run.measured():
            logged = correct.answers(name, number)
            if logged is None or abs(logged.mean() - accuracy) > 1e-6:
                # The average of a group need not weigh its tasks by size; a test over documents would not be its test.
                if not run.members:
                    self._left_out(files[0], "damaged", f"{files[0]} does not give the accuracies of {run.file}")
                return None
        return correct

    def _of_file(self, file: Path) -> Correct | None:
        if file in self._known:
            return self._known[file]
        if not file.is_file():
            self._not_logged[file] = None
            return None
        try:
            return read_correct(file)
        except ProcaError as error:
            self._left_out(file, "no test" if isinstance(error, UnclearTarget) else "damaged", str(error))
            return None

    def _left_out(self, file: Path, kind: str, reason: str) -> None:
        self._notices[file] = Notice(kind, f"{reason.rstrip('.')}; its paired tests are left out.")
