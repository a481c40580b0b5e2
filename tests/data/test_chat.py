import gzip
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dflash_lab.data import chat, progress
from dflash_lab.data.chat import tokenize_conversations
from dflash_lab.data.chat_format import ChatFormat
from dflash_lab.data.chat_mask import ChatEncoder
from dflash_lab.data.chat_render import ChatProblem
from dflash_lab.data.dataset import PreloadedDataset

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_WITHOUT_MARKS = re.sub(r"\{% (end)?generation %\}", "", CHATML)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' }}"
    "{% if loop.first and system %}{{ '<<SYS>>\n' + system + '\n<</SYS>>\n\n' }}{% endif %}"
    "{{ m['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
# Like Qwen3: only the last answer keeps its thinking.
STRIPS_THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRIPS_THINKING_WITH_MARKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}"
    "{% if loop.last %}{{ m['content'] }}{% else %}{{ m['content'].split('</think>')[-1].lstrip('\n') }}{% endif %}"
    "{{ '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}"
)
CONTROL = ["<|im_start|>", "<|im_end|>", "<s>", "</s>"]


def make_tokenizer(*merges):
    """One token a byte, so that masks can be counted by hand; `merges` are pairs that become one token."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: number for number, symbol in enumerate([*symbols, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    return tokenizer


TOKENIZER = make_tokenizer()
NAMED = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, bos_token="<s>", eos_token="</s>")


def turns(*contents, system=None):
    """Turns that alternate between user and assistant."""
    listed = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
    return ([{"role": "system", "content": system}] if system else []) + listed


def encode(chat, template, *, which="all", tokenizer=NAMED):
    [result] = ChatEncoder(ChatFormat.load(tokenizer, template), turns=which).encode([chat])
    return result


def text_of(ids, tokenizer=TOKENIZER):
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def masked_texts(result):
    """The text of each unbroken stretch under the mask."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], result.loss_mask.astype(int), [0]])))
    return [text_of(result.input_ids[a:b]) for a, b in edges.reshape(-1, 2)]


def write_lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tokenize(path, out, **settings):
    return tokenize_conversations(path, NAMED, out, **{"chat_template": CHATML, **settings})


def stored(path):
    return pa.ipc.open_file(str(path)).read_all().to_pylist()


# The mask, counted by hand


@pytest.mark.parametrize("template", [CHATML, CHATML_WITHOUT_MARKS], ids=["marks", "prefixes"])
def test_chatml_masks_answer_and_turn_end_and_nothing_else(template):
    result = encode(turns("hi", "yo"), template)
    #          <start> user  \n hi  <end> \n <start> assistant \n  yo     <end> \n
    assert [int(bit) for bit in result.loss_mask] == (
        [0] + [0] * 4 + [0] + [0] * 2 + [0] + [0] + [0] + [0] * 9 + [0] + [1, 1] + [1] + [0]
    )
    assert text_of(result.input_ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
    assert (result.input_ids.dtype, result.loss_mask.dtype) == (np.int32, np.bool_)


CHATS = {
    "one turn": turns("hi", "yo"),
    "system": turns("hi", "yo", "and?", "no", system="be brief"),
    "ends on the user": turns("hi", "yo", "and?"),
    "letters of several bytes": turns("où ça", "là-bas ☃", "等等", "好的 🙂"),
    "white space around answers": turns(" hi ", "  yo \n\n", "\n", "\tno "),
    "empty answer": turns("hi", "", "and?", "no"),
    "two answers in a row": [*turns("hi", "yo"), {"role": "assistant", "content": "more"}],
    "the assistant begins": [{"role": "assistant", "content": "hello"}, *turns("hi", "yo")],
}


@pytest.mark.parametrize("which", ["all", "last"])
@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_prefixes_give_the_mask_of_the_marks(chat, which):
    marked, compared = encode(chat, CHATML, which=which), encode(chat, CHATML_WITHOUT_MARKS, which=which)
    assert text_of(marked.input_ids) == text_of(compared.input_ids)
    assert (marked.input_ids == compared.input_ids).all()
    assert (marked.loss_mask == compared.loss_mask).all()
    answers = [turn["content"] + "<|im_end|>" for turn in chat if turn["role"] == "assistant"]
    assert masked_texts(marked) == answers[-1:] if which == "last" else answers


def test_ids_and_mask_are_those_of_transformers():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, chat_template=CHATML)
    chat = CHATS["letters of several bytes"]
    theirs = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    ours = encode(chat, None, tokenizer=tokenizer)
    assert ours.input_ids.tolist() == list(theirs["input_ids"])
    assert ours.loss_mask.astype(int).tolist() == list(theirs["assistant_masks"])


