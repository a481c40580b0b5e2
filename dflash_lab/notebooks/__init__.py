"""Notebooks as programs: checked parameters, an honest run, one offline report.

`run_notebook` runs one notebook and says truthfully how it ended; `build_report` runs them all and writes
`outputs/report/index.html`, which loads nothing from anywhere. Inside a notebook, `progress`, `record` and `answer`
write what the report reads, `show_table`, `show_spans` and `show_decoded` write for people, and `is_live` tells a
person at JupyterLab from a batch run. `check_notebook` lists what breaks the house rules. `python -m
dflash_lab.notebooks` is the same from the command line.
"""

from dflash_lab.notebooks.checks import check_notebook
from dflash_lab.notebooks.decoded import show_decoded
from dflash_lab.notebooks.display import answer, is_live, progress, record
from dflash_lab.notebooks.parameters import Parameter, check_parameters, read_parameters
from dflash_lab.notebooks.report import ReportResult, build_report
from dflash_lab.notebooks.results import NotebookError, NotebookResult
from dflash_lab.notebooks.runner import run_notebook
from dflash_lab.notebooks.tables import percent, readable, show_spans, show_table

__all__ = [
    "NotebookError",
    "NotebookResult",
    "Parameter",
    "ReportResult",
    "answer",
    "build_report",
    "check_notebook",
    "check_parameters",
    "is_live",
    "percent",
    "progress",
    "read_parameters",
    "readable",
    "record",
    "run_notebook",
    "show_decoded",
    "show_spans",
    "show_table",
]
