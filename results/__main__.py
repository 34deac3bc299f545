"""`python -m results [NAME …]` makes tables and writes them into the documents; `--write` only writes documents."""

from __future__ import annotations

import argparse
import os
import sys

from lm_eval_proca.cli.options import quiet_logging
from lm_eval_proca.errors import ProcaError, ResultsError
from results.documents import documents, written
from results.results_file import ROOT, path_of
from results.sweeps import INTERRUPTED
from results.tables import TABLES


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m results", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"tables to make: {', '.join(TABLES)} (default: all)")
    parser.add_argument("--write", action="store_true", help="make nothing, write documents from the results files")
    parser.add_argument("--from-existing", action="store_true", help="run no model, take what is finished in .results")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(TABLES)):
        parser.error(f"there is no table {', '.join(unknown)}; they are {', '.join(TABLES)}")
    os.chdir(ROOT)  # .results is there
    quiet_logging()
    failed = False
    for name in [] if args.write else args.names or TABLES:
        try:
            _make(name, args.from_existing)
        except ProcaError as error:  # the other tables go on
            failed = True
            print(f"{name}: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            return INTERRUPTED
    return int(not _write() or failed)


def _make(name: str, from_existing: bool) -> None:
    table = TABLES[name]
    if missing := table.not_given():
        print(f"{name}: left as it is. It needs {', '.join(missing)} in the environment; see CONTRIBUTING.md.")
        return
    table.make(from_existing=from_existing)
    print(f"{name}: written to {path_of(name).relative_to(ROOT)}", flush=True)


def _write() -> bool:
    """Whether every document could be written."""
    complete = True
    for document in documents():
        try:
            text = written(document, TABLES)
        except ResultsError as error:  # of a table that nobody has made yet
            complete = False
            print(f"{document.relative_to(ROOT)}: not written. {error}", file=sys.stderr)
            continue
        if text != document.read_text(encoding="utf-8"):
            document.write_text(text, encoding="utf-8")
            print(f"{document.relative_to(ROOT)}: written")
    return complete


if __name__ == "__main__":
    sys.exit(main())
