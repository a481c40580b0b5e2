"""The mask under the chat templates that people have: each family's text written out by hand, «» around the model's."""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash_lab.data.chat_format import ChatFormat
from dflash_lab.data.chat_mask import ChatEncoder

PAIRS = [("hi there", "yo"), ("and A?", "A"), ("so", "ok, as you say.")]
SYSTEM = "Be brief."


def make_tokenizer(*, special=(), plain=(), rstrip=(), merges=(), **names):
    """One token a byte, but for control tokens and `merges`, so that masks can be derived by hand."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: number for number, symbol in enumerate([*symbols, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False, rstrip=text in rstrip) for text in special]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def conversation(num_pairs, system=None):
    chat = [{"role": "system", "content": system}] if system else []
    for question, answer in PAIRS[:num_pairs]:
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return chat


@dataclass(frozen=True)
class Family:
    """A template, a tokenizer of its kind, and what the two make of a conversation.

    `text` takes the system's text ("" for none) and pairs of question and answer.
    """

    template: str
    tokenizer: Any
    text: Any
    has_system: bool = True
    closed: bool = True
    turns: tuple[str, ...] = field(default=("all", "last"))


FAMILIES = {}

# ChatML and its variants

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML_TOKENIZER = make_tokenizer(special=CHATML_TOKENS, plain=["<think>", "</think>"], eos_token="<|im_end|>")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{%- generation -%}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)


def chatml_text(system, pairs, default=""):
    system = system or default
    text = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    for question, answer in pairs:
        text += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n«{answer}<|im_end|>»\n"
    return text


FAMILIES["ChatML"] = Family(CHATML, CHATML_TOKENIZER, chatml_text)
FAMILIES["ChatML, marks"] = Family(MARKED_CHATML, CHATML_TOKENIZER, chatml_text)
FAMILIES["ChatML, marks with the line break"] = Family(
    MARKED_CHATML.replace("'<|im_end|>' }}{% endg", "'<|im_end|>\n' }}{% endg").replace(
        "{% endif %}{{ '\n' }}", "{{ '\n' }}{% endif %}"
    ),
    CHATML_TOKENIZER,
    chatml_text,
)
FAMILIES["ChatML, marks with a plus sign"] = Family(
    MARKED_CHATML.replace("{%- generation -%}", "{%+ generation %}"), CHATML_TOKENIZER, chatml_text
)
FAMILIES["ChatML, marks in a comment only"] = Family(CHATML + "{# {% generation %} #}", CHATML_TOKENIZER, chatml_text)
FAMILIES["ChatML, line breaks between turns only"] = Family(
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"
    "{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}",
    CHATML_TOKENIZER,
    lambda system, pairs: chatml_text(system, pairs).removesuffix("\n"),
)
FAMILIES["ChatML, default system (Qwen2)"] = Family(
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}" + CHATML.partition("%}")[2],
    CHATML_TOKENIZER,
    lambda system, pairs: chatml_text(system, pairs, default="You help."),
)
FAMILIES["ChatML, turn end not special but named"] = Family(
    CHATML,
    make_tokenizer(special=CHATML_TOKENS[:1], plain=CHATML_TOKENS[1:], eos_token="<|im_end|>"),
    chatml_text,
)
FAMILIES["ChatML, turn end neither special nor named"] = Family(
    CHATML,
    make_tokenizer(special=CHATML_TOKENS[:1], plain=CHATML_TOKENS[1:], eos_token="<|endoftext|>"),
    chatml_text,
)
FAMILIES["ChatML, second end token behind each answer"] = Family(
    CHATML.replace("+ '\n' }}{% endfor", "+ '\n' + ('<|endoftext|>' if m.role == 'assistant' else '') }}{% endfor"),
    CHATML_TOKENIZER,
    lambda system, pairs: chatml_text(system, pairs).replace("»\n", "»\n<|endoftext|>"),
)

# Thinking

QWEN3 = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% set thought = m.reasoning_content or '' %}{% set words = m.content %}"
    "{% if '</think>' in words %}{% set thought = words.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set words = words.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\n' }}{% if loop.last %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
    "{{ words + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def qwen3_text(system, pairs):
    text, between, last = chatml_text(system, pairs).rpartition("«")
    return text + between + "<think>\n\n</think>\n\n" + last


FAMILIES["Qwen3"] = Family(QWEN3, CHATML_TOKENIZER, qwen3_text)
FAMILIES["Qwen3, marks"] = Family(
    QWEN3.replace("{% if loop.last %}{{ '<think>", "{% generation %}{% if loop.last %}{{ '<think>").replace(
        "{{ words + '<|im_end|>\n' }}", "{{ words + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    ),
    CHATML_TOKENIZER,
    qwen3_text,
)
# Its prompt opens the thinking, so that the tag is not the model's.
FAMILIES["Qwen3 Thinking"] = Family(
    QWEN3.replace("'<|im_start|>assistant\n' }}{% endif %}", "'<|im_start|>assistant\n<think>\n' }}{% endif %}"),
    CHATML_TOKENIZER,
    lambda system, pairs: qwen3_text(system, pairs).replace("«<think>\n", "<think>\n«"),
    turns=("last",),
)
R1_TOKENIZER = make_tokenizer(
    special=["<|bos|>", "<|eos|>", "<|User|>", "<|Assistant|>"],
    plain=["<think>", "</think>"],
    bos_token="<|bos|>",
    eos_token="<|eos|>",
)
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "{{ '<|User|>' + m.content }}{% else %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|eos|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}"
)
FAMILIES["R1"] = Family(
    R1,
    R1_TOKENIZER,
    lambda system, pairs: "<|bos|>" + system + "".join(f"<|User|>{q}<|Assistant|>«{a}<|eos|>»" for q, a in pairs),
)

# Llama and Mistral: no generation prompt, since the question's end is the header

SENTENCE = make_tokenizer(special=["<unk>", "<s>", "</s>"], bos_token="<s>", eos_token="</s>")
LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "{% set start = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set rest = messages %}{% set start = '' %}{% endif %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + (start if loop.first else '') + m.content.strip() }}"
    "{{ ' [/INST]' }}{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def llama2_text(system, pairs):
    start = f"<<SYS>>\n{system}\n<</SYS>>\n\n" if system else ""
    asked = [start * (k == 0) + question for k, (question, _) in enumerate(pairs)]
    return "".join(f"<s>[INST] {q} [/INST]« {a} </s>»" for q, (_, a) in zip(asked, pairs, strict=True))


FAMILIES["Llama-2"] = Family(LLAMA2, SENTENCE, llama2_text)
FAMILIES["Llama-2, next turn's first token too"] = Family(
    LLAMA2.replace("bos_token + ", "").replace("' ' + eos_token", "' ' + eos_token + bos_token"),
    SENTENCE,
    lambda system, pairs: llama2_text(system, pairs).replace("<s>", "").replace("</s>»", "</s>»<s>"),
)
LLAMA3 = (
    "{% for m in messages %}{% set turn = '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim"
    " + '<|eot_id|>' %}{% if loop.first %}{{ bos_token }}{% endif %}{{ turn }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA3_TOKENIZER = make_tokenizer(
    special=["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    bos_token="<|begin_of_text|>",
    eos_token="<|eot_id|>",
)


def llama3_text(system, pairs):
    def header(role):
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n"

    text = "<|begin_of_text|>" + (f"{header('system')}{system}<|eot_id|>" if system else "")
    for question, answer in pairs:
        text += f"{header('user')}{question}<|eot_id|>{header('assistant')}«{answer}<|eot_id|>»"
    return text


FAMILIES["Llama-3"] = Family(LLAMA3, LLAMA3_TOKENIZER, llama3_text)
FAMILIES["Llama-3.2, asks for the date"] = Family(
    "{% if strftime_now is defined %}\n  {% set today = strftime_now('%d %b %Y') %}{% endif %}\n"
    "{{ 'Today: ' + today }}" + LLAMA3,
    LLAMA3_TOKENIZER,
    lambda system, pairs: "Today: 26 Jul 2024" + llama3_text(system, pairs),
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
FAMILIES["Mistral v0.1"] = Family(
    MISTRAL,
    SENTENCE,
    lambda system, pairs: "<s>" + "".join(f"[INST] {q} [/INST]«{a}</s>»" for q, a in pairs),
    has_system=False,
)
FAMILIES["Mistral v0.3"] = Family(
    MISTRAL.replace(" [/INST]", "[/INST]").replace("{{ m.content + eos", "{{ ' ' + m.content | trim + eos"),
    make_tokenizer(special=["<s>", "</s>", "[INST]", "[/INST]"], bos_token="<s>", eos_token="</s>"),
    lambda system, pairs: "<s>" + "".join(f"[INST] {q}[/INST]« {a}</s>»" for q, a in pairs),
    has_system=False,
)
FAMILIES["Gemma"] = Family(
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\n' + m.content | trim }}"
    "{{ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    make_tokenizer(
        special=["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], bos_token="<bos>", eos_token="<eos>"
    ),
    lambda system, pairs: (
        "<bos>"
        + "".join(
            f"<start_of_turn>user\n{q}<end_of_turn>\n<start_of_turn>model\n«{a}<end_of_turn>»\n" for q, a in pairs
        )
    ),
    has_system=False,
)

# Phi: a closing end of text, and control tokens that swallow the line break behind them

PHI_TOKENS = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
PHI_PLAIN = make_tokenizer(special=PHI_TOKENS, eos_token="<|endoftext|>")
PHI_RSTRIP = make_tokenizer(special=PHI_TOKENS, rstrip=PHI_TOKENS[1:], eos_token="<|endoftext|>")
PHI3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)


def phi_text(system, pairs, *, between="\n", end="<|endoftext|>"):
    text = f"<|system|>{between}{system}<|end|>{between}" if system else ""
    for question, answer in pairs:
        text += f"<|user|>{between}{question}<|end|>{between}<|assistant|>{between}«{answer}<|end|>»{between}"
    return text + end


FAMILIES["Phi-3, plain tokens"] = Family(PHI3, PHI_PLAIN, phi_text)
FAMILIES["Phi-3"] = Family(PHI3, PHI_RSTRIP, lambda system, pairs: phi_text(system, pairs, between=""))
PHI3_OPEN = PHI3.replace("{% else %}{{ eos_token }}", "")
FAMILIES["Phi-3 without closing eos"] = Family(
    PHI3_OPEN, PHI_RSTRIP, lambda system, pairs: phi_text(system, pairs, between="", end="")
)
FAMILIES["Phi-3, marks"] = Family(
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + '<|end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    PHI_RSTRIP,
    lambda system, pairs: phi_text(system, pairs, between="", end=""),
)
FAMILIES["Phi-4-mini"] = Family(
    PHI3.replace("\n", ""), PHI_PLAIN, lambda system, pairs: phi_text(system, pairs, between="")
)

# Headers in words

FAMILIES["Zephyr"] = Family(
    "{% for m in messages %}\n{{ '<|' + m.role + '|>\n' + m.content + eos_token }}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    SENTENCE,
    lambda system, pairs: (
        (f"<|system|>\n{system}</s>\n" if system else "")
        + "".join(f"<|user|>\n{q}</s>\n<|assistant|>\n«{a}</s>»\n" for q, a in pairs)
    ),
)
FAMILIES["Tulu-3"] = Family(
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
    "{% if m.role != 'assistant' %}{{ '\n' }}{% elif loop.last %}{{ eos_token }}{% else %}{{ eos_token + '\n' }}"
    "{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
    make_tokenizer(special=["<|endoftext|>"], bos_token="<|endoftext|>", eos_token="<|endoftext|>"),
    lambda system, pairs: (
        "<|endoftext|>"
        + (f"<|system|>\n{system}\n" if system else "")
        + "\n".join(f"<|user|>\n{q}\n<|assistant|>\n«{a}<|endoftext|>»" for q, a in pairs)
    ),
)
VICUNA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + ' ' }}{% elif m.role == 'user' %}"
    "{{ 'USER: ' + m.content + ' ' }}{% else %}{{ 'ASSISTANT: ' + m.content + eos_token + ' ' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
FAMILIES["Vicuna, spaces between turns"] = Family(
    VICUNA,
    # The space behind </s> and the next turn's first letter are one token, as is the answer's first with its space.
    make_tokenizer(
        special=["<s>", "</s>"], merges=[("Ġ", "U"), ("Ġ", "y"), ("Ġ", "A")], bos_token="<s>", eos_token="</s>"
    ),
    lambda system, pairs: (
        (system + " " if system else "") + "".join(f"USER: {q} ASSISTANT:« {a}</s>» " for q, a in pairs)
    ),
)
FAMILIES["Alpaca without an end token"] = Family(
    "{% for m in messages %}{{ {'system': '', 'user': '### Ask:\n', 'assistant': '### Say:\n'}[m.role] }}"
    "{{ m.content + '\n\n' }}{% endfor %}{% if add_generation_prompt %}{{ '### Say:\n' }}{% endif %}",
    SENTENCE,
    lambda system, pairs: (
        (f"{system}\n\n" if system else "") + "".join(f"### Ask:\n{q}\n\n### Say:\n«{a}\n\n»" for q, a in pairs)
    ),
    closed=False,
)
# The next header ends the turn, and is the user's.
FAMILIES["GLM-4"] = Family(
    "{{ '[gMASK]<sop>' }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    make_tokenizer(special=["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>"]),
    lambda system, pairs: (
        "[gMASK]<sop>"
        + (f"<|system|>\n{system}" if system else "")
        + "".join(f"<|user|>\n{q}<|assistant|>\n«{a}»" for q, a in pairs)
    ),
    closed=False,
)
# The model writes the channel itself, and ends the conversation by another token than the turn.
GPT_OSS = (
    "{% for m in messages %}{{ '<|start|>' + m.role }}{% if m.role == 'assistant' %}{{ '<|channel|>final' }}{% endif %}"
    "{{ '<|message|>' + m.content }}{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
GPT_OSS_TOKENIZER = make_tokenizer(
    special=["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"], eos_token="<|return|>"
)
FAMILIES["gpt-oss"] = Family(
    GPT_OSS,
    GPT_OSS_TOKENIZER,
    lambda system, pairs: (
        (f"<|start|>system<|message|>{system}<|end|>" if system else "")
        + "".join(
            f"<|start|>user<|message|>{q}<|end|><|start|>assistant«<|channel|>final<|message|>{a}<|end|>»"
            for q, a in pairs
        ).removesuffix("<|end|>»")
        + "<|return|>»"
    ),
    turns=("last",),
)


def encode(family, chat, which):
    [result] = ChatEncoder(ChatFormat.load(family.tokenizer, family.template), turns=which).encode([chat])
    return result


def masked_texts(result, tokenizer):
    """The text of each unbroken stretch under the mask."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], result.loss_mask.astype(int), [0]])))
    return [
        tokenizer.decode(result.input_ids[a:b].tolist(), skip_special_tokens=False) for a, b in edges.reshape(-1, 2)
    ]


