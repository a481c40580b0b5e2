import ast
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from dflash_lab.batching import SOURCE_RUN_BUCKET_BOUNDS
from dflash_lab.data import corpus
from dflash_lab.data.chat import tokenize_conversations
from dflash_lab.data.corpus import (
    FORMS,
    builtin_conversations,
    builtin_corpus,
    builtin_tokenizer,
    write_builtin_conversations,
)
from dflash_lab.data.corpus_source import documented_functions, help_topics

MODULE = '''\
"""A module."""
import antigravity


def short(a):
    """Too short."""
    return a


def undocumented(a):
    # nothing
    return a


@wraps(f)
def first(a,
          b=1):
    """Add two things.

        Indented.
    """
    # why
    return a + b


class Box:
    if True:

        async def get(self):
            """Give what is in the box."""
            return """
left"""

    class Lid:
        def open(self): "Open the lid of the box."; return 1


def only():
    """Has a docstring and nothing else."""
'''


@pytest.fixture(scope="module")
def by_module():
    return builtin_corpus()


def write_module(root, name="box.py", text=MODULE):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


# Functions out of source files


def test_functions_are_those_with_a_docstring_and_a_body(tmp_path):
    found = list(documented_functions(write_module(tmp_path)))
    assert [(function.module, function.name) for function in found] == [("box", "first"), ("box", "Box.get")]
    first, get = found
    assert first.signature == "def first(a,\n          b=1):"
    assert first.docstring == "Add two things.\n\nIndented."
    assert first.code == "@wraps(f)\ndef first(a,\n          b=1):\n    # why\n    return a + b"
    assert get.signature == "async def get(self):"
    assert get.code == 'async def get(self):\n    return """\nleft"""'


def test_modules_are_named_sorted_and_chosen(tmp_path):
    text = 'def f():\n    """A documented function."""\n    return 1\n'
    for name in ("b.py", "a/__init__.py", "a/z.py", "test/x.py", "a/tests/x.py", "idlelib/x.py", "site-packages/p.py"):
        write_module(tmp_path, name, text)
    write_module(tmp_path, "broken.py", "def f(:\n")
    write_module(tmp_path, "python2.py", "print 'x'\n")
    (tmp_path / "latin.py").write_bytes(b"# coding: utf-8\n'\xff'\n")
    assert [function.module for function in documented_functions(tmp_path)] == ["a", "a.z", "b"]


def test_no_sources_is_an_error_that_names_the_folder(tmp_path):
    with pytest.raises(ValueError, match="holds no Python sources") as error:
        list(documented_functions(tmp_path))
    assert str(tmp_path) in str(error.value)
    with pytest.raises(ValueError, match="holds no help topics; this Python comes without them"):
        help_topics(tmp_path)


# Conversations


def test_every_answer_is_python_and_nothing_is_imported():
    rows = list(builtin_conversations("single_turn"))
    assert len(rows) > 3_000
    for row in rows:
        user, assistant = row["messages"]
        code = assistant["content"].removeprefix("```python\n").removesuffix("\n```")
        [function] = ast.parse(code).body
        assert f"`{row['id'].rpartition('.')[2]}`" in user["content"] or f".{function.name}`" in user["content"]
    assert "antigravity" not in sys.modules


