"""Lines of chat JSONL -> turns, or what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash_lab.data.chat_render import ChatProblem, Turn
from dflash_lab.data.lines import JsonLine
from dflash_lab.data.rows import HALF_PAIR, show_value

# Names of the chat format and of ShareGPT's, -> the names that chat templates know.
ROLES = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "human": "user",
    "gpt": "assistant",
}
TURN_LISTS = ("messages", "conversations")
# Fields that change what a turn means; a conversation whose calls were dropped would teach answers out of nowhere.
CALL_FIELDS = ("tool_calls", "function_call")


@dataclass(frozen=True, kw_only=True)
class ChatLine:
    """One line: its turns, or its problem.

    Attributes:
        line: Where it stands.
        turns: `role` (system, user or assistant), `content` and perhaps `reasoning_content` of each turn; None where
            there is a problem.
        row_id: The line's `id`.
        source: The line's `source`.
        problem: What is wrong, or None.
    """

    line: JsonLine
    turns: list[Turn] | None = None
    row_id: str | None = None
    source: str | None = None
    problem: ChatProblem | None = None

    @classmethod
    def read(cls, line: JsonLine) -> ChatLine:
        """Check a line's fields."""
        if line.value is None:
            return cls(line=line, problem=ChatProblem(reason=str(line.reason), text=str(line.problem)))
        try:
            return cls(
                line=line,
                turns=_read_turns(line.value),
                row_id=_read_name(line.value, "id"),
                source=_read_name(line.value, "source"),
            )
        except _BadConversation as bad:
            return cls(line=line, problem=bad.problem)


class _BadConversation(Exception):
    def __init__(self, reason: str, text: str) -> None:
        self.problem = ChatProblem(reason=reason, text=text)


def _read_turns(value: Mapping[str, object]) -> list[Turn]:
    found = [name for name in TURN_LISTS if value.get(name) is not None]
    if len(found) != 1:
        what = " and ".join(found) if found else "no messages and no conversations"
        raise _BadConversation("no_turns", f"{what}, fields {sorted(value)}; legal: one of messages, conversations")
    name = found[0]
    listed = value[name]
    if not isinstance(listed, list) or not listed:
        raise _BadConversation("no_turns", f"{name} is {_show(listed)}; legal: a list of at least one turn")
    if value.get("tools"):
        raise _BadConversation("tool_call", f"tools is {_show(value['tools'])}; legal: conversations without tools")
    turns = [_read_turn(turn, f"{name}[{number}]") for number, turn in enumerate(listed)]
    system = value.get("system")
    if system is not None and system != "":
        if not isinstance(system, str):
            raise _BadConversation("content_not_text", f"system is {_show(system)}; legal: text")
        _check_unicode(system, "system", "content_not_text")
        if turns[0]["role"] == "system":
            raise _BadConversation(
                "two_systems", f"system is {_show(system)} and {name}[0] is one too; legal: one of them"
            )
        turns.insert(0, {"role": "system", "content": system})
    if all(turn["role"] != "assistant" for turn in turns):
        roles = [turn["role"] for turn in turns]
        raise _BadConversation("no_assistant_turn", f"{name} has only the roles {_show(roles)}; legal: also assistant")
    return turns


def _read_turn(turn: object, where: str) -> Turn:
    if not isinstance(turn, dict):
        raise _BadConversation("turn_not_an_object", f"{where} is {_show(turn)}; legal: an object with role, content")
    role_name, role = _one_of(turn, ("role", "from"), where, "unknown_role")
    if not isinstance(role, str) or role not in ROLES:
        raise _BadConversation("unknown_role", f"{where}.{role_name} is {_show(role)}; legal: {', '.join(ROLES)}")
    for call in CALL_FIELDS:
        if turn.get(call):
            raise _BadConversation("tool_call", f"{where}.{call} is {_show(turn[call])}; legal: turns without calls")
    content_name, content = _one_of(turn, ("content", "value"), where, "content_not_text")
    if not isinstance(content, str):
        raise _BadConversation("content_not_text", f"{where}.{content_name} is {_show(content)}; legal: text")
    read = {"role": ROLES[role], "content": content}
    reasoning = turn.get("reasoning_content")
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise _BadConversation(
                "content_not_text", f"{where}.reasoning_content is {_show(reasoning)}; legal: text or null"
            )
        read["reasoning_content"] = reasoning
    for name, text in read.items():
        _check_unicode(text, f"{where}: {name}", "content_not_text")
    return read


def _one_of(turn: Mapping[str, object], names: tuple[str, str], where: str, reason: str) -> tuple[str, object]:
    found = [name for name in names if name in turn]
    if len(found) != 1:
        what = "both" if found else "neither"
        raise _BadConversation(
            reason, f"{where} has {what} of {names[0]} and {names[1]}, fields {sorted(turn)}; legal: one of them"
        )
    return found[0], turn[found[0]]


def _read_name(value: Mapping[str, object], name: str) -> str | None:
    given = value.get(name)
    if isinstance(given, str):
        _check_unicode(given, name, "bad_text")
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    raise _BadConversation("bad_text", f"{name} is {_show(given)}; legal: text, a whole number or null")


def _check_unicode(text: str, what: str, reason: str) -> None:
    if not text.isascii() and HALF_PAIR.search(text):
        raise _BadConversation(reason, f"{what} holds half a surrogate pair; legal: Unicode")


def _show(value: object) -> str:
    return show_value(value, limit=80)
