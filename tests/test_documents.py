"""The documents: links that lead somewhere, and a README that is read to the end."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import lm_eval_proca
from tests.conftest import ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def documents() -> list[Path]:
    found = subprocess.run(["git", "ls-files", "*.md", "*.ipynb"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        return [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*.ipynb")]  # not a checkout
    return [ROOT / name for name in found.stdout.split()]


def prose_of(document: Path) -> str:
    text = document.read_text(encoding="utf-8")
    if document.suffix == ".ipynb":
        text = "\n".join(
            "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"
        )
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(document: Path) -> set[str]:
    """As code hosts make them of headings."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(prose_of(document)))
    return {one.strip().replace(" ", "-") for one in words}


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target in LINK.findall(prose_of(document)):
        place, _, anchor = target.partition("#")
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        file = (document.parent / place).resolve() if place else document
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_readme_is_short() -> None:
    """For somebody with three minutes."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = [line for line in prose_of(ROOT / "README.md").splitlines() if not line.startswith(("|", "!["))]
    assert len([line for line in text.splitlines() if not line.startswith("<!--")]) <= 150
    assert [line for line in prose if len(line) > 120] == []


def test_every_page_is_on_the_front_page() -> None:
    listed = set(LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    pages = {page.name for kind in ("*.md", "*.ipynb") for page in (ROOT / "docs").glob(kind)}
    assert pages - {"README.md"} <= listed


def pages_of(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_of(part)]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(pages_of(nav)) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_every_public_name_is_on_the_api_page() -> None:
    named = re.findall(
        r"^::: lm_eval_proca\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(named) == sorted(set(lm_eval_proca.__all__) - {"__version__"})
