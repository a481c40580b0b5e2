"""Status lines come back as they were written, through whatever a terminal makes of them; what is lost is counted."""

import re

import numpy as np
import polars as pl
import pytest

from dflash_lab import analysis
from dflash_lab.analysis.captured_text import plain_lines

LINE = (
    "[478m] step=4690 loss=1.0072 acc=0.154 streak=0.8 lr=5.99e-04 noise=0.0998 | tgt=0.65b/s dft=0.65b/s (26.2Ktok/s) "
    "| q_pre=[43, 50, 28, 31, 25, 38] q_hs=[2] | epoch~0.41 ETA=4.6d"
)
OURS = (
    "[0m] step=7 loss=none acc=none streak=1.25 lr=1.00e-03 noise=0.0000 | tgt=3.10b/s dft=2.90b/s (0.9Ktok/s) | "
    "q_pre=[4] q_hs=[1] | epoch~0.07 ETA=?"
)
PREFIXES = ("", "2024-05-01 12:00:00,123 rank0: INFO ", "(run pid=311) ", "| ")
OTHERS = (
    "Saving checkpoint step-00004690 ... done",
    "WARNING: worker 3 waited 2.1 s",
    "Traceback (most recent call last):",
    '  File "loop.py", line 3, in step',
    "eval: step=4690 loss=0.9 acc=0.2",
    " 45%|████▌     | 45/100 [00:10<00:12,  4.3it/s]",
)


def values(log):
    """The table without where its lines stood."""
    return log.table.drop("line")


def written(seed, *, count=12, ours=False):
    """Lines of a run, and the rows that they are to give back."""
    rng = np.random.default_rng((seed, 7))
    lines, rows, step, minutes = [], [], int(rng.integers(1, 5_000)), int(rng.integers(0, 500))
    for _ in range(count):
        step, minutes = step + int(rng.integers(1, 900)), minutes + int(rng.integers(0, 3))
        row = {
            "step": step,
            "elapsed_seconds": 60.0 * minutes,
            "loss": round(float(rng.lognormal()), 4),
            "accuracy": round(float(rng.random()), 3),
            "streak": round(float(3 * rng.random()), 2 if ours else 1),
            "learning_rate": float(f"{rng.random() * 1e-3:.2e}"),
            "noise": round(float(rng.random() / 10), 4),
            "target_batches_per_second": round(float(3 * rng.random()), 2),
            "drafter_batches_per_second": round(float(3 * rng.random()), 2),
            "real_tokens_per_second": round(float(50 * rng.random()), 1) * 1e3,
            "q_pre": rng.integers(0, 60, int(rng.integers(1, 9))).tolist(),
            "q_hs": rng.integers(0, 60, int(rng.integers(1, 4))).tolist(),
            "epoch": round(float(6 * rng.random()), 2),
            "eta_seconds": round(float(20 * rng.random()), 1) * 3_600,
        }
        rows.append(row)
        lines.append(
            f"[{minutes}m] step={step} loss={row['loss']:.4f} acc={row['accuracy']:.3f} "
            f"streak={row['streak']:.{2 if ours else 1}f} lr={row['learning_rate']:.2e} noise={row['noise']:.4f} | "
            f"tgt={row['target_batches_per_second']:.2f}b/s dft={row['drafter_batches_per_second']:.2f}b/s "
            f"({row['real_tokens_per_second'] / 1e3:.1f}Ktok/s) | q_pre={row['q_pre']} q_hs={row['q_hs']} | "
            f"epoch~{row['epoch']:.2f} ETA={row['eta_seconds'] / 3_600:.1f}h"
        )
    return lines, rows


def agrees(log, rows):
    assert log.table["step"].to_list() == [row["step"] for row in rows]
    for got, row in zip(log.table.iter_rows(named=True), rows, strict=True):
        for name, value in row.items():
            assert got[name] == (pytest.approx(value) if isinstance(value, float) else value), name


def wrapped(text, width, *, trim=False):
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    return [piece.rstrip() if trim else piece for piece in pieces]


def test_the_source_runs_line_gives_each_figure_and_what_its_rounding_hides():
    log = analysis.read_status_lines(LINE)
    row = log.table.row(0, named=True)
    shown = {
        "step": 4690,
        "elapsed_seconds": 478 * 60,
        "loss": 1.0072,
        "accuracy": 0.154,
        "streak": 0.8,
        "learning_rate": 5.99e-4,
        "noise": 0.0998,
        "target_batches_per_second": 0.65,
        "drafter_batches_per_second": 0.65,
        "real_tokens_per_second": 26_200.0,
        "epoch": 0.41,
        "eta_seconds": 4.6 * 86_400,
    }
    assert {name: row[name] for name in shown} == pytest.approx(shown)
    assert (row["q_pre"], row["q_hs"]) == ([43, 50, 28, 31, 25, 38], [2])
    within = {
        # Cut to whole minutes or rounded to them: either way less than one minute off.
        "elapsed_seconds_within": 60.0,
        "loss_within": 5e-5,
        "streak_within": 0.05,
        "learning_rate_within": 5e-7,
        "target_batches_per_second_within": 0.005,
        "real_tokens_per_second_within": 50.0,
        "epoch_within": 0.005,
        "eta_seconds_within": 0.05 * 86_400,
    }
    assert {name: row[name] for name in within} == pytest.approx(within)
    assert (log.num_complete, log.num_cut, log.num_rejoined, log.num_other_lines) == (1, 0, 0, 0)
    order = "step elapsed_seconds loss accuracy streak learning_rate noise target_batches_per_second"
    order += " drafter_batches_per_second real_tokens_per_second q_pre q_hs epoch eta_seconds"
    assert log.table.columns[:14] == order.split()


