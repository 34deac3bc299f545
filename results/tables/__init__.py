"""The tables of our documents: a module each."""

from __future__ import annotations

from typing import Any

from results.table import Table
from results.tables import (
    boundaries,
    existing_runs,
    formats,
    imbalance,
    methods,
    prompts,
    proportions,
    selection,
    self_labelled,
    self_labelled_elsewhere,
    size,
    sizes,
    templates,
    thresholds,
)

MODULES = (
    *(prompts, methods, self_labelled, self_labelled_elsewhere, sizes),
    *(boundaries, thresholds, templates, imbalance, proportions, selection, size, formats, existing_runs),
)
TABLES: dict[str, Table[Any]] = {module.TABLE.name: module.TABLE for module in MODULES}
