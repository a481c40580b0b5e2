"""The report: complete, honest about failures, and loading nothing."""

import base64
import dataclasses
import subprocess
import sys

import nbformat
import pytest

from dflash_lab.notebooks import NotebookError, build_report
from dflash_lab.notebooks import report as report_module
from dflash_lab.notebooks.export import markdown_html
from dflash_lab.notebooks.offline import make_offline, outside_loads
from dflash_lab.notebooks.report_runs import plan_runs

PIXEL = base64.b64encode(b"\x89PNG not really").decode()
OTHER = base64.b64encode(b"\x89PNG another one").decode()
SHOW = """from IPython.display import HTML, display
image = '{data}'
page = f'<figure><img alt="{alt}" src="data:image/png;base64,{{image}}"></figure>'
display({{"image/png": image, "text/html": page, "text/plain": "<Figure>"}}, raw=True)"""
PARAMETERS = 'count: int = 3  # how many, <samples>\noutputs: str = "outputs"  # folder'


@pytest.fixture
def notebooks(make_notebook):
    """A folder of one good and one failing notebook, and a further run of the good one."""
    path = make_notebook(
        "00_good",
        SHOW.format(data=OTHER, alt="Not this one"),
        SHOW.format(data=PIXEL, alt="Rises &amp; &quot;falls&quot;"),
        "from dflash_lab import notebooks\n"
        "notebooks.record(data_name='<corpus>', data_fingerprint='f00d', num_samples=12345)",
        'display(HTML(\'<script src="https://a/x.js"></script><img src="http://a.example/b.png" alt="far">\'))',
        "notebooks.answer(f'There are **{count}**, see [more](https://a.example).\\n\\n![pic](https://a/p.png)')",
        parameters=PARAMETERS,
        title="# How many <are> there?",
        tags={1: ["main-figure"]},
    )
    make_notebook(
        "01_bad", "print('before')", "raise FileNotFoundError('no data at /nonexistent')", title="# Does it fail?"
    )
    (path.parent / "report.toml").write_text(
        '[[run]]\nnotebook = "00_good"\nname = "00_more"\nparameters = { count = 40 }\n'
    )
    return path.parent


def test_report_shows_everything_and_loads_nothing(notebooks, tmp_path):
    lines = []
    report = build_report(notebooks, tmp_path / "out", parameters={"count": "7"}, say=lines.append)
    assert [(run.name, run.status) for run in report.runs] == [
        ("00_good", "ok"),
        ("00_more", "ok"),
        ("01_bad", "error"),
    ]
    assert not report.ok
    with pytest.raises(
        NotebookError, match="1 of 3 runs failed .*index.html.*\n01_bad: error: .*no data at /nonexistent"
    ):
        report.raise_for_status()
    assert lines[0] == "[1/3] 00_good ..."
    assert lines[1].startswith("[1/3] 00_good: ok in ")
    assert lines[-1].endswith("FileNotFoundError: no data at /nonexistent")

    index = report.index.read_text()
    pages = {path.name: path.read_text() for path in report.index.parent.iterdir()}
    assert set(pages) == {"index.html", "00_good.html", "00_more.html", "01_bad.html"}
    for page in pages.values():
        assert outside_loads(page) == []
        assert "prefers-color-scheme: dark" in page
    assert "How many &lt;are&gt; there?" in index
    assert "There are <strong>7</strong>" in index
    assert "There are <strong>40</strong>" in index
    assert 'href="https://a.example"' in index
    assert index.count(PIXEL) == 2
    assert OTHER not in index
    assert 'alt="Rises &amp; &#34;falls&#34;"' in index
    for text in ("&lt;corpus&gt;", "f00d", "12,345", "how many, &lt;samples&gt;", "<strong>7</strong></td>"):
        assert text in index
    assert "FileNotFoundError: no data at /nonexistent" in index
    assert "1 not ok" in index
    for name in ("python", "dflash_lab", "numpy", "torch", "polars", "pyarrow", "matplotlib", "cores", "memory"):
        assert f"<th>{name}</th>" in index
    for name in ("00_good", "00_more", "01_bad"):
        assert f'href="{name}.html"' in index

    page = pages["00_good.html"]
    assert page.count(PIXEL) == page.count(OTHER) == 1
    assert "alt='Rises &amp; \"falls\"'" in page
    assert "image = " not in page
    assert "[picture, not loaded: far]" in page
    assert "before" in pages["01_bad.html"]
    assert "no data at /nonexistent" in pages["01_bad.html"]


def test_after_an_interrupt_the_rest_is_shown_as_not_reached(notebooks, tmp_path, monkeypatch):
    def interrupted(path, parameters, outputs, *, name):
        return dataclasses.replace(report_module._not_reached(planned[0]), started="now", error="stopped by SIGTERM")

    planned = plan_runs(notebooks, parameters={}, only=None)
    monkeypatch.setattr(report_module, "run_notebook", interrupted)
    report = build_report(notebooks, tmp_path / "out")
    assert [run.status for run in report.runs] == ["interrupted"] * 3
    assert report.runs[1].error == "not reached: the report was interrupted before"
    index = report.index.read_text()
    assert "3 not ok" in index
    assert "not run" in index
    assert "How many &lt;are&gt; there?" in index


