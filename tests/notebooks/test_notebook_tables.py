"""Tables and marked text as a reader sees them."""

from dataclasses import dataclass

import polars as pl
import pytest

from dflash_lab import notebooks


@dataclass
class Span:
    text: str
    supervised: bool
    num_tokens: int


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num_batches", 46_340, "46,340"),
        ("num_batches", 46_340.0, "46,340"),
        ("num_batches", 42.5, "42.5"),
        ("max_tokens", 66.0, "66"),
        ("padding_efficiency", 0.8651, "0.865"),
        ("padding_efficiency", 1.0, "1.000"),
        ("share_of_tokens", 0.5, "50.0 %"),
        ("excess_over_sorted", 0.128, "12.8 %"),
        ("source", "chat", "chat"),
        ("within_tolerance", True, "yes"),
        ("bucket_bounds", [0, 1_216], "0, 1,216"),
        ("anything", None, "–"),
    ],
)
def test_values_are_written_for_people(name, value, text):
    assert notebooks.readable(name, value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0.0 %"),
        (1, "100.0 %"),
        (0.865, "86.5 %"),
        (0.9997, "99.97 %"),
        (0.99999, "> 99.99 %"),
        (0.00024, "0.024 %"),
        (0.0094, "0.94 %"),
        (1.531, "153.1 %"),
        (-0.02, "-2.0 %"),
        (None, "–"),
    ],
)
def test_nearly_all_and_nearly_nothing_are_not_rounded_away(share, text):
    assert notebooks.percent(share) == text


def test_a_table_in_plain_python_is_text(capsys):
    table = pl.DataFrame({"source": ["<b>", None], "num_samples": [1_234, 5], "share_of_tokens": [0.25, None]})
    notebooks.show_table(table, "Two sources.")
    assert capsys.readouterr().out.splitlines() == [
        "Two sources.",
        "source | num samples | share of tokens",
        "<b> | 1,234 | 25.0 %",
        "– | 5 | –",
    ]


def test_a_table_in_a_notebook_is_escaped_and_says_what_it_hides(monkeypatch):
    shown = []
    monkeypatch.setattr("dflash_lab.notebooks.tables.show_bundle", shown.append)
    notebooks.show_table(pl.DataFrame({"source": ["<b>"] * 45}))
    assert shown[0]["text/html"].count("&lt;b&gt;") == 40 and "<b>" not in shown[0]["text/html"]
    assert "5 more rows are not shown." in shown[0]["text/html"]
    assert shown[0]["text/plain"].endswith("5 more rows are not shown.")


def test_marked_text_keeps_the_edges_of_long_stretches(monkeypatch):
    shown = []
    monkeypatch.setattr("dflash_lab.notebooks.tables.show_bundle", shown.append)
    notebooks.show_spans([Span("ask <x>", False, 2), Span("begin " + "-" * 2_000 + " end", True, 900)], "One.")
    page, plain = shown[0]["text/html"], shown[0]["text/plain"]
    assert "ask &lt;x&gt;" in page and "900 tokens, supervised" in page
    assert plain.startswith("One. (supervised text in ⟦ ⟧)\nask <x>⟦begin -") and plain.endswith("- end⟧")
    assert "[... 1,310 characters ...]" in plain