def test_llama2_merges_the_system_turn_and_has_no_header():
    result = encode(turns("hi", "yo", "and?", "no ", system="brief"), LLAMA2)
    assert text_of(result.input_ids) == (
        "<s>[INST] <<SYS>>\nbrief\n<</SYS>>\n\nhi [/INST] yo </s><s>[INST] and? [/INST] no </s>"
    )
    assert masked_texts(result) == [" yo </s>", " no </s>"]
    assert result.num_altered_turns == 0  # white space around an answer may go


def test_last_masks_only_the_last_answer():
    assert masked_texts(encode(turns("hi", "yo", "and?", "no"), CHATML, which="last")) == ["no<|im_end|>"]


def test_leading_space_of_a_token_counts_as_its_text():
    # Without this, GPT-2's and Llama 3's tokenizers hide that " y" reaches back into the header.
    spaced = CHATML.replace("m['role'] + '\n'", "m['role'] + ': '")
    tokenizer = make_tokenizer(("Ġ", "y"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    problem = encode(turns("hi", "yo"), spaced, tokenizer=tokenizer)
    assert problem.reason == "border_inside_token"
    assert "turn 1" in problem.text and "lies the token ' y'" in problem.text


@pytest.mark.parametrize("template", [CHATML, CHATML_WITHOUT_MARKS], ids=["marks", "prefixes"])
def test_a_token_of_both_sides_is_a_problem_of_that_conversation(template):
    encoder = ChatEncoder(ChatFormat.load(make_tokenizer(("Ċ", "Ċ")), template))
    good, bad = encoder.encode([turns("hi", "yo"), turns("hi", "\nyo")])
    assert not isinstance(good, ChatProblem)
    assert (bad.reason, bad.refuses_template) == ("border_inside_token", False)
    assert "turn 1" in bad.text and r"the token '\n\n', which cannot be given to one side" in bad.text


# Templates that change what they are given


THOUGHTS = turns("hi", "<think>\nhm\n</think>\n\nyo", "and?", "<think>\nso\n</think>\n\nno")


def test_template_that_strips_earlier_thinking_is_refused():
    problem = encode(THOUGHTS, STRIPS_THINKING)
    assert problem.refuses_template
    assert problem.reason == "template_without_prefixes"
    assert "the turns up to turn 1 do not render to the beginning of the whole conversation" in problem.text
    assert r"'<think>\nhm\n</think>\n\nyo' against 'yo'" in problem.text
    assert problem.text.endswith(
        "use turns='last', or a template with {% generation %} marks around what the assistant writes"
    )


def test_template_that_strips_earlier_thinking_is_exact_for_the_last_turn():
    result = encode(THOUGHTS, STRIPS_THINKING, which="last")
    assert masked_texts(result) == ["<think>\nso\n</think>\n\nno<|im_end|>"]
    assert "hm" not in text_of(result.input_ids)


def test_template_that_strips_earlier_thinking_is_exact_where_there_is_none():
    assert masked_texts(encode(turns("hi", "yo", "and?", "no"), STRIPS_THINKING)) == ["yo<|im_end|>", "no<|im_end|>"]


def test_marks_around_stripped_answers_are_exact_and_counted():
    result = encode(THOUGHTS, STRIPS_THINKING_WITH_MARKS)
    assert masked_texts(result) == ["yo<|im_end|>", "<think>\nso\n</think>\n\nno<|im_end|>"]
    assert result.num_altered_turns == 1


def test_header_without_a_generation_prompt_is_refused():
    template = CHATML_WITHOUT_MARKS.partition("{% if add_generation_prompt %}")[0]
    problem = encode(turns("hi", "yo"), template)
    assert problem.refuses_template
    assert problem.text == (
        "turn 1: the chat template ignores add_generation_prompt but writes '<|im_start|>assistant\\n' before the "
        "answer, so the header cannot be told from the answer; use a template with {% generation %} marks around what "
        "the assistant writes"
    )


def test_generation_prompt_that_the_turn_does_not_repeat_is_refused():
    template = CHATML_WITHOUT_MARKS.replace(
        "'<|im_start|>assistant\n' }}{% endif %}", "'<|im_start|>assistant\n<think>' }}{% endif %}"
    )
    problem = encode(turns("hi", "yo"), template)
    assert problem.refuses_template
    assert "the turns before turn 1 with the generation prompt do not render to the beginning" in problem.text


def test_template_that_loses_the_answer_is_refused():
    problem = encode(
        turns("hi", "yo"), CHATML.replace("{{ m['content'] + '<|im_end|>' }}{% endg", "{{ '<|im_end|>' }}{% endg")
    )
    assert problem.refuses_template
    assert problem.text.startswith(
        "the chat template's generation marks give 1 stretches of text for 1 assistant turns: ['<|im_end|>'], and one "
        "of them holds 0 answers; the marks must stand around what the assistant writes, from behind its header up to "
    )
    problem = encode(
        turns("hi", "yo"), CHATML_WITHOUT_MARKS.replace("m['content'] + '<|im_end|>' }}{% else", "'' }}{% else")
    )
    assert problem.refuses_template
    assert problem.text.startswith("turn 1: the chat template does not write its answer; use a template with {% gen")


def test_marks_that_do_not_fit_the_turns_are_refused():
    template = CHATML.replace("m['role'] == 'assistant'", "m['role'] == 'assistant' and loop.last")
    problem = encode(turns("hi", "yo", "and?", "no"), template)
    assert problem.refuses_template
    assert "marks give 1 stretches of text for 2 assistant turns: ['no<|im_end|>']" in problem.text


def test_marks_are_taken_at_their_word_and_open_turns_counted():
    template = CHATML.replace("+ '<|im_end|>' }}{% endgeneration %}", "}}{% endgeneration %}{{ '<|im_end|>' }}")
    result = encode(turns("hi", "yo", "and?", "no"), template)
    assert masked_texts(result) == ["yo", "no"]
    assert result.num_open_turns == 2
    assert encode(turns("hi", "yo"), CHATML).num_open_turns == 0


def test_turn_without_a_control_token_is_masked_to_its_end():
    template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    result = encode(turns("hi", "yo"), template)
    assert masked_texts(result) == ["yo\n"]
    assert result.num_open_turns == 1


def test_template_may_refuse_a_conversation():
    problem = encode([*turns("hi", "yo"), {"role": "assistant", "content": "more"}], LLAMA2)
    assert (problem.reason, problem.refuses_template) == ("template_error", False)
    assert problem.text == "the chat template does not render it: roles must alternate"


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_control_tokens_in_text_are_a_problem(role):
    chat = [{"role": "system", "content": "s"}, *turns("hi", "yo")]
    chat = [{**turn, "content": "a<|im_end|>b"} if turn["role"] == role else turn for turn in chat]
    problem = encode(chat, CHATML)
    assert (problem.reason, problem.refuses_template) == ("control_token_in_text", False)
    number = ["system", "user", "assistant"].index(role)
    assert problem.text.startswith(f"turn {number}: content holds '<|im_end|>', which the tokenizer would read as a ")


# Files


def test_fields_and_their_other_names(tmp_path):
    path = write_lines(
        tmp_path / "chats.jsonl",
        {"messages": turns("hi", "yo", system="s"), "id": "a", "source": "web", "score": 3},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}], "system": "s", "id": 7},
        {"messages": turns("hi", "yo"), "conversations": None, "system": "", "source": None},
    )
    report = tokenize(path, tmp_path / "out.arrow")
    rows = stored(tmp_path / "out.arrow")
    assert [(row["id"], row["source"]) for row in rows] == [("a", "web"), ("7", None), (None, None)]
    assert rows[0]["input_ids"] == rows[1]["input_ids"] != rows[2]["input_ids"]
    assert (report.num_read, report.num_written, report.left_out) == (3, 3, {})
    assert report.mask_method == "generation"
    assert report.num_tokens == sum(len(row["input_ids"]) for row in rows)
    assert report.num_loss_tokens == sum(sum(row["loss_mask"]) for row in rows) == 9
    dataset = PreloadedDataset.open(tmp_path / "out.arrow")
    assert dataset.lengths.tolist() == [len(row["input_ids"]) for row in rows]
    assert dataset.loss_tokens.tolist() == [3, 3, 3]


