"""The tables of our documents: a module each."""

from __future__ import annotations

from results.table import Table
from results.tables import methods, prompts, self_labelled, self_labelled_elsewhere, sizes

TABLES: dict[str, Table] = {
    one.TABLE.name: one.TABLE for one in (prompts, methods, self_labelled, self_labelled_elsewhere, sizes)
}
