"""Decoded tokens, marked by who wrote them."""

import pytest

from dflash_lab import notebooks


def test_accepted_tokens_are_marked_and_the_targets_own_are_not(capsys):
    notebooks.show_decoded(list("abcdefg"), [3, 1, 2], "An answer.")
    # a is from the prompt; bc accepted, d own; e own; f accepted, g own.
    assert capsys.readouterr().out == "An answer. (3 of 7 tokens are the drafter's, in ⟦ ⟧)\na⟦bc⟧de⟦f⟧g\n"


def test_the_last_verification_may_be_cut_off(capsys):
    notebooks.show_decoded(list("abcd"), [2, 5])
    assert capsys.readouterr().out.endswith("a⟦b⟧c⟦d⟧\n")


def test_one_token_needs_no_verification(capsys):
    notebooks.show_decoded(["x"], [])
    assert "0 of 1 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("lengths", [[1], [2, 2, 2, 2]])
def test_lengths_that_do_not_make_up_the_tokens_are_refused(lengths):
    with pytest.raises(ValueError, match=r"add up to \d tokens after the first, but there are 4 pieces"):
        notebooks.show_decoded(list("abcd"), lengths)


def test_a_verification_without_a_token_is_refused():
    with pytest.raises(ValueError, match="acceptance_lengths holds 0; legal: at least the target's 1"):
        notebooks.show_decoded(["a"], [0])