def test_reasoning_reaches_the_template(tmp_path):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "reasoning_content": "hm"}]
    template = CHATML.replace(
        "{{ m['content'] + '<|im_end|>' }}{% endg", "{{ m.reasoning_content + m['content'] }}{% endg"
    )
    assert masked_texts(encode(chat, template)) == ["hmyo"]


GOOD = {"messages": turns("hi", "yo")}
ROLES = "legal: system, user, assistant, human, gpt"
BAD = [
    ({"text": "hi"}, "no_turns", "no messages and no conversations, fields ['text']; legal: one of messages"),
    ({"messages": [], "id": 1}, "no_turns", "messages is []; legal: a list of at least one turn"),
    ({"messages": "hi"}, "no_turns", "messages is 'hi'; legal: a list of at least one turn"),
    ({**GOOD, "conversations": []}, "no_turns", "messages and conversations, fields"),
    ({"messages": ["hi"]}, "turn_not_an_object", "messages[0] is 'hi'; legal: an object with role, content"),
    ({"messages": [{"role": "bot", "content": "x"}]}, "unknown_role", f"messages[0].role is 'bot'; {ROLES}"),
    ({"conversations": [{"from": None, "value": "x"}]}, "unknown_role", f"conversations[0].from is None; {ROLES}"),
    ({"messages": [{"content": "x"}]}, "unknown_role", "messages[0] has neither of role and from, fields ['content']"),
    ({"messages": [{"role": "user", "content": 3}]}, "content_not_text", "messages[0].content is 3; legal: text"),
    ({"messages": [{"role": "user", "content": None}]}, "content_not_text", "messages[0].content is None; legal: text"),
    ({"messages": [{"role": "user"}]}, "content_not_text", "messages[0] has neither of content and value"),
    (
        {"messages": [{"role": "user", "content": "a", "value": "b"}]},
        "content_not_text",
        "messages[0] has both of content and value",
    ),
    ({"messages": turns("hi")}, "no_assistant_turn", "messages has only the roles ['user']; legal: also assistant"),
    (
        {"messages": turns("hi", "yo", system="a"), "system": "b"},
        "two_systems",
        "system is 'b' and messages[0] is one too; legal: one of them",
    ),
    ({**GOOD, "system": 5}, "content_not_text", "system is 5; legal: text"),
    ({**GOOD, "id": [1]}, "bad_text", "id is [1]; legal: text, a whole number or null"),
    ({**GOOD, "source": 1.5}, "bad_text", "source is 1.5; legal: text, a whole number or null"),
    ({**GOOD, "tools": [{"name": "f"}]}, "tool_call", "tools is [{'name': 'f'}]; legal: conversations without tools"),
    (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]},
        "tool_call",
        "messages[0].tool_calls is [1]; legal: turns without calls",
    ),
    ({"messages": turns("hi", "\ud800")}, "content_not_text", "messages[1]: content holds half a surrogate pair"),
    ({"messages": turns("a<|im_end|>", "yo")}, "control_token_in_text", "turn 0: content holds '<|im_end|>'"),
]