def test_conversations_have_a_fixed_order_and_their_module_as_source():
    rows = list(builtin_conversations())
    assert rows == list(builtin_conversations())
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(row["source"] == row["id"].partition("/")[0].partition(".")[0] for row in rows)
    assert max(len(row["messages"]) for row in rows) == 20
    pairs = [turn for row in rows for turn in row["messages"]]
    assert pairs == [turn for row in builtin_conversations("single_turn") for turn in row["messages"]]
    assert all(
        [turn["role"] for turn in row["messages"]] == ["user", "assistant"] * (len(row["messages"]) // 2)
        for row in rows
    )


def test_topics_are_the_help_texts():
    rows = list(builtin_conversations("topics"))
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    [row] = [row for row in rows if row["id"] == "topics/assert"]
    assert row["source"] == "topics"
    assert row["messages"][1]["content"].startswith('The "assert" statement')


@pytest.mark.parametrize("call", [builtin_conversations, lambda form: builtin_corpus(form=form)])
def test_unknown_form_is_refused(call):
    with pytest.raises(ValueError, match="form is 'pairs'; legal: by_module, single_turn, topics"):
        call("pairs")


# Tokens


def test_lengths_look_like_the_source_run(by_module):
    counts = np.histogram(by_module.lengths, [*SOURCE_RUN_BUCKET_BOUNDS[:-1], np.inf])[0]
    assert 500 < len(by_module) < 1_200
    assert 1_600 < by_module.lengths.mean() < 2_400
    assert 1_367 < np.median(by_module.lengths) < 2_080  # between the source run's median and mean
    assert (counts > 0.08 * len(by_module)).all()
    assert 0.5 < by_module.loss_tokens.sum() / by_module.lengths.sum() < 0.65
    sources = list(by_module.sources)
    assert len(sources) == len(by_module) and len(set(sources)) > 100 and "asyncio" in sources


def test_cut_is_passed_on(by_module):
    cut = builtin_corpus(max_seq_len=1_024, min_loss_tokens=100)
    assert cut.lengths.max() == 1_024
    assert cut.loss_tokens.min() >= 100
    assert len(cut) < len(by_module)


def test_mask_is_the_answers_with_their_turn_ends(by_module):
    tokenizer = builtin_tokenizer()
    for number, row in enumerate(builtin_conversations()):
        if number % 50 == 0:
            sample = by_module[number]
            assert tokenizer.decode(sample.input_ids) == tokenizer.apply_chat_template(row["messages"], tokenize=False)
            answers = "".join(turn["content"] + "<|im_end|>" for turn in row["messages"] if turn["role"] == "assistant")
            assert tokenizer.decode(sample.input_ids[np.asarray(sample.loss_mask, bool)]) == answers


def test_tokenizer_has_its_reserved_ids_and_round_trips():
    tokenizer = builtin_tokenizer()
    assert len(tokenizer) == 2_048
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.eos_token_id) == (0, 1, 3)
    assert tokenizer.convert_tokens_to_ids(["<|pad|>", "<|mask|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2, 3]
    assert tokenizer.decode([2, 3], skip_special_tokens=True) == ""
    text = "def f(x):\n\treturn  'é ☃ \x00'  # 1234\r\n\n\n" + "".join(map(chr, range(1, 0x250)))
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_written_conversations_give_the_same_corpus(by_module, tmp_path):
    num_written = write_builtin_conversations(tmp_path / "new" / "chats.jsonl")
    lines = (tmp_path / "new" / "chats.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == list(builtin_conversations())
    assert num_written == len(by_module) == len(lines) - 1
    report = tokenize_conversations(tmp_path / "new" / "chats.jsonl", builtin_tokenizer(), tmp_path / "out.arrow")
    assert (report.left_out, report.num_altered_turns, report.num_open_turns) == ({}, 0, 0)
    assert report.num_tokens == by_module.lengths.sum()
    assert report.num_loss_tokens == by_module.loss_tokens.sum()


# The cache


def test_second_call_builds_nothing_and_is_quick(by_module, monkeypatch):
    monkeypatch.setattr(corpus, "_write_corpus", None)
    monkeypatch.setattr(corpus, "_write_tokenizer", None)
    monkeypatch.setattr(corpus, "_write_functions", None)
    start = time.perf_counter()
    assert builtin_corpus().fingerprint == by_module.fingerprint
    assert time.perf_counter() - start < 0.5


def test_failed_build_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("DFLASH_LAB_CACHE", str(tmp_path))

    def build(folder):
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        corpus._build_once("thing", build)
    assert list((tmp_path / "builtin").iterdir()) == []


def test_build_that_comes_second_takes_what_is_there(monkeypatch, tmp_path):
    monkeypatch.setenv("DFLASH_LAB_CACHE", str(tmp_path))

    def build(folder):
        first = corpus._build_once("thing", lambda other: (other / "by").write_text("the first"))
        assert first.is_dir()
        (folder / "by").write_text("the second")

    folder = corpus._build_once("thing", build)
    assert (folder / "by").read_text() == "the first"
    assert list((tmp_path / "builtin").iterdir()) == [folder]


def test_two_processes_at_once_build_the_same_without_torch(by_module, tmp_path):
    script = (
        "import sys\n"
        "from dflash_lab.data.corpus import builtin_corpus\n"
        "print(builtin_corpus(form='topics').fingerprint, 'torch' in sys.modules)"
    )
    environment = {
        **os.environ,
        "DFLASH_LAB_CACHE": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120) for process in processes]
    expected = f"{builtin_corpus(form='topics').fingerprint} False"
    assert [out.strip() for out, _ in said] == [expected] * 2, said
    built = sorted(path.name for path in (tmp_path / "builtin").iterdir())
    assert [name.rpartition("-")[0] for name in built] == ["corpus-topics", "functions", "tokenizer"]
    [fresh] = (tmp_path / "builtin").glob("tokenizer-*/tokenizer.json")
    assert fresh.read_bytes() == (corpus._tokenizer_folder() / "tokenizer.json").read_bytes()


def test_key_covers_python_tokenizers_and_builder(monkeypatch):
    keys = {corpus._builder_key()}
    monkeypatch.setattr(corpus, "version", lambda name: "0.0.1")
    keys.add(corpus._builder_key())
    monkeypatch.setattr(sys, "version", "3.99")
    keys.add(corpus._builder_key())
    monkeypatch.setattr(corpus.corpus_source, "__file__", corpus.__file__)
    keys.add(corpus._builder_key())
    assert len(keys) == 4


def test_forms_are_all_built(by_module):
    assert FORMS == ("by_module", "single_turn", "topics")
    assert len(builtin_corpus(form="single_turn")) > 3_000