def expected_of(family, num_pairs, system, which):
    """The pieces of a conversation's text, those under the mask at odd places."""
    pieces = re.split("[«»]", family.text(system, PAIRS[:num_pairs]))
    if which == "last":
        pieces = ["".join(pieces[:-2]), *pieces[-2:]]
    return pieces


CASES = [(name, which) for name, family in FAMILIES.items() for which in family.turns]


@pytest.mark.parametrize(("name", "which"), CASES, ids=[f"{name}, {which}" for name, which in CASES])
def test_mask_is_the_answers_and_their_ends(name, which):
    family = FAMILIES[name]
    for num_pairs in (1, 2, 3):
        for system in ("", SYSTEM) if family.has_system else ("",):
            result = encode(family, conversation(num_pairs, system), which)
            assert not hasattr(result, "reason"), result
            pieces = expected_of(family, num_pairs, system, which)
            assert masked_texts(result, family.tokenizer) == pieces[1::2]
            ids = [family.tokenizer.backend_tokenizer.encode(piece, add_special_tokens=False).ids for piece in pieces]
            assert result.input_ids.tolist() == [i for piece in ids for i in piece]
            assert result.loss_mask.tolist() == [k % 2 == 1 for k, piece in enumerate(ids) for _ in piece]
            assert result.num_open_turns == (0 if family.closed else len(pieces) // 2)
            assert result.num_altered_turns == 0


def test_families_write_each_answer_with_its_end():
    """The table itself: what «» holds is the answer, and a family's own end token unless the turn is open."""
    for family in FAMILIES.values():
        masked = re.split("[«»]", family.text("", PAIRS))[1::2]
        for (_, answer), written in zip(PAIRS, masked, strict=True):
            before, _, end = written.rpartition(answer)
            assert before.strip() in ("", "<think>\n\n</think>", "</think>", "<|channel|>final<|message|>")
            assert (end.strip() in family.tokenizer.get_vocab()) == family.closed


MARKS_OVER_HEADERS = (  # as SmolLM3 has them
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ '<|im_start|>assistant\n' + m.content + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKS_OVER_TURNS = (
    "{% for m in messages %}{% generation %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endgeneration %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
R1_OPENS_THINKING = R1.replace("'<|Assistant|>' }}{% endif %}", "'<|Assistant|><think>\n' }}{% endif %}")
REFUSED = {
    "prompt that opens a thinking that no turn has": (R1_OPENS_THINKING, R1_TOKENIZER, "all last", "without_prefixes"),
    "another end token where others follow": (GPT_OSS, GPT_OSS_TOKENIZER, "all", "without_prefixes"),
    "no generation prompt": (CHATML.partition("{% if")[0], CHATML_TOKENIZER, "all last", "without_generation_prompt"),
    "no generation prompt, answer in the header": (
        "{% for m in messages %}{{ ('USER: ' if m.role == 'user' else 'ASSISTANT: ') + m.content + eos_token }}"
        "{% endfor %}",
        SENTENCE,
        "all last",
        "without_generation_prompt",
    ),
    "marks over headers": (MARKS_OVER_HEADERS, CHATML_TOKENIZER, "all last", "marks_header"),
    "marks over turns": (MARKS_OVER_TURNS, CHATML_TOKENIZER, "all last", "marks_"),
    "marks over all": (
        "{% generation %}" + CHATML.replace("{% endfor %}", "{% endfor %}{% endgeneration %}"),
        CHATML_TOKENIZER,
        "all last",
        "marks_",
    ),
    "marks over headers only": (
        MARKS_OVER_HEADERS.replace(
            "assistant\n' + m.content", "assistant\n' }}{% endgeneration %}{{ m.content"
        ).replace("<|im_end|>\n' }}{% endgeneration %}", "<|im_end|>\n' }}"),
        CHATML_TOKENIZER,
        "all last",
        "marks_differ",
    ),
    "marks over users": (
        MARKED_CHATML.replace("m.role == 'assistant'", "m.role == 'user'"),
        CHATML_TOKENIZER,
        "all last",
        "marks_differ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("num_pairs", [2, 3])
def test_template_without_an_exact_mask_is_refused(name, num_pairs):
    template, tokenizer, which, reason = REFUSED[name]
    for turns in which.split():
        problem = encode(Family(template, tokenizer, None), conversation(num_pairs), turns)
        assert problem.refuses_template
        assert problem.reason.startswith(f"template_{reason}"), problem
        assert "{% generation %}" in problem.text or "marks must stand" in problem.text
        assert ("turns='last'" in problem.text) == (which == "all" or (turns == "all" and "prefixes" in reason))


@pytest.mark.parametrize("which", ["all", "last"])
@pytest.mark.parametrize("template", [MARKS_OVER_TURNS, REFUSED["marks over all"][0], MARKS_OVER_HEADERS])
def test_marks_over_too_much_are_refused_where_the_counts_agree(template, which):
    problem = encode(Family(template, CHATML_TOKENIZER, None), conversation(1, SYSTEM), which)
    assert (problem.reason, problem.refuses_template) == ("template_marks_header", True)


BLANK = ["", " ", "\n"]


@pytest.mark.parametrize("answer", BLANK, ids=map(repr, BLANK))
@pytest.mark.parametrize("name", ["Llama-2", "Mistral v0.1", "Mistral v0.3", "Gemma", "R1", "ChatML", "Vicuna"])
def test_blank_answer_is_its_end_token(name, answer):
    family = next(family for full, family in FAMILIES.items() if full.startswith(name))
    chat = conversation(2)
    chat[1]["content"] = answer
    strips = name in ("Llama-2", "Mistral v0.3", "Gemma")
    pieces = re.split("[«»]", family.text("", [(PAIRS[0][0], "" if strips else answer), PAIRS[1]]))
    result = encode(family, chat, "all")
    assert masked_texts(result, family.tokenizer) == pieces[1::2]
    assert result.num_open_turns == 0
