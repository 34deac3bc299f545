"""The hook itself: each test is a fresh interpreter, because what an import does can be seen only once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def run(lm_eval_project: Path, repository: Path, tmp_path: Path) -> Run:
    """Run Python code that starts with our hook in place, in an empty folder."""

    def run(code: str, lm_eval: Path = lm_eval_project, **variables: str) -> subprocess.CompletedProcess:
        path = os.pathsep.join([str(lm_eval), str(repository)])
        environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **variables}
        process = subprocess.run(
            [sys.executable, "-c", "import lm_eval_proca_discovery\n" + textwrap.dedent(code)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr
        return process

    return run


USERS_TASK = "task: {name}\ndataset_path: somewhere\noutput_type: multiple_choice\n"


def test_our_tasks_come_after_the_built_in_and_before_the_users(
    run: Run, tmp_path: Path, lm_eval_project: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(USERS_TASK.format(name="proca_sst2"))
    run(
        f"""
        from pathlib import Path
        from lm_eval.tasks._index import TaskIndex
        seen = []
        plain = TaskIndex.build
        TaskIndex.build = staticmethod(lambda paths: seen.extend(paths) or plain(paths))
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path={str(tmp_path)!r})
        assert seen == [
            Path({str(lm_eval_project)!r}) / "lm_eval/tasks",
            Path(lm_eval_proca_discovery.task_configs_path()),
            Path({str(tmp_path)!r}),
        ], seen
        assert manager.task_index["proca_sst2"].yaml_path == Path({str(tmp_path / "mine.yaml")!r})
        assert {{"arc_easy", "proca_sst5", "proca_demo", "proca"}} <= set(manager.all_tasks)
        """
    )


def test_include_path_stays_what_the_user_gave(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(USERS_TASK.format(name="mine"))
    run(
        f"""
        from pathlib import Path
        from lm_eval.tasks import TaskManager

        folder = {str(tmp_path)!r}
        for given in (None, folder, Path(folder), [folder], (folder,), []):
            manager = TaskManager(None, given)
            assert manager.include_path is given
            assert "proca_sst2" in manager.all_tasks
            assert ("mine" in manager.all_tasks) == bool(given)
        """
    )


def test_without_the_built_in_tasks_ours_are_left_out_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(USERS_TASK.format(name="mine"))
    run(
        f"""
        from lm_eval.tasks import TaskManager
        assert TaskManager(include_path={str(tmp_path)!r}, include_defaults=False).all_tasks == ["mine"]
        """
    )


def test_our_folder_as_include_path_is_read_once(run: Run) -> None:
    process = run(
        """
        import logging, os
        logging.basicConfig(level=logging.WARNING)
        from lm_eval.tasks import TaskManager

        ours = lm_eval_proca_discovery.task_configs_path()
        assert "proca_sst2" in TaskManager(include_path=os.path.relpath(ours)).all_tasks
        around = [os.path.dirname(ours)]
        assert lm_eval_proca_discovery._with_our_folder(around) == around
        """
    )
    assert "override" not in process.stderr
    assert "Duplicate" not in process.stderr


def test_a_wrong_call_fails_as_it_does_without_us(run: Run) -> None:
    run(
        """
        import logging
        logging.disable()
        from lm_eval.tasks import TaskManager
        try:
            TaskManager(includepath="x")
        except TypeError as error:
            assert "TaskManager.__init__() got an unexpected keyword argument 'includepath'" in str(error)
        else:
            raise AssertionError
        """
    )


def test_models_are_registered_beside_lm_evals_own(run: Run) -> None:
    run(
        """
        from lm_eval.api.model import LM
        from lm_eval.api.registry import get_model, model_registry, register_model

        assert len(model_registry) == 0  # or get_model would never load lm-eval's own list
        assert get_model("dummy").__name__ == "DummyLM"
        target = "lm_eval_proca.models.shared_prefix:SharedPrefixLM"
        assert dict(model_registry.items())["hf-shared-prefix"] == target

        # What importing that module does. lm-eval refuses a second registration unless module and name agree.
        module, name = target.split(":")
        SharedPrefixLM = type(name, (LM,), {"__module__": module})
        register_model("hf-shared-prefix")(SharedPrefixLM)
        assert get_model("hf-shared-prefix") is SharedPrefixLM
        """
    )


def test_every_calibrator_is_a_registered_filter(run: Run) -> None:
    run(
        """
        from lm_eval.filters import filter_registry
        from lm_eval_proca.calibration.registry import CALIBRATORS

        assert set(CALIBRATORS) >= {"proca", "conca", "bc"}
        for name in CALIBRATORS:
            assert filter_registry.get(name).__name__ == "CalibrationFilter"
        assert "take_first" in filter_registry
        """
    )


@pytest.mark.parametrize("first", ["tasks", "api.task", "filters", "evaluator", "models", "__main__"])
def test_nothing_is_said_whichever_module_of_lm_eval_comes_first(run: Run, first: str) -> None:
    """A hook that imports what is still being imported could only warn that it failed."""
    said = run(f"import lm_eval.{first}\nimport lm_eval.tasks, lm_eval.filters, lm_eval.models").stderr
    assert "could not" not in said


def test_a_name_that_is_taken_is_left_alone(run: Run) -> None:
    run(
        """
        from lm_eval.api.registry import filter_registry, model_registry

        model_registry.register("hf-shared-prefix", target="entry.point:Model")
        filter_registry.register("proca", target="entry.point:Filter")
        import lm_eval.filters, lm_eval.models
        assert dict(model_registry.items())["hf-shared-prefix"] == "entry.point:Model"
        assert dict(filter_registry.items())["proca"] == "entry.point:Filter"
        assert "bc" in filter_registry
        """
    )


def test_a_wrong_setting_is_told_by_the_task_manager(run: Run) -> None:
    run(
        """
        from lm_eval.tasks import TaskManager
        for given in ({"proca.size": 3}, {"proca": {"estimate_size": "many"}}):
            try:
                TaskManager(include_defaults=False, metadata=given)
            except ValueError as error:
                assert type(error).__name__ == "TaskError", error
            else:
                raise AssertionError
        TaskManager(include_defaults=False, metadata={"pretrained": "x", "proca.estimate_size": 3, "procas": 1})
        """
    )


def test_modules_show_no_trace_of_the_hook(run: Run) -> None:
    run(
        """
        import importlib, importlib.resources, importlib.util, inspect, pkgutil
        from importlib.machinery import SourceFileLoader

        for name in lm_eval_proca_discovery.AFTER_IMPORT:
            found = importlib.util.find_spec(name)
            assert found.loader.get_filename(name) == found.origin
            module = importlib.import_module(name)
            assert type(module.__loader__) is type(module.__spec__.loader) is SourceFileLoader
            assert module.__spec__.origin == found.origin
            assert "import" in inspect.getsource(module)
        assert pkgutil.get_data("lm_eval.models", "dummy.py")
        assert importlib.resources.files("lm_eval.models").joinpath("dummy.py").is_file()
        import lm_eval
        found = {module.name for module in pkgutil.iter_modules(lm_eval.__path__, "lm_eval.")}
        assert {"lm_eval.models", "lm_eval.filters", "lm_eval.tasks"} <= found
        """
    )


def test_reloading_lm_eval_adds_our_tasks_again(run: Run) -> None:
    run(
        """
        import importlib
        from lm_eval.tasks import manager

        before = manager.TaskManager
        importlib.reload(manager)
        assert manager.TaskManager is not before
        assert "proca_sst2" in manager.TaskManager().all_tasks
        """
    )


def test_an_lm_eval_that_was_imported_first_gets_our_tasks_too(run: Run) -> None:
    run(
        """
        import importlib, sys
        sys.meta_path.remove(lm_eval_proca_discovery._Finder)
        from lm_eval.tasks import TaskManager
        assert "proca_sst2" not in TaskManager().all_tasks
        importlib.reload(lm_eval_proca_discovery)
        assert "proca_sst2" in TaskManager().all_tasks
        """
    )


def test_lm_eval_in_a_zip_file_is_imported_as_usual(run: Run, lm_eval_project: Path, tmp_path: Path) -> None:
    archive = tmp_path / "lm_eval.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for file in lm_eval_project.glob("lm_eval/**/*.py"):
            zipped.write(file, file.relative_to(lm_eval_project))
    run(
        """
        import zipimport
        import lm_eval.models
        from lm_eval.api.registry import model_registry
        assert type(lm_eval.models.__loader__) is zipimport.zipimporter
        assert {"hf", "hf-shared-prefix"} <= set(model_registry)
        """,
        lm_eval=archive,
    )


def test_other_import_hooks_work_before_and_behind_ours(run: Run) -> None:
    run(
        """
        import importlib.util, sys

        class Recorder:
            def __init__(self):
                self.names, self.inside = [], False
            def find_spec(self, name, path=None, target=None):
                if self.inside or not name.startswith("lm_eval."):
                    return None
                self.names.append(name)
                self.inside = True
                try:
                    return importlib.util.find_spec(name)  # as wrapt and its kind do, through all hooks
                finally:
                    self.inside = False

        before, behind = Recorder(), Recorder()
        sys.meta_path.insert(0, before)
        sys.meta_path.insert(2, behind)
        assert sys.meta_path[1] is lm_eval_proca_discovery._Finder
        from lm_eval.tasks import TaskManager
        assert "lm_eval.tasks.manager" in before.names
        assert "lm_eval.tasks.manager" in behind.names
        assert "proca_sst2" in TaskManager().all_tasks
        """
    )


def test_a_broken_hook_of_another_tool_fails_as_it_does_without_us(run: Run) -> None:
    run(
        """
        import sys

        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "lm_eval.models":
                    raise OSError("not ours")

        sys.meta_path.insert(1, Broken())
        try:
            import lm_eval.models
        except OSError as error:
            assert str(error) == "not ours"
        else:
            raise AssertionError
        """
    )


def test_an_lm_eval_that_has_changed_is_left_working_with_one_warning(run: Run, tmp_path: Path) -> None:
    package = tmp_path / "changed" / "lm_eval"
    for folder in (package, package / "tasks", package / "models"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (package / "tasks" / "manager.py").write_text(
        "class TaskManager:\n    def __init__(self, folders):\n        self.folders = folders\n"
    )
    process = run(
        """
        import lm_eval.models
        from lm_eval.tasks.manager import TaskManager
        assert TaskManager(["a"]).folders == ["a"]
        """,
        lm_eval=package.parent,
    )
    assert process.stderr.count("lm-eval-proca could not add") == 2
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(("value", "found"), [("1", False), ("0", True), ("", True)])
def test_the_variable_switches_it_off(run: Run, value: str, found: bool) -> None:
    run(
        f"""
        import lm_eval.models
        from lm_eval.api.registry import model_registry
        assert ("hf-shared-prefix" in model_registry) is {found}
        """,
        LM_EVAL_PROCA_DISABLE=value,
    )