def test_our_line_says_where_it_has_no_value():
    log = analysis.read_status_lines(OURS)
    row = log.table.row(0, named=True)
    assert (row["loss"], row["accuracy"], row["eta_seconds"], row["eta_seconds_within"]) == (None,) * 4
    assert (row["streak"], row["streak_within"]) == (1.25, pytest.approx(0.005))
    assert (log.num_complete, dict(log.non_finite), dict(log.unreadable)) == (1, {}, {})


@pytest.mark.parametrize("eta, seconds, within", [("12s", 12, 1), ("3.4m", 204, 3), ("1.9h", 6_840, 180)])
def test_the_time_left_has_its_unit(eta, seconds, within):
    row = analysis.read_status_lines(LINE.replace("4.6d", eta)).table.row(0, named=True)
    assert (row["eta_seconds"], row["eta_seconds_within"]) == (pytest.approx(seconds), pytest.approx(within))


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_line_wrapped_at_any_width_is_the_same_line(prefix, trim):
    whole = values(analysis.read_status_lines(LINE))
    for width in range(10 + len(prefix) % 3 + trim, len(prefix + LINE), 3):
        log = analysis.read_status_lines("\n".join(wrapped(prefix + LINE, width, trim=trim)) + "\n")
        assert values(log).equals(whole), width
        assert log.num_complete == 1


def test_a_line_wrapped_between_words_is_the_same_line():
    whole = values(analysis.read_status_lines(LINE))
    for width in range(30, len(LINE)):
        pieces, held = [], ""
        for word in LINE.split(" "):
            if held and len(held) + 1 + len(word) > width:
                pieces.append(held)
                held = word
            else:
                held = f"{held} {word}".strip()
        log = analysis.read_status_lines("\n  ".join([*pieces, held]) + "\n")
        assert values(log).equals(whole), width


def test_a_line_cut_anywhere_gives_only_what_is_certain():
    whole = analysis.read_status_lines(LINE).table.row(0, named=True)
    read = 0
    for at in range(1, len(LINE)):
        for part in (LINE[:at], LINE[at:]):
            try:
                log = analysis.read_status_lines(part + "\n")
            except ValueError as error:
                assert "holds no status line" in str(error)
                continue
            read += 1
            for name, value in log.table.row(0, named=True).items():
                assert value is None or value == whole.get(name) or name in ("complete", "session"), (part, name)
            assert not log.unknown_fields
            lost = {name for name in log.missing}
            assert all(log.table[name][0] is None for name in lost) and log.num_cut == bool(lost)
    assert read > 150


def test_cut_lines_name_what_they_lack():
    log = analysis.read_status_lines(f"{LINE[:60]}\n{LINE.replace('4690', '4691')}\n{LINE[40:]}\n")
    assert (log.num_complete, log.num_cut, log.num_without_step) == (1, 2, 1)
    assert log.missing["step"] == 1 and log.missing["epoch"] == 1 and log.missing["noise"] == 1
    assert log.table["step"].to_list() == [4690, 4691]


@pytest.mark.parametrize("seed", range(60))
def test_logs_come_back_through_all_that_a_terminal_does(seed):
    rng = np.random.default_rng(seed)
    lines, rows = written(seed, ours=bool(seed % 2))
    prefix = PREFIXES[int(rng.integers(len(PREFIXES)))]
    width = int(rng.choice([40, 61, 80, 100, 120, 1_000]))
    trim, others, shown = bool(rng.random() < 0.5), 0, []
    for line in lines:
        if rng.random() < 0.3:
            other = OTHERS[int(rng.integers(len(OTHERS)))]
            pieces = wrapped(other, width)
            others += len(pieces)
            shown += pieces
        shown += wrapped(prefix + line, width, trim=trim)
    text = "\n".join(shown) + "\n"
    dress = int(rng.integers(6))
    if dress == 1:
        text = text.replace("step=", "\x1b[1;32mstep=\x1b[0m").replace("\n", "\x1b[K\r\r\n")
    elif dress == 2:
        text = "\x1b]0;training\x07" + text.replace("\n", "\r\n")
    elif dress == 3:
        edge = max(map(len, text.splitlines()))
        text = "".join(f"│{line:<{edge}}│\n" for line in text.splitlines())
    elif dress == 4:
        edge = max(map(len, text.splitlines()))
        text = "".join(f"{'top - 12:00':<14}│ {line:<{edge}} │\n" for line in text.splitlines())
        others += len(text.splitlines())
    elif dress == 5:
        text = "".join(f"> {line}\n" for line in text.splitlines())
    log = analysis.read_status_lines(text)
    agrees(log, rows)
    assert (log.num_complete, log.num_cut, log.num_sessions) == (len(rows), 0, 1)
    assert log.num_other_lines == others
    assert log.num_rejoined == sum(len(prefix + line) > width for line in lines)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_is_read_in_its_encoding(tmp_path, encoding):
    lines, rows = written(3)
    file = tmp_path / "console.txt"
    file.write_bytes("\r\n".join(lines).encode(encoding))
    agrees(analysis.read_status_lines(file), rows)
    agrees(analysis.read_status_lines(str(file)), rows)


