"""For programs: everything, as JSON."""

from __future__ import annotations

import json

from lm_eval_proca.compare.comparison import Report, as_dict


def render(report: Report) -> str:
    return json.dumps(as_dict(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
