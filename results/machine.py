"""What a measured number rests on: machine, versions, commit. Benchmarks keep it with their numbers, too."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import lm_eval_proca

OURS = "lm-eval-proca"
PACKAGES = ("lm-eval", OURS, "transformers", "torch", "scikit-learn", "numpy")


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    return {package: _version(package) for package in packages}


def commit(root: Path) -> dict[str, Any]:
    """The commit of a checkout, and whether code differs from it; documents and results files are no code."""
    changed = _git(root, "status", "--porcelain", "--", ".", ":!docs", ":!*.md", ":!results/files")
    return {"commit": _git(root, "rev-parse", "--short=7", "HEAD") or None, "dirty": bool(changed)}


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True).stdout.strip()


def _version(package: str) -> str | None:
    if package == OURS:  # an editable install remembers the version that it was installed with
        return lm_eval_proca.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
