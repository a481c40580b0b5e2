"""The house rules: a clean notebook passes, and each breach is named."""

import json

import pytest

from dflash_lab.notebooks import check_notebook

IMPORTS = "%matplotlib inline\nimport sys\n\nfrom dflash_lab import notebooks"
ANSWER = 'notebooks.answer(f"There are **{count}**.")'


def test_clean_notebook_has_no_breach(make_notebook):
    assert check_notebook(make_notebook("n", IMPORTS, "total = count / 2  # tokens/s", ANSWER)) == []


@pytest.mark.parametrize(
    ("codes", "options", "breach"),
    [
        (
            [IMPORTS, ANSWER],
            {"title": "# A statement"},
            "cell 1: must be markdown whose first line is a title and a question",
        ),
        ([IMPORTS, ANSWER], {"title": "Text?"}, "cell 1: must be markdown"),
        ([IMPORTS, ANSWER], {"parameters": None}, "n.ipynb has no cell tagged 'parameters'"),
        ([IMPORTS, ANSWER], {"parameters": "count = 3"}, "is not of the form"),
        ([IMPORTS, ANSWER], {"parameters": "count: int = 3"}, "cell 2: parameter 'count' has no comment"),
        ([IMPORTS, ANSWER], {"parameters": "count: int = 3  # a = b"}, "the comment of parameter 'count' has a '='"),
        ([IMPORTS, ANSWER], {"parameters": 'mark: str = "#"  # m'}, "the value of parameter 'mark' has a '#'"),
        ([IMPORTS, ANSWER], {"parameters": "# above\ncount: int = 3  # a"}, "cell 2: comments stand at the end"),
        (
            ["import sys\n%matplotlib inline", ANSWER],
            {},
            "cell 3: the imports cell must begin with `%matplotlib inline`",
        ),
        ([IMPORTS, "import os", ANSWER], {}, "cell 4: imports stand in one cell, here cell 3"),
        ([IMPORTS, "def f():\n    pass", ANSWER], {}, "cell 4: no functions: `def f` belongs in the package"),
        ([IMPORTS, "class A:\n    pass", ANSWER], {}, "cell 4: no classes: `class A`"),
        ([IMPORTS, "x = 1\n" * 11, ANSWER], {}, "cell 4: 11 lines of code, at most 10"),
        ([IMPORTS, *["x = 1\n" * 10] * 8, ANSWER], {}, "85 lines of code in all, at most 80"),
        ([IMPORTS, "!ls", ANSWER], {}, "cell 4: no shell, installs or magics: `!ls`"),
        ([IMPORTS, "%pip install x", ANSWER], {}, "no shell, installs or magics: `%pip install x`"),
        ([IMPORTS, "%%bash\nls -la", ANSWER], {}, "no shell, installs or magics: `%%bash`"),
        ([IMPORTS, "files = !ls", ANSWER], {}, "cell 4: is not Python"),
        ([IMPORTS, "import os\nos.system('ls')", ANSWER], {}, "cell 4: no shell: `os.system`"),
        ([IMPORTS, "import subprocess", ANSWER], {}, "cell 4: no shell: `subprocess`"),
        ([IMPORTS, "sys.path.append('x')", ANSWER], {}, "cell 4: no sys.path"),
        ([IMPORTS, "import warnings\nwarnings.simplefilter('ignore')", ANSWER], {}, "cell 4: no warnings filters"),
        ([IMPORTS, "open('/data/x.jsonl')", ANSWER], {}, "cell 4: no absolute paths: '/data/x.jsonl'"),
        ([IMPORTS, "open('~/x')", ANSWER], {}, "no absolute paths: '~/x'"),
        ([IMPORTS, ANSWER, "1"], {"tags": {1: ["answer"], 2: []}}, "must be tagged 'answer'; tagged: [4] of 5"),
        ([IMPORTS, ANSWER], {"tags": {0: [], 1: []}}, "must be tagged 'answer'; tagged: none of 4"),
    ],
)
def test_each_breach_is_named(make_notebook, codes, options, breach):
    found = check_notebook(make_notebook("n", *codes, **options))
    assert any(breach in text for text in found), found


def test_stored_outputs_counts_and_widgets_are_breaches(make_notebook):
    path = make_notebook("n", IMPORTS, ANSWER)
    notebook = json.loads(path.read_text())
    notebook["cells"][2] |= {
        "outputs": [{"output_type": "stream", "name": "stdout", "text": "1"}],
        "execution_count": 4,
    }
    notebook["metadata"]["widgets"] = {}
    path.write_text(json.dumps(notebook))
    assert check_notebook(path) == [
        "cell 3: has outputs stored",
        "cell 3: has an execution count stored",
        "widget state is stored",
    ]
