"""Files: the same bytes in every process, whole or not at all, and no way out of the folder."""

import base64
import hashlib
import io
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from matplotlib.figure import Figure

from dflash_lab import figures

TABLE = pl.DataFrame(
    {
        "strategy": ["sorted", "random", "bucketed, stride"],
        "padding_efficiency": [1.0, 0.414, 0.865],
        "budget_use": [0.929, 0.367, 0.824],
        "relative_throughput": [1.0, 0.414, 0.865],
    }
)
DRAW_AND_HASH = """
import hashlib, sys
import polars as pl
from dflash_lab import figures
table = pl.read_csv(sys.argv[1])
saved = figures.save_figure(figures.plot_strategies(table), "again", table=table, outputs=sys.argv[2])
for path in (saved.png_path, saved.svg_path, saved.csv_path):
    print(hashlib.sha256(path.read_bytes()).hexdigest())
"""


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "table.csv"
    TABLE.write_csv(source)
    hashes = []
    for number, seed in enumerate(("1", "2")):
        command = [sys.executable, "-c", DRAW_AND_HASH, str(source), str(tmp_path / str(number))]
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(figures.__file__).parents[2]), "PATH": ""}
        hashes.append(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert len(hashes[0].split()) == 3
    assert hashes[0] == hashes[1]


def test_saving_twice_gives_the_same_bytes_and_no_rest(tmp_path: Path) -> None:
    fig = figures.plot_strategies(TABLE)
    digests = []
    for _ in range(2):
        # What a notebook does when it shows the figure.
        fig.savefig(io.BytesIO(), format="png", bbox_inches="tight")
        saved = figures.save_figure(fig, "strategies", table=TABLE, outputs=tmp_path)
        paths = (saved.png_path, saved.svg_path, saved.csv_path)
        digests.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in paths])
    assert digests[0] == digests[1]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "strategies.csv", "strategies.png", "strategies.svg",
    ]  # fmt: skip


def test_svg_has_text_as_text_and_says_what_it_shows(tmp_path: Path) -> None:
    saved = figures.save_figure(figures.plot_strategies(TABLE), "a", table=TABLE, outputs=tmp_path)
    svg = saved.svg_path.read_text(encoding="utf-8")
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"sorted", "padding efficiency", "0.865"} <= set(texts)
    assert saved.alt_text in svg
    assert "dc:date" not in svg


def test_csv_holds_the_table_and_nested_columns_as_json(tmp_path: Path) -> None:
    table = TABLE.with_columns(
        bounds=pl.Series([[0, 770], None, []], dtype=pl.List(pl.Int64)),
        kind=pl.Series(["x", "y", "x"], dtype=pl.Categorical),
    )
    saved = figures.save_figure(figures.plot_strategies(TABLE), "a", table=table, outputs=tmp_path)
    again = pl.read_csv(saved.csv_path)
    assert again.drop("bounds", "kind").equals(TABLE)
    assert again["bounds"].to_list() == ["[0, 770]", None, "[]"]


def test_saved_figure_shows_itself_with_its_alt_text(tmp_path: Path) -> None:
    table = TABLE.with_columns(strategy=pl.Series(["<b>", 'say "x"', "c"]))
    saved = figures.save_figure(figures.plot_strategies(table), "a", table=table, outputs=tmp_path)
    bundle = saved._repr_mimebundle_()
    assert bundle.keys() == {"image/png", "text/html", "text/plain"}
    assert base64.b64decode(bundle["image/png"]) == saved.png_path.read_bytes()
    assert bundle["text/plain"] == saved.alt_text
    page = ElementTree.fromstring(bundle["text/html"].replace('"><figcaption>', '"/><figcaption>'))
    picture = page.find("img")
    assert picture.get("alt") == saved.alt_text
    assert picture.get("src").startswith("data:image/png;base64,")
    assert page.find("figcaption").text.endswith("Data: figures/a.csv")
    assert "b'" not in repr(saved)
    with pytest.raises(AttributeError):
        saved.name = "other"


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a.png", ".hidden", "-x", "a b", "x" * 101, "a\n", "C:\\x", None])
def test_names_cannot_leave_the_folder(tmp_path: Path, name: object) -> None:
    with pytest.raises(ValueError) as error:
        figures.save_figure(figures.plot_strategies(TABLE), name, table=TABLE, outputs=tmp_path)
    assert str(error.value) == (
        f"name is {name!r}; legal: up to 100 letters, digits, - and _, the first a letter or digit"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_figure_without_alt_text_is_refused(tmp_path: Path) -> None:
    fig = Figure()
    with pytest.raises(ValueError) as error:
        figures.save_figure(fig, "mine", table=TABLE, outputs=tmp_path)
    assert str(error.value) == "figure 'mine' has no alt text; give it one with figures.set_alt_text(fig, text)"
    figures.set_alt_text(fig, "An empty\n  figure.")
    assert figures.save_figure(fig, "mine", table=TABLE, outputs=tmp_path).alt_text == "An empty figure."


def test_a_table_without_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        figures.save_figure(figures.plot_strategies(TABLE), "mine", table=pl.DataFrame(), outputs=tmp_path)
    assert str(error.value) == "the table behind figure 'mine' has no columns; legal: the data that the figure shows"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = figures.save_figure(figures.plot_strategies(TABLE), "a", table=TABLE, outputs=tmp_path)
    before = saved.png_path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no space left"):
        figures.save_figure(figures.plot_strategies(TABLE.head(1)), "a", table=TABLE, outputs=tmp_path)
    assert saved.png_path.read_bytes() == before
    assert len(list((tmp_path / "figures").iterdir())) == 3


def test_control_characters_leave_the_svg_xml(tmp_path: Path) -> None:
    table = TABLE.with_columns(strategy=pl.Series(["a\x07b", "c\ufffed", "e\x1f"]))
    saved = figures.save_figure(figures.plot_strategies(table), "a", table=TABLE, outputs=tmp_path)
    texts = [element.text for element in ElementTree.parse(saved.svg_path).iter("{http://www.w3.org/2000/svg}text")]
    assert {"ab", "cd", "e"} <= set(texts)
