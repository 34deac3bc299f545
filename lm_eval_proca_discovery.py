"""Lets plain ``lm_eval`` find this package's tasks, filters and models.

lm-eval 0.4.13 looks for tasks only in its own folder and ``--include_path``, and reads no entry points. The line in
lm_eval_proca.pth imports this module when Python starts; it then waits for lm-eval's own modules and adds ours to
them as soon as they have been executed. Since every Python process of the environment passes through here, nothing
may raise, and nothing is imported before lm-eval is, beyond what the interpreter has loaded anyway.
"""

import os
import sys

DISABLE = "LM_EVAL_PROCA_DISABLE"
MODELS = {
    "hf-shared-prefix": "lm_eval_proca.models.shared_prefix:SharedPrefixLM",
    "vllm-shared-prefix": "lm_eval_proca.models.vllm_shared_prefix:VLLMSharedPrefixLM",
    "local-completions-shared-prefix": "lm_eval_proca.models.completions_shared_prefix:CompletionsSharedPrefixLM",
}


def task_configs_path() -> str:
    """The folder of our task YAMLs: inside the package in a wheel, beside it in a checkout."""
    here = os.path.dirname(os.path.abspath(__file__))
    installed = os.path.join(here, "lm_eval_proca", "task_configs")
    return installed if os.path.isdir(installed) else os.path.join(here, "task_configs")


def _add_tasks(manager):
    """Let TaskManager read our folder after the built-in tasks and before the user's include_path.

    And let it calibrate what it loads where `--metadata proca.calibrate=true` asks for it.
    """
    import functools
    import inspect

    plain_init = manager.TaskManager.__init__
    signature = inspect.signature(plain_init)

    @functools.wraps(plain_init)
    def init_with_our_tasks(self, *args, **kwargs):
        try:
            call = signature.bind(self, *args, **kwargs)
            call.apply_defaults()
            given, metadata = call.arguments["include_path"], call.arguments["metadata"]
            if call.arguments["include_defaults"]:
                call.arguments["include_path"] = _with_our_folder(given)
        except Exception as error:
            _warn("the tasks", error)
            return plain_init(self, *args, **kwargs)
        _check_settings(metadata)
        plain_init(*call.args, **call.kwargs)
        self.include_path = given

    plain_load = manager.TaskManager.load

    @functools.wraps(plain_load)
    def load_calibrated(self, *args, **kwargs):
        loaded = plain_load(self, *args, **kwargs)
        if _has_settings(self.metadata) or any(map(_is_calibrated, loaded["tasks"].values())):
            from lm_eval_proca.harness.stock_tasks import calibrate_loaded

            calibrate_loaded(loaded, self.metadata)
        return loaded

    manager.TaskManager.__init__ = init_with_our_tasks
    manager.TaskManager.load = load_calibrated


def _with_our_folder(include_path):
    from pathlib import Path

    ours = Path(task_configs_path()).resolve()
    given = [include_path] if isinstance(include_path, (str, os.PathLike)) else list(include_path or [])
    # A folder that is read twice makes lm-eval warn that each of its tasks overrides itself.
    if any(ours.is_relative_to(Path(folder).resolve()) for folder in given):
        return given
    return [ours, *given]


def _is_calibrated(task):
    return any(base.__module__ == "lm_eval_proca.harness.task" for base in type(task).__mro__)


def _has_settings(metadata):
    return any(str(key).partition(".")[0] == "proca" for key in metadata or ())


def _check_settings(metadata):
    """Tell a mistake in `--metadata proca.…` now: lm-eval loads the model before it reads the tasks."""
    if _has_settings(metadata):
        from lm_eval_proca.harness.settings import settings_of_run

        settings_of_run(metadata)