@pytest.mark.parametrize(("row", "reason", "sentence"), BAD, ids=range(len(BAD)))
def test_bad_conversation_raises_with_its_place_or_is_counted(tmp_path, row, reason, sentence):
    path = tmp_path / "chats.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(row)}\n{json.dumps(GOOD)}\n")
    with pytest.raises(ValueError) as error:
        tokenize(path, tmp_path / "out.arrow")
    assert str(error.value).startswith(f"{path}, line 3: ")
    assert sentence in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["chats.jsonl"]  # nothing half written stays
    report = tokenize(path, tmp_path / "out.arrow", on_bad_row="skip")
    assert (report.num_read, report.num_written, report.left_out) == (3, 2, {reason: [1]})


def test_refused_template_raises_even_when_bad_rows_are_skipped(tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", GOOD, {"messages": THOUGHTS})
    with pytest.raises(ValueError) as error:
        tokenize(path, tmp_path / "out.arrow", chat_template=STRIPS_THINKING, on_bad_row="skip")
    assert str(error.value).startswith(
        f"the chat template gives no exact loss mask (template_without_prefixes): {path}, line 2: the turns up to turn "
    )


def test_nothing_left_is_an_error(tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", *[{"messages": turns("hi")}] * 12)
    with pytest.raises(
        ValueError, match=r"no conversation is left of 12: no_assistant_turn: 12 \(rows 0, 1, .*9, \.\.\.\)"
    ):
        tokenize(path, tmp_path / "out.arrow", on_bad_row="skip")
    assert not (tmp_path / "out.arrow").exists()


LINE = json.dumps(GOOD)


@pytest.mark.parametrize(
    "content",
    [
        f"{LINE}\n{LINE}\n".encode(),
        b"\xef\xbb\xbf" + f"{LINE}\n{LINE}\n".encode(),
        f"{LINE}\r\n{LINE}".encode(),
        f"\n \n{LINE}\n\t\n\n{LINE}\n\n".encode(),
    ],
    ids=["plain", "byte-order mark", "crlf, no last line end", "blank lines"],
)
def test_lines_read_the_same_however_written(tmp_path, content):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(content)
    assert tokenize(path, tmp_path / "out.arrow").num_written == 2
    for name, packed in {"gz": gzip.compress(content), "zst": pa.Codec("zstd").compress(content, asbytes=True)}.items():
        path = tmp_path / f"chats.jsonl.{name}"
        path.write_bytes(packed)
        assert tokenize(path, tmp_path / "packed.arrow").num_written == 2


@pytest.mark.parametrize(
    ("content", "sentence", "reason"),
    [
        (f"{LINE}\n\n{LINE[:-1]},}}\n{LINE}\n", "line 3: not JSON", "not_json"),
        (f"{LINE}\n\n[1, 2]\n{LINE}\n", "line 3: the line is a list; legal: one JSON object", "not_an_object"),
        (f'{LINE}\n\n{{"id": 1, "id": 2}}\n', "line 3: the key 'id' stands twice", "duplicate_key"),
        (f"{LINE}\n\n{LINE[:-9]}", "line 3: the last line is cut off", "cut_off"),
    ],
)
def test_bad_line_is_named_by_its_physical_number(tmp_path, content, sentence, reason):
    path = tmp_path / "chats.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError) as error:
        tokenize(path, tmp_path / "out.arrow")
    assert str(path) in str(error.value) and sentence in str(error.value)
    assert tokenize(path, tmp_path / "out.arrow", on_bad_row="skip").left_out == {reason: [1]}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "holds no samples"),
        ("\n \n", "holds no samples"),
        (f"[{LINE},\n{LINE}]", "begins with a JSON array"),
        ("PAR1", "a Parquet file"),
    ],
)
def test_file_of_another_kind_is_refused_by_name(tmp_path, content, sentence):
    path = tmp_path / "chats.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=sentence) as error:
        tokenize(path, tmp_path / "out.arrow", on_bad_row="skip")
    assert str(path) in str(error.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere.jsonl is not a file; legal: a chat JSONL file"):
        tokenize(tmp_path / "nowhere.jsonl", tmp_path / "out.arrow")


def test_only_so_many_conversations(tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", GOOD, GOOD, {"messages": turns("hi")})
    assert tokenize(path, tmp_path / "out.arrow", max_conversations=2).num_read == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"turns": "first"}, "turns is 'first'; legal: all, last"),
        ({"on_bad_row": "drop"}, "on_bad_row is 'drop'; legal: error, skip"),
        ({"num_workers": -1}, "num_workers is -1; legal: whole numbers >= 0"),
        ({"batch_size": 0}, "batch_size is 0; legal: whole numbers >= 1"),
        ({"max_conversations": True}, "max_conversations is True; legal: whole numbers >= 1"),
    ],
)
def test_settings_are_checked(tmp_path, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        tokenize(write_lines(tmp_path / "chats.jsonl", GOOD), tmp_path / "out.arrow", **settings)


def test_progress_is_said_in_plain_lines(tmp_path, monkeypatch, capsys):
    path = write_lines(tmp_path / "chats.jsonl", *[GOOD] * 5)
    tokenize(path, tmp_path / "out.arrow", batch_size=2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    tokenize(path, tmp_path / "out.arrow", batch_size=2)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("reading and tokenizing chats.jsonl: ")
    assert said[-1].startswith("reading and tokenizing chats.jsonl: 100%, 5 rows")


# Processes


def test_workers_give_the_same_store(tmp_path):
    letters = np.random.default_rng(0).integers(97, 123, 4_000).astype(np.uint8).tobytes().decode()
    rows = [
        {"messages": turns("q" * (i % 5), letters[i : 3 * i + 1], "and?", letters[:i]), "id": i, "source": "s"}
        if i % 13 != 7
        else {"messages": turns("alone")}
        for i in range(60)
    ]
    path = write_lines(tmp_path / "chats.jsonl", *rows)
    settings = {"on_bad_row": "skip", "batch_size": 7, "chat_template": CHATML_WITHOUT_MARKS}
    alone = tokenize(path, tmp_path / "alone.arrow", **settings)
    together = tokenize(path, tmp_path / "together.arrow", num_workers=2, **settings)
    assert alone.left_out == together.left_out == {"no_assistant_turn": [7, 20, 33, 46, 59]}
    assert (tmp_path / "alone.arrow").read_bytes() == (tmp_path / "together.arrow").read_bytes()
    assert alone.num_tokens == together.num_tokens
    assert alone.num_loss_tokens == together.num_loss_tokens


def test_first_bad_line_is_the_one_named_with_workers_too(tmp_path):
    # Line 2 fails in a worker, line 3 already while it is read.
    path = write_lines(tmp_path / "chats.jsonl", GOOD, {"messages": turns("a</s>", "yo")}, {"messages": []}, GOOD)
    for num_workers in (0, 1):
        with pytest.raises(ValueError, match="line 2: turn 0: content holds '</s>'"):
            tokenize(path, tmp_path / "out.arrow", num_workers=num_workers, batch_size=1)


def test_exception_in_a_worker_reaches_the_caller(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "chats.jsonl", *[GOOD] * 4)
    monkeypatch.setattr(chat, "_turns_of", lambda batch: [[{"name": "a turn without a role"}]])
    with pytest.raises(KeyError, match="role"):
        tokenize(path, tmp_path / "out.arrow", num_workers=1, batch_size=1)
    assert [file.name for file in tmp_path.iterdir()] == ["chats.jsonl"]


# Tokenizers and templates


def test_tokenizer_may_be_an_object_a_folder_or_a_file(tmp_path):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZER, bos_token="<s>", eos_token="</s>", chat_template=LLAMA2
    )
    tokenizer.save_pretrained(str(tmp_path / "folder"))
    expected = ChatFormat.load(tokenizer)
    assert expected.mask_method == "prefix"
    for given in (tmp_path / "folder", str(tmp_path / "folder"), tmp_path / "folder" / "tokenizer.json"):
        loaded = ChatFormat.load(given)
        assert loaded.chat_template == expected.chat_template
        assert loaded.special_tokens == expected.special_tokens
        result = ChatEncoder(loaded).encode([turns("hi", "yo")])[0]
        assert result.input_ids.tolist() == encode(turns("hi", "yo"), LLAMA2).input_ids.tolist()


def test_bare_tokenizer_file_needs_a_template_that_names_no_special_tokens(tmp_path):
    TOKENIZER.save(str(tmp_path / "mine.json"))
    assert masked_texts(encode(turns("hi", "yo"), CHATML, tokenizer=tmp_path / "mine.json")) == ["yo<|im_end|>"]
    with pytest.raises(
        ValueError, match="the chat template uses bos_token, eos_token, which the tokenizer does not name"
    ):
        ChatFormat.load(tmp_path / "mine.json", LLAMA2)
    with pytest.raises(ValueError, match="mine.json brings no chat template; give chat_template="):
        ChatFormat.load(tmp_path / "mine.json")


def test_template_may_be_a_file(tmp_path):
    (tmp_path / "chat.jinja").write_text(CHATML)
    assert ChatFormat.load(TOKENIZER, tmp_path / "chat.jinja").chat_template == CHATML
    with pytest.raises(ValueError, match="chat_template 'chatml' is neither Jinja text nor a file"):
        ChatFormat.load(TOKENIZER, "chatml")


def test_template_that_is_no_jinja_is_refused(tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", GOOD)
    for num_workers in (0, 1):
        with pytest.raises(ValueError, match="the chat template is not valid Jinja: line 1: "):
            tokenize(path, tmp_path / "out.arrow", chat_template="{% for %}", num_workers=num_workers)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("nowhere/at/all", "tokenizer nowhere/at/all does not exist; legal: a folder or a tokenizer.json file"),
        (3, "tokenizer is a int; legal: a fast Hugging Face tokenizer"),
    ],
)
def test_tokenizer_of_another_kind_is_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        ChatFormat.load(given, CHATML)


def test_foreign_file_as_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json is not a tokenizer.json file"):
        ChatFormat.load(tmp_path / "tokenizer.json", CHATML)


def test_limits_inside_the_tokenizer_do_not_cut():
    limited = make_tokenizer()
    limited.enable_truncation(4)
    limited.enable_padding(length=200)
    assert len(encode(turns("hi", "yo"), CHATML, tokenizer=limited).input_ids) == 25
