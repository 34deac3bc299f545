"""What a user's pip does, in real virtual environments: this package and lm-eval, each installed normally and editable.

The environments borrow the heavy dependencies of the running one through a folder of links, without this package,
lm-eval and any .pth file. Nothing of the running environment's own installation of this package may leak in: the
fixture `builtin` looks at each environment before the package is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@dataclass
class Environment:
    folder: Path

    @property
    def site_packages(self) -> Path:
        [found] = self.folder.glob("lib/python*/site-packages")
        return found

    def files(self) -> set[str]:
        return {str(file.relative_to(self.folder)) for file in self.folder.rglob("*")}

    def execute(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LM_EVAL"))}
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            env={**inherited, "HF_HUB_OFFLINE": "1", **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )

    def run(self, *command: str, **variables: str) -> str:
        process = self.execute(*command, **variables)
        assert process.returncode == 0, process.stderr
        return process.stdout

    def pip(self, *arguments: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.folder), "--quiet", "--no-input"]
        process = subprocess.run([*pip, *arguments], cwd=self.folder, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr

    def install(self, project: Path, *, editable: bool) -> None:
        self.pip(
            "install",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            *(["--editable"] if editable else []),
            str(project),
        )

    def listed_tasks(self, **variables: str) -> set[str]:
        """First column of the tables of `lm_eval ls tasks`."""
        rows = self.run("lm_eval", "ls", "tasks", **variables).splitlines()
        return {row.split("|")[1].strip() for row in rows if row.startswith("|") and not row.startswith("|-")}

    def start_cost(self) -> int:
        """Microseconds that the import of our hook adds to the start of Python: the least of some tries."""
        costs = []
        for _ in range(10):
            report = self.execute("python", "-X", "importtime", "-c", "pass").stderr
            [line] = [line for line in report.splitlines() if line.endswith(" lm_eval_proca_discovery")]
            costs.append(int(line.split("|")[1]))
        return min(costs)


def make_environment(folder: Path, dependencies: Path) -> Environment:
    venv.create(folder, symlinks=True, with_pip=False)
    made = Environment(folder)
    (made.site_packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return made


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links to all that is installed here, but for lm-eval, this package and .pth files."""
    links = tmp_path_factory.mktemp("dependencies")
    folders = [Path(folder) for folder in sys.path if Path(folder).name == "site-packages"]
    assert Path(sysconfig.get_path("purelib")) in folders
    for entry in (entry for folder in folders for entry in folder.iterdir()):
        ours = entry.name.startswith(("lm_eval", "_lm_eval", "__editable__"))
        if not ours and entry.suffix != ".pth" and not (links / entry.name).exists():
            (links / entry.name).symlink_to(entry)
    return links


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A copy of what is built, so that an editable install here has nothing to do with the checkout."""
    copy = tmp_path_factory.mktemp("lm-eval-proca")
    for name in ("lm_eval_proca", "task_configs"):
        shutil.copytree(repository / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "lm_eval_proca.pth", "lm_eval_proca_discovery.py"):
        shutil.copy(repository / name, copy)
    return copy


@pytest.fixture(scope="module", params=[False, True], ids=["lm-eval wheel", "lm-eval editable"])
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, dependencies: Path, lm_eval_project: Path
) -> Environment:
    """A virtual environment with lm-eval and without this package."""
    made = make_environment(tmp_path_factory.mktemp("environment"), dependencies)
    made.install(lm_eval_project, editable=request.param)
    location = made.run("python", "-c", "import lm_eval; print(lm_eval.__file__)")
    assert location.startswith(str(lm_eval_project if request.param else made.site_packages))
    return made


LOADED_MODULES = "import json, sys; print(json.dumps(sorted(sys.modules)))"
REGISTERED = """
import lm_eval.filters, lm_eval.models
from lm_eval.api.registry import filter_registry, model_registry
assert {"hf-shared-prefix", "hf"} <= set(model_registry), list(model_registry)
assert {"bc", "conca", "proca", "take_first"} <= set(filter_registry), list(filter_registry)
for name in ("bc", "conca", "proca"):
    filter_registry.get(name)()
"""
ENTRY_POINTS = """
from importlib.metadata import distribution
from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca_discovery import MODELS
points = distribution("lm-eval-proca").entry_points
assert {p.name: p.value for p in points if p.group == "lm_eval.models"} == MODELS
assert {p.name for p in points if p.group == "lm_eval.filters"} == set(CALIBRATORS)
"""


@pytest.fixture(scope="module")
def builtin(environment: Environment) -> set[str]:
    """The control: what the same environment lists without this package."""
    listed = environment.listed_tasks()
    assert "arc_easy" in listed
    assert not any(name.startswith("proca") for name in listed)
    return listed


@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_install_use_and_uninstall(environment: Environment, builtin: set[str], project: Path, editable: bool) -> None:
    before = environment.files()
    modules_before = json.loads(environment.run("python", "-c", LOADED_MODULES))
    assert not any(name.startswith("lm_eval") for name in modules_before)

    environment.install(project, editable=editable)
    added = environment.listed_tasks() - builtin
    assert {"proca", "proca_sst2", "proca_trec", "proca_sst2_template9", "proca_sst2_templates", "proca_demo"} <= added
    assert {name for name in added if not name.startswith("proca")} == set()
    assert builtin == environment.listed_tasks(LM_EVAL_PROCA_DISABLE="1")
    environment.run("python", "-c", REGISTERED)
    environment.run("python", "-c", ENTRY_POINTS)

    folder = Path(environment.run("lm-eval-proca", "tasks-path").strip())
    assert folder == (
        project / "task_configs" if editable else environment.site_packages / "lm_eval_proca" / "task_configs"
    )
    packaged = {str(file.relative_to(folder)) for file in folder.rglob("*") if "__pycache__" not in file.parts}
    source = project / "task_configs"
    assert packaged == {str(file.relative_to(source)) for file in source.rglob("*") if "__pycache__" not in file.parts}

    # Python itself starts with one small module more, and knows nothing of lm-eval.
    modules = json.loads(environment.run("python", "-c", LOADED_MODULES))
    assert set(modules) - set(modules_before) == {"lm_eval_proca_discovery"}
    assert environment.start_cost() < 5000

    environment.pip("uninstall", "--yes", "lm-eval-proca")
    assert {file for file in environment.files() - before if "__pycache__" not in Path(file).parts} == set()
    assert environment.listed_tasks() == builtin


def test_an_editable_install_whose_folder_is_gone_is_silent(dependencies: Path, project: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "environment", dependencies)
    checkout = tmp_path / "checkout"
    shutil.copytree(project, checkout)
    environment.install(checkout, editable=True)
    look = ("python", "-c", "import lm_eval_proca_discovery")
    assert environment.execute(*look).returncode == 0
    shutil.rmtree(checkout)
    assert "No module named 'lm_eval_proca_discovery'" in environment.execute(*look).stderr
    process = environment.execute("python", "-c", "pass")
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