def test_names_and_values_are_checked_before_anything_runs(notebooks, tmp_path):
    cases = [
        ({"parameters": {"cuont": 1}}, "no notebook of this report has a parameter 'cuont'; did you mean 'count'?"),
        ({"parameters": {"count": "x"}}, "parameter 'count' is annotated int, got 'x'"),
        ({"parameters": {"outputs": "x"}, "only": "01"}, "no notebook of this report has a parameter 'outputs'"),
        ({"only": "07"}, "only='07' matches no run; runs: 00_good, 00_more, 01_bad"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError) as error:
            build_report(notebooks, tmp_path / "out", **options)
        assert message in str(error.value)
    with pytest.raises(FileNotFoundError, match="no folder of notebooks at .*missing"):
        build_report(tmp_path / "missing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[run]]\nnotebook = "00_good"\nname = "01_bad"\n',
            "two runs of the report are named '01_bad'; names must differ",
        ),
        ('[[run]]\nnotebook = "09_no"\nname = "x"\n', "run 'x' names '09_no', which is not in"),
        ('[[run]]\nnotebook = "00_good"\nname = "a/b"\n', "name of a run is 'a/b'"),
        ('[[run]]\nnotebook = "00_good"\n', "must have `notebook` and `name`, may have `parameters`, and nothing else"),
        ('[[run]]\nnotebook = "00_good"\nname = "x"\nparameters = { cuont = 1 }\n', "has no parameter 'cuont'"),
        ("[[runs]]\n", "lists no [[run]]"),
        ("what", "report.toml: Expected"),
    ],
)
def test_a_wrong_list_of_further_runs_is_refused(notebooks, tmp_path, text, message):
    (notebooks / "report.toml").write_text(text)
    with pytest.raises(ValueError) as error:
        build_report(notebooks, tmp_path / "out")
    assert message in str(error.value)


def test_command_line_fails_with_the_message_of_the_notebook(notebooks, tmp_path):
    command = [sys.executable, "-m", "dflash_lab.notebooks", "report", "--notebooks", str(notebooks), "--only", "01"]
    done = subprocess.run([*command, "--outputs", str(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "[1/1] 01_bad ..."
    assert done.stdout.splitlines()[-1].startswith(f"report: {tmp_path / 'out/report/index.html'} in ")
    assert done.stderr.splitlines()[-1].endswith("FileNotFoundError: no data at /nonexistent")
    assert "Traceback" not in done.stderr
    index = (tmp_path / "out/report/index.html").read_text()
    assert "-m dflash_lab.notebooks report" in index

    wrong = subprocess.run([*command, "-p", "cuont", "1"], capture_output=True, text=True, cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: no notebook of this report has a parameter 'cuont'; did you mean 'count'?")
    twice = subprocess.run(
        [*command, "-p", "count", "1", "-p", "count", "2"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (twice.returncode, twice.stderr) == (2, "error: a parameter is given twice\n")


@pytest.mark.parametrize(
    "piece",
    [
        '<script src="https://a/x.js"></script>',
        "<script>fetch('https://a')</script>",
        '<img src="http://a/b.png" alt="x">',
        '<img src="//a/b.png">',
        '<img src="b.png">',
        '<img src="data:image/png;base64,AA" srcset="http://a/b.png 2x">',
        '<link rel="stylesheet" href="https://a/x.css">',
        '<iframe src="https://a"></iframe>',
        '<video poster="http://a/b.png"></video>',
        '<object data="http://a/b.svg"></object>',
        '<style>@import "https://a/x.css"; p { color: red }</style>',
        "<style>p { background: url(https://a/b.png) }</style>",
        "<p style=\"background: url('https://a/b.png')\">x</p>",
        '<svg><image href="https://a/b.png"/><use xlink:href="https://a/b.svg#x"/></svg>',
        '<meta http-equiv="refresh" content="0; url=https://a">',
        '<base href="https://a/">',
        '<a href="javascript:alert(1)">x</a>',
        '<p onclick="fetch(1)">x</p>',
    ],
)
def test_whatever_would_load_is_found_and_taken_out(piece):
    assert outside_loads(f"<p>before</p>{piece}<p>after</p>")
    clean = make_offline(f"<p>before</p>{piece}<p>after</p>")
    assert outside_loads(clean) == []
    assert clean.startswith("<p>before</p>")
    assert clean.endswith("<p>after</p>")


def test_what_loads_nothing_is_left_alone():
    piece = (
        '<p style="color: red">a &lt; b <a href="https://a.example">link</a></p>'
        "<style>p { background: url(data:image/png;base64,AA) }</style>"
        '<img alt="x" src="data:image/png;base64,AA"/>'
    )
    assert outside_loads(piece) == []
    assert make_offline(piece) == piece


def test_markdown_is_rendered_without_its_scripts():
    page = markdown_html("**3** <script>alert(1)</script>\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n`a < b`")
    assert "<strong>3</strong>" in page
    assert "<table>" in page
    assert "<code>a &lt; b</code>" in page
    assert "script" not in page


def test_a_notebook_that_trains_takes_own_data_only_with_its_target(tmp_path):
    cells = [nbformat.v4.new_code_cell('data_path: str = ""  # samples\ntarget: str = "tiny"  # model')]
    cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "06_train.ipynb")
    (alone,) = plan_runs(tmp_path, parameters={"data_path": "mine.parquet"}, only=None)
    assert alone.values["data_path"] == "" and "-p target FOLDER" in alone.note
    (both,) = plan_runs(tmp_path, parameters={"data_path": "mine.parquet", "target": "model"}, only=None)
    assert (both.values["data_path"], both.values["target"], both.note) == ("mine.parquet", "model", "")
