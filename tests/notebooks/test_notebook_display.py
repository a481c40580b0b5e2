"""Progress, facts and answers, as they are outside and inside a notebook."""

import subprocess
import sys

import numpy as np
import pytest

from dflash_lab.notebooks import answer, display, is_live, progress, record, run_notebook
from dflash_lab.notebooks.cells import read_notebook
from dflash_lab.notebooks.display import ANSWER_MARK, FACTS_MIME


class Shown:
    """Stands in for IPython's display and its handle."""

    def __init__(self):
        self.states = []
        self.metadata = None

    def display(self, bundle, raw, display_id=False, metadata=None):
        assert raw
        self.states.append(bundle)
        self.metadata = metadata
        return self

    def update(self, bundle, raw):
        assert raw
        self.states.append(bundle)


@pytest.fixture
def shown(monkeypatch):
    """Pretend to be in a notebook and keep what is displayed."""
    stand_in = Shown()
    monkeypatch.setattr(display, "_in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", stand_in.display)
    return stand_in


def test_is_live_only_where_jupyterlab_says_so(monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert not is_live()
    monkeypatch.setenv("JPY_SESSION_NAME", "/a.ipynb")
    assert is_live()


def test_batch_progress_is_far_between_and_ends_in_the_end_state(capsys, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert list(progress(50, "batches")) == list(range(50))
    assert capsys.readouterr().out.startswith("batches: 50/50 in ")
    clock = iter(range(0, 10_000, 4))
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    list(progress(["a", "b", "c"], "files"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 4
    assert lines[0].startswith("files: 1/3 after ")
    assert lines[-1].startswith("files: 3/3 in ")


@pytest.mark.parametrize(
    ("items", "total", "state"),
    [(iter("abc"), None, "3/3"), (iter("abc"), 3, "3/3"), (0, None, "0/0"), ([], None, "0/0"), (iter("ab"), 3, "2/3")],
)
def test_progress_with_and_without_a_known_total(capsys, items, total, state):
    list(progress(items, "things", total=total))
    assert capsys.readouterr().out.startswith(f"things: {state} in ")


def test_progress_that_is_left_early_says_so(capsys):
    with pytest.raises(KeyError):
        for item in progress(50, "things"):
            if item == 3:
                raise KeyError
    assert "things: 3/50 in 0.0 s, stopped" in capsys.readouterr().out
    with pytest.raises(ValueError, match="progress.. got -1 items; legal: 0 or more"):
        progress(-1)


def test_live_progress_is_one_output_with_the_end_state(shown, monkeypatch, capsys):
    monkeypatch.setenv("JPY_SESSION_NAME", "/a.ipynb")
    list(progress(50, "<batches>"))
    assert shown.states[-1]["text/plain"].startswith("<batches>: 50/50")
    assert '<progress value="50" max="50">' in shown.states[-1]["text/html"]
    assert "&lt;batches&gt;" in shown.states[-1]["text/html"]
    assert capsys.readouterr().out == ""


def test_live_progress_in_a_kernel_is_saved_in_its_end_state(make_notebook, tmp_path):
    path = make_notebook(
        "n",
        "import os, time\nfrom dflash_lab import notebooks\nos.environ['JPY_SESSION_NAME'] = '/a.ipynb'",
        "for item in notebooks.progress(50, 'batches'):\n    time.sleep(0.01)",
    )
    result = run_notebook(path, {}, tmp_path / "out")
    result.raise_for_status()
    (output,) = read_notebook(result.output_path)["cells"][-1]["outputs"]
    assert output["output_type"] == "display_data"
    assert "".join(output["data"]["text/plain"]).startswith("batches: 50/50 in ")


def test_record_shows_plain_facts(shown):
    record(data_name="<b>", num_samples=np.int64(12345), share=1 / 3, bounds=(0, 770), complete=True)
    bundle = shown.states[0]
    assert bundle[FACTS_MIME] == {
        "data_name": "<b>",
        "num_samples": 12345,
        "share": 1 / 3,
        "bounds": [0, 770],
        "complete": True,
    }
    assert bundle["text/plain"].splitlines() == [
        "data_name: <b>",
        "num_samples: 12,345",
        "share: 0.333333",
        "bounds: [0, 770]",
        "complete: True",
    ]
    assert "&lt;b&gt;" in bundle["text/html"]
    with pytest.raises(ValueError, match="'share' got nan; only finite numbers are legal"):
        record(share=float("nan"))
    with pytest.raises(ValueError, match="got no facts; give at least one as name=value"):
        record()


def test_answer_is_markdown_and_marked(shown, capsys, monkeypatch):
    answer("It is **3**.")
    assert shown.states == [{"text/markdown": "It is **3**.", "text/plain": "It is **3**."}]
    assert shown.metadata == ANSWER_MARK
    with pytest.raises(ValueError, match="empty text; say what was found, with its number"):
        answer(" ")
    monkeypatch.setattr(display, "_in_notebook", lambda: False)
    answer("It is **3**.")
    assert capsys.readouterr().out == "It is **3**.\n"


def test_import_is_light():
    code = (
        "import sys, dflash_lab.notebooks\n"
        "heavy = {'torch', 'papermill', 'nbformat', 'nbconvert', 'nbclient', 'jupyter_client', 'IPython', 'matplotlib',"
        " 'numpy', 'polars', 'pyarrow', 'bs4', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
