"""Links that leave the documents lead to the repository, so that pages read the same on a code host.

So do links to notebooks, which code hosts show with their outputs and MkDocs does not.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)(\[[^\]]*\])\(([^)\s:#]+)(#[^)\s]*)?\)")


ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code>)")
"""Docstrings name things as Sphinx wants it; the site shows the names alone."""


def on_page_content(html: str, **_: Any) -> str:
    return ROLE.sub("", html)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    docs = Path(config.docs_dir).resolve()
    folder = Path(page.file.abs_src_path).resolve().parent

    def lead(found: re.Match[str]) -> str:
        text, place, anchor = found.groups(default="")
        target = (folder / place).resolve()
        of_site = target.is_relative_to(docs) and target.is_file() and target.suffix != ".ipynb"
        if not target.exists() or of_site:
            return found[0]  # a page of the site, or a mistake, which MkDocs tells
        kind = "tree" if target.is_dir() else "blob"
        return f"{text}({config.repo_url}/{kind}/main/{target.relative_to(docs.parent).as_posix()}{anchor})"

    return LINK.sub(lead, markdown)