def test_lines_said_again_after_scrolling_back_take_nothing_back():
    lines, rows = written(4)
    for again in (lines[3:9], lines[:2], lines):
        log = analysis.read_status_lines("\n".join([*lines, *again]))
        agrees(log, rows)
        assert (log.num_repeated, log.num_taken_back, log.num_sessions) == (len(again), 0, 1)


def test_the_whole_one_of_two_sightings_counts():
    log = analysis.read_status_lines(f"{LINE[:70]}\n{LINE}\n")
    assert log.table.height == 1 and log.table["complete"][0] and log.num_repeated == 1


def test_after_a_resume_the_later_writing_counts():
    lines, rows = written(5)
    again = [re.sub(r"loss=\S+", "loss=0.5000", line) for line in lines[4:7]]
    log = analysis.read_status_lines("\n".join([*lines, *again]))
    agrees(log, rows[:4] + [row | {"loss": 0.5} for row in rows[4:7]])
    assert (log.num_taken_back, log.num_sessions, log.num_repeated) == (len(lines) - 4, 2, 0)
    assert log.table["session"].to_list() == [0] * 4 + [1] * 3


def test_values_that_are_no_numbers_are_null_and_counted():
    text = "\n".join(
        LINE.replace("4690", str(step)).replace("1.0072", loss) for step, loss in ((1, "nan"), (2, "-inf"), (3, "oops"))
    )
    log = analysis.read_status_lines(text)
    assert log.table["loss"].to_list() == [None] * 3
    assert (dict(log.non_finite), dict(log.unreadable)) == ({"loss": 2}, {"loss": 1})


def test_numbers_beyond_all_bounds_are_not_readable():
    log = analysis.read_status_lines(LINE.replace("0.0998", "0e0998").replace("5.99e-04", "5.99e-9999"))
    assert (log.table["noise"][0], log.table["learning_rate"][0]) == (None, None)
    assert dict(log.unreadable) == {"learning_rate": 1, "noise": 1}


def test_fields_may_lack_come_in_another_order_or_be_new():
    text = (
        "INFO epoch~0.10 step=10 dft=1.00b/s gnorm=1.25 loss=2.5000 mode=warm\n"
        "INFO epoch~0.20 step=20 dft=1.10b/s gnorm=1.50 loss=2.4000 mode=full\n"
        "INFO epoch~0.30 step=30 dft=1.20b/s gnorm=0.75 loss=2.3000 mode=full\n"
    )
    log = analysis.read_status_lines(text)
    assert log.table["loss"].to_list() == [2.5, 2.4, 2.3]
    assert log.table["gnorm"].to_list() == [1.25, 1.5, 0.75]
    assert log.table["mode"].to_list() == ["warm", "full", "full"]
    assert dict(log.unknown_fields) == {"gnorm": 3, "mode": 3}
    assert log.missing["eta_seconds"] == 3 and log.num_cut == 3


def test_counts_stand_in_the_summary():
    lines, _ = written(6)
    log = analysis.read_status_lines("\n".join(["starting", *wrapped(lines[0], 80), *lines[1:], lines[-1]]))
    counts = dict(log.summary.select("what", "count").iter_rows())
    assert counts["status lines in the table"] == len(lines)
    assert (counts["wrapped, and joined again"], counts["said again"], counts["other lines"]) == (1, 1, 1)
    assert log.summary.schema == {"what": pl.String, "count": pl.Int64, "detail": pl.String}


def test_what_holds_no_status_line_is_refused(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("one\ntwo\n")
    with pytest.raises(ValueError, match=r"notes.txt holds no status line: 2 lines, none with a step; legal"):
        analysis.read_status_lines(file)
    with pytest.raises(ValueError, match="the text holds no status line"):
        analysis.read_status_lines("one\ntwo\n")
    with pytest.raises(ValueError, match="is a folder; legal: a text file"):
        analysis.read_status_lines(tmp_path)
    with pytest.raises(FileNotFoundError):
        analysis.read_status_lines(tmp_path / "none.txt")


def test_escapes_and_frames_leave_the_text():
    text = "\x1b[31mred\x1b[0m\nover\rwritten\n│left │right│\n│more │again│\n^[[1mbold^[[0m\nab\bc\n"
    assert [line.text for line in plain_lines(text)] == [
        "red", "over", "written", "left", "more", "right", "again", "bold", "ac",
    ]  # fmt: skip
