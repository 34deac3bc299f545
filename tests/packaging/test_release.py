"""What `make release` would upload."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePosixPath

import pytest
import yaml

import lm_eval_proca


def test_one_version_everywhere(repository: Path) -> None:
    citation = yaml.safe_load((repository / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.search(r"^## \[(.+?)\]", (repository / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert lm_eval_proca.__version__ == citation["version"] == newest[1]


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=repository, check=True)
    return folder


def test_the_wheel_holds_the_package_and_the_task_files(built: Path, repository: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packaged = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = [archive.read(name) for name in archive.namelist() if name.endswith("METADATA")]
    files = [*repository.glob("lm_eval_proca/**/*"), *repository.glob("task_configs/**/*")]
    ours = {file.relative_to(repository).as_posix() for file in files if file.is_file() and file.suffix != ".pyc"}
    expected = {name if name.startswith("lm_eval_proca/") else f"lm_eval_proca/{name}" for name in ours}
    assert packaged == expected | {"lm_eval_proca_discovery.py", "lm_eval_proca.pth"}
    assert "lm_eval_proca/py.typed" in packaged
    described = message_from_bytes(metadata)
    assert described["License-Expression"] == "Apache-2.0"
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)} <= set(
        described.get_all("Classifier")
    )


def test_the_sdist_holds_what_is_built_and_tested(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {PurePosixPath(name).relative_to(sdist.name.removesuffix(".tar.gz")) for name in archive.getnames()}
    assert {PurePosixPath(name) for name in ("lm_eval_proca.pth", "tests/conftest.py", "docs/method.md")} <= names
    assert {name.parts[0] for name in names} == {
        *(
            "lm_eval_proca",
            "lm_eval_proca_discovery.py",
            "lm_eval_proca.pth",
            "task_configs",
            "results",
            "tests",
            "docs",
        ),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", "Makefile", "constraints.txt"),
        *("pyproject.toml", "mkdocs.yml", "PKG-INFO", ".gitignore"),
    }
    assert not [name for name in names if name.suffix in (".png", ".pyc")]