def _check_tasks(evaluator):
    """Tell a mistake in the settings and YAMLs of our tasks now: lm-eval loads the model before it reads the tasks."""
    import functools
    import inspect

    plain = evaluator.simple_evaluate
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def simple_evaluate(*args, **kwargs):
        from lm_eval_proca.errors import ProcaError

        try:
            call = signature.bind(*args, **kwargs).arguments
            _check_settings(call.get("metadata"))
            if call.get("task_manager") is not None:
                from lm_eval_proca.harness.settings import check_tasks

                manager = call["task_manager"]
                check_tasks(call.get("tasks") or [], manager.task_index, manager.metadata or {})
        except ProcaError:
            raise
        except Exception as error:
            _warn("a check of the tasks", error)
        return plain(*args, **kwargs)

    evaluator.simple_evaluate = simple_evaluate


def _end_in_a_sentence(harness):
    """Let the command `lm_eval` end with the sentence of our errors, not with a traceback."""
    import functools

    plain_execute = harness.HarnessCLI.execute

    @functools.wraps(plain_execute)
    def execute(self, args):
        from lm_eval_proca.errors import ProcaError

        try:
            return plain_execute(self, args)
        except ProcaError as error:
            import logging

            logging.getLogger("lm_eval.proca").debug("The error in full:", exc_info=True)
            sys.exit(f"lm_eval: {error}")
        except ValueError as error:
            begin, _, missing = str(error).partition("Tasks not found: ")
            if begin or not missing or not all(name.startswith("proca") for name in missing.split(", ")):
                raise
            sys.exit(f"lm_eval: {_no_such_task(missing)}")

    harness.HarnessCLI.execute = execute


def _no_such_task(missing):
    from pathlib import Path

    from lm_eval_proca.errors import did_you_mean

    ours = sorted(file.stem for file in Path(task_configs_path()).rglob("proca*.yaml"))
    near = did_you_mean(missing.partition(",")[0], ours)
    return f"there is no task {missing}; `lm-eval-proca tasks 'proca*'` lists ours.{near}"


def _add_models(models):
    # Not earlier: lm-eval loads its own list of models only while the registry is empty.
    from lm_eval.api.registry import model_registry

    for name, target in MODELS.items():
        if name not in model_registry:  # a later lm-eval may have read our entry points already
            model_registry.register(name, target=target)


def _add_filters(filters):
    from lm_eval.api.registry import filter_registry

    from lm_eval_proca.calibration.registry import CALIBRATORS

    for name in CALIBRATORS:  # by name: the class needs modules of lm-eval that are still being imported
        if name not in filter_registry:
            filter_registry.register(name, target="lm_eval_proca.harness.filters:CalibrationFilter")


def _warn(what, error):
    import logging

    logging.getLogger("lm_eval_proca").warning(
        "lm-eval-proca could not add %s to lm-eval (%s: %s): install the version of lm-eval that it asks for.",
        what,
        type(error).__name__,
        error,
    )


AFTER_IMPORT = {
    "lm_eval.tasks.manager": _add_tasks,
    "lm_eval.models": _add_models,
    "lm_eval.filters": _add_filters,
    "lm_eval.evaluator": _check_tasks,
    "lm_eval._cli.harness": _end_in_a_sentence,
}


class _Loader:
    """A module's own loader, with one step after the module has been executed."""

    _loader = None

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        # The module must not keep us: inspect, pkgutil and importlib.resources ask for the loader's type and files.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _after_import(module)


class _Finder:
    """Meta path finder: the later finders find the module, we only see to its loader."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in AFTER_IMPORT:
            return None
        try:
            for finder in sys.meta_path[sys.meta_path.index(cls) + 1 :]:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)
                    return spec
        except Exception:
            pass  # the import system now asks the same finders itself, and reports what is wrong with them
        return None


def _after_import(module):
    try:
        AFTER_IMPORT[module.__name__](module)
    except Exception as error:
        _warn(f"its part of {module.__name__}", error)


def _install():
    sys.meta_path.insert(0, _Finder)
    for name in AFTER_IMPORT:
        if name in sys.modules:
            _after_import(sys.modules[name])


if os.environ.get(DISABLE, "") in ("", "0"):
    _install()
