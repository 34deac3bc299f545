from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="session")
def repository() -> Path:
    return ROOT
