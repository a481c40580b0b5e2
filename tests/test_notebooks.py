"""The shipped notebooks: clean, run by papermill and by the strict runner, on own data, to the right numbers."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_lab import data, notebooks

FOLDER = Path(__file__).parents[1] / "notebooks"
SHIPPED = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
NAMES = [path.stem for path in SHIPPED]
# A run takes minutes; here two steps on a target with random weights, with the same samples and the same files.
SHORT = {"target": "random", "steps": 2, "num_prompts": 2, "max_new_tokens": 6}
QUICK = {
    "06_short_run": SHORT,
    "07_drafter_quality": {**SHORT, "tree_blocks": 16, "anchors_per_sample": 4},
    "08_gradients": {
        "target": "random",
        "arms": ["sorted"],
        "num_seeds": 2,
        "tokens_per_epoch": 3_000,
        "epochs": 1,
        "num_held_out": 4,
        "processes": 1,
    },
    "09_run_diagnosis": {"target": "random", "steps": 2},
}
STRATEGIES = next(path for path in SHIPPED if path.stem.startswith("03"))


def answer_of(path):
    cells = json.loads(Path(path).read_text())["cells"]
    (output,) = cells[-1]["outputs"]
    return "".join(output["data"]["text/markdown"])


@pytest.fixture(scope="module")
def own_data(tmp_path_factory):
    """Small samples as Parquet and as a Hugging Face folder, and chats: the parameters that open each."""
    datasets = pytest.importorskip("datasets")
    folder = tmp_path_factory.mktemp("own data")
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 900, 300)
    rows = [{"input_ids": rng.integers(0, 2_000, n).tolist(), "loss_mask": [0] * 3 + [1] * (n - 3)} for n in lengths]
    pq.write_table(pa.Table.from_pylist(rows), folder / "mine.parquet")
    datasets.Dataset.from_list(rows).save_to_disk(folder / "saved")
    chats = [
        {
            "conversations": [
                {"from": "system", "value": "Be brief."},
                {"from": "human", "value": f"Count to {n}."},
                {"from": "gpt", "value": " ".join(map(str, range(n)))},
            ],
            "source": "counting" if n % 2 else "more counting",
        }
        for n in range(1, 200)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    data.builtin_tokenizer().save_pretrained(folder / "tokenizer")
    return {
        "parquet": {"data_path": str(folder / "mine.parquet")},
        "hf": {"data_path": str(folder / "saved")},
        "chats": {"data_path": str(folder / "chats.jsonl"), "tokenizer": str(folder / "tokenizer")},
    }


def test_there_are_the_notebooks_that_the_index_lists():
    index = (FOLDER / "README.md").read_text()
    assert re.findall(r"\]\((\d\d_\w+\.ipynb)\)", index) == [path.name for path in SHIPPED]


@pytest.mark.parametrize("path", SHIPPED, ids=NAMES)
def test_shipped_notebooks_keep_the_house_rules(path):
    assert notebooks.check_notebook(path) == []


@pytest.mark.parametrize("path", SHIPPED, ids=NAMES)
def test_papermill_sees_the_parameters_that_the_runner_sees(path):
    import papermill

    seen = papermill.inspect_notebook(str(path))
    ours = notebooks.read_parameters(path)
    assert seen and list(seen) == list(ours)
    assert {"data_path", "token_budget", "max_seq_len", "max_batch_size", "bucket_bounds", "seed", "outputs"} <= set(
        ours
    )


@pytest.mark.parametrize("form", ["parquet", "hf", "chats"])
@pytest.mark.parametrize("path", SHIPPED, ids=NAMES)
def test_own_data_goes_through_by_parameters_alone(path, form, own_data, tmp_path):
    small = {"token_budget": 4_096, "max_seq_len": 512, "bucket_bounds": [0, 128, 256, 512], **QUICK.get(path.stem, {})}
    given = (
        own_data[form] if "tokenizer" in notebooks.read_parameters(path) else {"data_path": own_data[form]["data_path"]}
    )
    result = notebooks.run_notebook(path, given | small, tmp_path)
    result.raise_for_status()
    text = answer_of(result.output_path)
    name = Path(own_data[form]["data_path"]).name
    assert f"({name})" in text
    assert "nan" not in text and "None" not in text
    assert list((tmp_path / "figures").glob("*.png"))
    saved = json.loads(result.output_path.read_text())
    assert "widgets" not in saved["metadata"]


@pytest.mark.parametrize("path", SHIPPED, ids=NAMES)
def test_a_single_sample_is_enough(path, tmp_path):
    pq.write_table(pa.table({"input_ids": [[1, 2, 3]], "loss_mask": [[0, 1, 1]]}), tmp_path / "one.parquet")
    quick = QUICK.get(path.stem, {})
    result = notebooks.run_notebook(path, {"data_path": str(tmp_path / "one.parquet"), **quick}, tmp_path)
    result.raise_for_status()
    text = answer_of(result.output_path)
    assert "(one.parquet)" in text and "nan" not in text and "None" not in text


def test_plain_papermill_and_a_changed_parameter(tmp_path):
    tables = {}
    for budget in (49_152, 16_384):
        outputs = tmp_path / str(budget)
        command = [sys.executable, "-m", "papermill", str(STRATEGIES), str(tmp_path / "out.ipynb")]
        command += ["-p", "token_budget", str(budget), "-p", "outputs", str(outputs)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        tables[budget] = pl.read_csv(outputs / "figures" / "03_strategies_built-in-corpus.csv")
    batches = {budget: table["num_batches"].to_list() for budget, table in tables.items()}
    assert all(few < many for few, many in zip(batches[49_152], batches[16_384], strict=True))


def test_two_runs_draw_the_same_figures(tmp_path):
    drawn = []
    for number in range(2):
        notebooks.run_notebook(STRATEGIES, {"seed": 4}, tmp_path / str(number)).raise_for_status()
        drawn.append({path.name: path.read_bytes() for path in (tmp_path / str(number) / "figures").iterdir()})
    assert len(drawn[0]) == 9 and drawn[0] == drawn[1]


def test_the_source_runs_table_stands_in_the_notebook(tmp_path):
    result = notebooks.run_notebook(STRATEGIES, {"lengths": "source_run"}, tmp_path)
    result.raise_for_status()
    table = pl.read_csv(tmp_path / "figures" / "03_strategies_source-run-profile.csv")
    rows = {row["strategy"]: row for row in table.iter_rows(named=True)}
    bucketed = rows["bucketed"]
    assert bucketed["padding_efficiency"] == pytest.approx(0.865, abs=0.01)
    assert bucketed["budget_use"] == pytest.approx(0.824, abs=0.01)
    assert bucketed["num_batches"] == pytest.approx(46_350, abs=300)
    assert rows["sorted"]["padding_efficiency"] > 0.999
    assert 0.37 <= rows["random"]["relative_throughput"] / rows["sorted"]["relative_throughput"] <= 0.42
    assert rows["sorted"]["share_pairs_together_again"] == 1
    assert rows["capacity"]["num_batches"] == 41_088 and rows["capacity"]["padding_efficiency"] >= 0.985
    assert rows["capacity"]["share_pairs_together_again"] < 0.006 and rows["capacity"]["longest_run_batches"] <= 3
    assert rows["packed"]["budget_use"] >= 0.999
    assert "last bucket's share of batches | share | 0.52 | reported | 0.518 | yes" in result.output_path.read_text()


def test_a_pasted_log_is_diagnosed(tmp_path):
    line = (
        "[478m] step=4690 loss=1.0072 acc=0.154 streak=0.8 lr=5.99e-04 noise=0.0998 | tgt=0.65b/s dft=0.65b/s "
        "(26.2Ktok/s) | q_pre=[43, 50, 28, 31, 25, 38] q_hs=[2] | epoch~0.41 ETA=4.6d"
    )
    given = {"run": line, "total_steps": 69_525, "epochs": 6}
    result = notebooks.run_notebook(FOLDER / "09_run_diagnosis.ipynb", given, tmp_path)
    result.raise_for_status()
    text = answer_of(result.output_path)
    assert "0.405 epochs are trained at 46,350 batches an epoch, 4 micro-batches a step" in text and "4.6 days" in text
    drawn = {path.name for path in (tmp_path / "figures").glob("*.png")}
    assert drawn == {"09_maths_pasted-lines.png", "09_loss_pasted-lines.png"}


def test_a_path_that_is_not_there_fails_with_its_name(tmp_path):
    for command in (
        ["papermill", str(STRATEGIES), str(tmp_path / "out.ipynb"), "-p", "data_path", "/nonexistent"],
        ["dflash_lab.notebooks", "run", str(STRATEGIES), "-p", "data_path", "/nonexistent", "--outputs", str(tmp_path)],
    ):
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=120)
        assert done.returncode != 0
        assert "/nonexistent does not exist; legal: a file" in done.stderr


def test_the_whole_report_is_one_offline_page_each(tmp_path, own_data):
    from dflash_lab.notebooks.offline import outside_loads

    result = notebooks.build_report(
        FOLDER, tmp_path, parameters=own_data["parquet"], only=["00", "01_length_distribution"]
    )
    result.raise_for_status()
    pages = list((tmp_path / "report").glob("*.html"))
    assert {page.name for page in pages} >= {"index.html", "00_prepare_data.html", "01_length_distribution.html"}
    for page in pages:
        assert outside_loads(page.read_text()) == []
    index = (tmp_path / "report" / "index.html").read_text()
    assert "Do these chats teach the drafter what they should?" in index
    assert data.PreloadedDataset.open(own_data["parquet"]["data_path"]).fingerprint in index
    assert index.count("data:image/png;base64") >= 2
