"""Where a run stands, over epochs whose plans differ in size."""

import pytest

from dflash_lab.training import Course, Position

COURSE = Course((97, 101, 99), 4)


def test_steps_end_with_their_epoch():
    assert COURSE.steps_per_epoch == (25, 26, 25)
    assert COURSE.total_steps == 76
    assert COURSE.total_batches == 297


@pytest.mark.parametrize(
    ("num_trained", "epoch", "batch", "progress"),
    [
        (0, 0, 0, 0.0),
        (96, 0, 96, 96 / 97),
        (97, 1, 0, 1.0),
        (150, 1, 53, 1 + 53 / 101),
        (250, 2, 52, 2 + 52 / 99),
        (297, 3, 0, 3.0),
    ],
)
def test_progress_is_that_of_the_epochs_own_plan(num_trained, epoch, batch, progress):
    position = COURSE.position(num_trained)
    assert position == Position(epoch=epoch, batch=batch)
    assert COURSE.progress(position) == pytest.approx(progress)
    assert COURSE.batches_before(position) == num_trained


def test_known_progress_values():
    assert COURSE.progress(COURSE.position(150)) == pytest.approx(1.524752, abs=1e-6)
    assert COURSE.progress(COURSE.position(250)) == pytest.approx(2.525253, abs=1e-6)


def test_the_windows_of_three_small_epochs():
    course = Course((10, 10, 10), 4)
    assert course.total_steps == 9
    done, windows = 0, []
    while done < 30:
        windows.append(course.window(course.position(done)))
        assert course.batches_before(course.position_of_step(len(windows) - 1)) == done
        done += windows[-1]
    assert windows == [4, 4, 2] * 3


def test_twenty_batches_an_epoch_27_of_them_trained():
    assert Course((20, 20, 20), 1).position(27) == Position(epoch=1, batch=7)


def test_a_limit_of_steps_ends_the_course():
    course = Course((10, 10), 4, max_steps=4)
    assert course.total_steps == 4
    assert course.total_batches == 14
    assert Course((10, 10), 4, max_steps=99).total_steps == 6


@pytest.mark.parametrize("bad", [-1, 298, 1.5])
def test_more_than_there_is_cannot_be_trained(bad):
    with pytest.raises(ValueError, match=r"num_trained is .*; legal: a whole number in \[0, 297\]"):
        COURSE.position(bad)


def test_an_empty_course_is_refused():
    with pytest.raises(ValueError, match="batches_per_epoch is empty"):
        Course((), 4)
    with pytest.raises(ValueError, match=r"batches_per_epoch\[1\] is 0"):
        Course((3, 0), 4)
