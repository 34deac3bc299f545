from __future__ import annotations

import pytest
from lm_eval.api.registry import get_filter

from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.harness.filters import CalibrationFilter
from tests.conftest import ROOT


def test_filters_and_entry_points_follow_the_one_list_of_calibrators():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    target = f"{CalibrationFilter.__module__}:{CalibrationFilter.__name__}"
    assert project["entry-points"]["lm_eval.filters"] == dict.fromkeys(CALIBRATORS, target)
    assert {get_filter(name) for name in CALIBRATORS} == {CalibrationFilter}
