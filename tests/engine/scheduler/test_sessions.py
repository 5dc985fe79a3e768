"""Sessions: what a request goes on behind, when it counts, and when a session ends."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.engine.scheduler.conftest import request

from vidette.scheduler.sessions import Sessions
from vidette.scheduler.turns import SessionRefused
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    CloseSessionReqInput,
    FinishReason,
    OpenSessionReqInput,
    SamplingParams,
    SessionParams,
)

STOP = FinishReason("stop", matched=0)
LENGTH = FinishReason("length", length=4)
ABORT = FinishReason("abort", message="the caller ended the request")
ERROR = FinishReason("error", message="its deadline passed")
BOS = 49


class Talk:
    """Sessions, and the requests that are made of them; a vid is used once."""

    def __init__(self, *, streaming: bool = False, timeout: float | None = None, **options: Any) -> None:
        self.sessions = Sessions(**{"max_total_tokens": 1000, "bos": BOS, **options})
        self.now = 0.0
        self.vid = 0
        assert self.open("s", streaming=streaming, timeout=timeout).success

    def open(self, name: str, **options: Any) -> Any:
        return self.sessions.open(OpenSessionReqInput(id=0, session_id=name, **options), self.now)

    def close(self, name: str = "s") -> Any:
        return self.sessions.close(CloseSessionReqInput(id=0, session_id=name))

    def begin(
        self, rid: str, prompt: list[int], behind: str | None = None, *, most: int = 4, **params: Any
    ) -> tuple[list[int], list[Vid], Vid]:
        """Begin a turn; return its whole prompt, whom it ends, and its vid."""
        self.vid += 1
        asked = request(
            self.vid,
            prompt,
            max_new_tokens=most,
            session_params=SessionParams(**{"id": "s", "rid": behind, **params}),
        )
        turn = self.sessions.look(msgspec.structs.replace(asked, rid=rid))
        assert turn is not None
        return turn.tokens().tolist(), self.sessions.begin(turn), Vid(self.vid)

    def end(self, vid: Vid, output: list[int], reason: FinishReason = STOP) -> None:
        self.sessions.finish(vid, reason, self.now, np.array(output, dtype=np.int32))

    def say(
        self, rid: str, prompt: list[int], output: list[int], behind: str | None = None, **params: Any
    ) -> list[int]:
        """Have a turn said to its end; return its whole prompt."""
        whole, ends, vid = self.begin(rid, prompt, behind, **params)
        assert ends == []
        self.end(vid, output)
        return whole

    def refused(self, *args: Any, **params: Any) -> str:
        """Return why a turn is refused; nothing has changed by it."""
        before = self.sessions.tokens
        with pytest.raises(SessionRefused) as caught:
            self.begin(*args, **params)
        assert self.sessions.tokens == before
        return str(caught.value)


# --- where a turn goes -------------------------------------------------------------------------------


def test_a_turn_goes_on_behind_what_the_one_it_names_was_asked_and_has_said() -> None:
    talk = Talk()
    assert talk.say("a", [1, 2], [3, 4]) == [1, 2]
    assert talk.say("b", [5], [6], "a") == [1, 2, 3, 4, 5]
    assert talk.say("c", [7], [8], "b") == [1, 2, 3, 4, 5, 6, 7]


def test_naming_an_earlier_turn_makes_a_branch() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    assert talk.say("c", [5], [6], "a") == [1, 2, 5]
    assert talk.say("d", [7], [8], "b") == [1, 2, 3, 4, 7]
    assert talk.say("e", [9], [], "c") == [1, 2, 5, 6, 9]


def test_naming_none_begins_anew() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    assert talk.say("b", [3], [4]) == [3]
    assert talk.say("c", [5], [6], "a") == [1, 2, 5]


@pytest.mark.parametrize(
    ("offset", "whole"),
    [
        (None, [1, 2, 3, 4, 5, 6, 9]),
        (0, [1, 2, 3, 4, 5, 6, 9]),
        (6, [1, 2, 3, 4, 5, 6, 9]),
        (5, [1, 2, 3, 4, 5, 9]),
        (3, [1, 2, 3, 9]),
        (1, [1, 9]),
    ],
)
def test_an_offset_is_where_the_prompt_replaces_what_was_there(offset: int | None, whole: list[int]) -> None:
    talk = Talk()
    talk.say("a", [1, 2], [3])
    talk.say("b", [4, 5], [6], "a")
    assert talk.say("c", [9], [10], "b", offset=offset) == whole
    assert talk.say("d", [11], [], "c") == [*whole, 10, 11]


def test_an_offset_behind_the_end_is_refused() -> None:
    talk = Talk()
    talk.say("a", [1, 2], [3])
    assert talk.refused("b", [4], "a", offset=4) == "offset is 4, but only 3 tokens are there"
    assert talk.refused("b", [4], offset=1) == "offset is 1, but only 0 tokens are there"
    assert talk.refused("b", [4], "a", offset=3, drop_previous_output=True).startswith("offset is 3")


def test_the_previous_output_can_be_left_out() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    assert talk.say("c", [5], [], "b", drop_previous_output=True) == [1, 2, 3, 5]


def test_a_token_that_begins_every_text_is_left_out_of_what_goes_on() -> None:
    talk = Talk()
    assert talk.say("a", [BOS, 1], [2]) == [BOS, 1]
    assert talk.say("b", [BOS, 3], [4], "a") == [BOS, 1, 2, 3]
    assert talk.say("c", [BOS], [5], "b") == [BOS, 1, 2, 3, 4]
    assert talk.say("d", [3, BOS], [], "c") == [BOS, 1, 2, 3, 4, 5, 3, BOS]
    assert Talk(bos=None).say("a", [BOS], []) == [BOS]


# --- what counts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [ABORT, ERROR])
def test_a_turn_that_does_not_come_to_its_own_end_never_was(reason: FinishReason) -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    held = talk.sessions.tokens
    _, _, vid = talk.begin("b", [3], "a")
    talk.end(vid, [4, 5], reason)
    assert talk.sessions.tokens == held
    assert talk.refused("c", [6], "b").startswith("session 's' has no request 'b'")
    assert talk.say("b", [6], [7], "a") == [1, 2, 6]


def test_a_turn_in_flight_cannot_be_gone_on_with() -> None:
    talk = Talk()
    talk.begin("a", [1])
    assert talk.refused("b", [2], "a") == "request 'a' of session 's' is not over yet"


def test_a_caller_who_left_before_hearing_of_the_end_has_nothing_said() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    _, _, vid = talk.begin("b", [3], "a")
    talk.end(vid, [4])
    talk.sessions.forget(vid)
    assert talk.refused("c", [6], "b").startswith("session 's' has no request 'b'")
    assert talk.say("c", [5], [], "a") == [1, 2, 5]


def test_what_others_go_on_behind_is_not_forgotten() -> None:
    talk = Talk()
    _, _, vid = talk.begin("a", [1])
    talk.end(vid, [2])
    talk.begin("b", [3], "a")
    talk.sessions.forget(vid)
    assert talk.say("c", [4], [], "a") == [1, 2, 4]


def test_a_vid_of_no_turn_is_nothing() -> None:
    talk = Talk()
    talk.sessions.forget(Vid(99))
    talk.end(Vid(99), [1])
    assert talk.sessions.look(request(1)) is None
    assert talk.sessions.look(request(1, session_params=SessionParams())) is None


# --- names -------------------------------------------------------------------------------------------------


def test_a_rid_names_what_was_said_last_under_it() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    assert talk.say("a", [5], [6]) == [5]
    assert talk.say("c", [7], [], "a") == [5, 6, 7]
    assert talk.say("d", [8], [], "b") == [1, 2, 3, 4, 8]


def test_a_conversation_may_have_one_rid() -> None:
    talk = Talk()
    whole: list[int] = []
    for turn in range(1, 9):
        assert talk.say("a", [turn], [10 * turn], "a" if whole else None) == [*whole, turn]
        whole += [turn, 10 * turn]
        assert talk.sessions._sessions["s"].count <= 3
    assert talk.sessions.tokens == len(whole)


def test_a_rid_cannot_be_that_of_two_in_flight() -> None:
    talk = Talk()
    talk.begin("a", [1])
    assert talk.refused("a", [2]) == "session 's' has a request 'a' that is not over yet"


# --- replacing -------------------------------------------------------------------------------------------


def test_a_replacement_drops_what_went_on_behind_once_it_counts() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    talk.say("c", [5], [6], "b")
    whole, ends, vid = talk.begin("d", [7], "a", replace=True)
    assert (whole, ends) == ([1, 2, 7], [])
    assert "it was replaced" in talk.refused("x", [9], "b")
    talk.end(vid, [8])
    assert "it was replaced" in talk.refused("x", [9], "c")
    assert talk.say("e", [9], [], "d") == [1, 2, 7, 8, 9]
    assert talk.sessions.tokens == 5
    assert talk.say("b", [9], [], "a") == [1, 2, 9]


@pytest.mark.parametrize("late", [False, True])
def test_a_replacement_that_never_was_has_dropped_nothing(late: bool) -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    _, _, vid = talk.begin("c", [5], "a", replace=True)
    talk.end(vid, [6], STOP if late else ABORT)
    talk.sessions.forget(vid)
    assert talk.say("d", [7], [], "b") == [1, 2, 3, 4, 7]


def test_a_replacement_ends_what_goes_on_in_flight() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    _, _, behind = talk.begin("b", [3], "a")
    _, _, other = talk.begin("x", [4])
    whole, ends, vid = talk.begin("c", [5], "a", replace=True)
    assert (whole, ends) == ([1, 2, 5], [behind])
    talk.end(behind, [9], ABORT)
    talk.end(vid, [6])
    talk.end(other, [7])
    assert talk.say("d", [8], [], "c") == [1, 2, 5, 6, 8]
    assert talk.say("e", [8], [], "x") == [4, 7, 8]


def test_what_is_replaced_in_flight_is_gone_on_with_as_it_was_asked() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    _, _, old = talk.begin("b", [3, 4], "a")
    whole, ends, vid = talk.begin("b", [5], "b", replace=True)
    assert (whole, ends) == ([1, 2, 3, 4, 5], [old])
    talk.end(old, [9, 9], ABORT)
    talk.end(vid, [6])
    assert talk.say("c", [7], [], "b") == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("offset", "whole"), [(4, [1, 2, 3, 4, 5]), (3, [1, 2, 3, 5]), (1, [1, 5])])
def test_what_is_replaced_in_flight_can_be_cut(offset: int, whole: list[int]) -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.begin("b", [3, 4], "a")
    assert talk.begin("c", [5], "b", replace=True, offset=offset)[0] == whole


def test_a_replacement_that_is_replaced_in_flight_drops_nothing_before_its_successor_counts() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    _, _, first = talk.begin("c", [5], "a", replace=True)
    _, ends, second = talk.begin("d", [6], "c", replace=True)
    assert ends == [first]
    talk.end(first, [], ABORT)
    assert "it was replaced" in talk.refused("x", [9], "b")
    talk.end(second, [], ABORT)
    assert talk.say("e", [7], [], "b") == [1, 2, 3, 4, 7]


def test_a_replacement_of_all_leaves_itself() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    _, _, flying = talk.begin("c", [5], "b")
    whole, ends, vid = talk.begin("c", [6], replace=True)
    assert (whole, ends) == ([6], [flying])
    talk.end(flying, [], ABORT)
    talk.end(vid, [7])
    assert talk.say("d", [8], [], "c") == [6, 7, 8]
    assert talk.sessions.tokens == 3
    assert "it was replaced" in talk.refused("x", [9], "a")


# --- streaming sessions ------------------------------------------------------------------------------------


def test_a_streaming_session_goes_on_behind_its_last_request() -> None:
    talk = Talk(streaming=True)
    assert talk.say("a", [1], [2]) == [1]
    assert talk.say("b", [3], [4]) == [1, 2, 3]
    assert talk.say("c", [5], [6], "b") == [1, 2, 3, 4, 5]
    assert talk.refused("d", [7], "b") == "'b' is not the last request of streaming session 's'"


def test_a_streaming_session_has_one_request_in_flight() -> None:
    talk = Talk(streaming=True)
    _, _, vid = talk.begin("a", [1])
    assert "has a request in flight" in talk.refused("b", [2])
    talk.end(vid, [], ABORT)
    assert talk.say("b", [2], [3]) == [2]


@pytest.mark.parametrize("params", [{"replace": True}, {"drop_previous_output": True}, {"offset": 1}])
def test_a_streaming_session_only_goes_on(params: dict[str, Any]) -> None:
    talk = Talk(streaming=True)
    talk.say("a", [1], [2])
    assert "only goes on" in talk.refused("b", [3], **params)


def test_what_a_streaming_session_holds_is_its_last_request() -> None:
    talk = Talk(streaming=True)
    for turn in range(1, 30):
        talk.say(f"turn {turn}", [1] * 3, [2] * 4)
        assert talk.sessions.tokens == 7 * turn
        assert talk.sessions._sessions["s"].count <= 2


# --- the life of a session ------------------------------------------------------------------------------


def test_a_session_that_is_not_open_serves_nobody() -> None:
    talk = Talk()
    assert talk.close().success
    assert talk.refused("a", [1]).startswith("session 's' is not open")
    assert not talk.close().success
    assert len(talk.sessions) == talk.sessions.tokens == 0


def test_an_id_is_that_of_one_session() -> None:
    talk = Talk()
    answer = talk.open("s")
    assert (answer.success, answer.session_id, answer.full) == (False, None, False)
    talk.close()
    assert talk.open("s").session_id == "s"
    assert talk.refused("b", [2], "a").startswith("session 's' has no request 'a'")


def test_closing_waits_for_what_is_in_flight() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    _, _, first = talk.begin("b", [3], "a")
    _, _, second = talk.begin("c", [3], "a")
    assert talk.close().success
    assert talk.refused("d", [4], "a") == "session 's' is being closed"
    assert not talk.open("s").success
    assert talk.close().success
    talk.end(first, [4])
    assert len(talk.sessions) == 1
    talk.end(second, [], ABORT)
    assert len(talk.sessions) == talk.sessions.tokens == 0
    talk.sessions.forget(first)


def test_a_session_ends_when_it_was_idle_for_its_timeout() -> None:
    talk = Talk(timeout=10)
    assert talk.sessions.next == 10
    talk.now = 9
    _, _, vid = talk.begin("a", [1])
    assert talk.sessions.next is None
    assert talk.sessions.expire(1000) == []
    talk.now = 50
    talk.end(vid, [2])
    assert talk.sessions.next == 60
    assert talk.sessions.expire(59.9) == []
    assert talk.say("b", [3], [4], "a") == [1, 2, 3]
    assert talk.sessions.expire(60) == ["s"]
    assert len(talk.sessions) == talk.sessions.tokens == 0


def test_a_refusal_does_not_keep_a_session() -> None:
    talk = Talk(timeout=10)
    talk.now = 9
    talk.refused("a", [1], "nobody")
    assert talk.sessions.next == 10


# --- bounds ------------------------------------------------------------------------------------------------


def test_sessions_are_bounded() -> None:
    talk = Talk(max_sessions=2)
    assert talk.open("t").success
    answer = talk.open("u")
    assert (answer.success, answer.full) == (False, True)
    talk.close("t")
    assert talk.open("u").success


def test_the_requests_of_a_session_are_bounded() -> None:
    talk = Talk(max_turns=2)
    talk.say("a", [1], [2])
    talk.say("b", [1], [2], "a")
    assert talk.refused("c", [1], "a") == "session 's' holds 2 requests; at most 2 fit: open another"


def test_the_tokens_of_all_sessions_are_bounded_with_what_may_still_be_said() -> None:
    talk = Talk(max_tokens=10)
    _, _, vid = talk.begin("a", [1, 2], most=5)
    assert talk.sessions.tokens == 7
    talk.refused("b", [1], most=4)
    talk.end(vid, [3])
    assert talk.sessions.tokens == 3
    with pytest.raises(SessionRefused) as caught:
        talk.begin("b", [1], most=7)
    assert caught.value.status == 429
    talk.begin("b", [1], most=6)
    assert talk.sessions.tokens == 10


def test_whoever_asks_for_all_the_room_gets_what_the_session_leaves() -> None:
    talk = Talk(max_total_tokens=20)
    talk.say("a", [1] * 5, [2] * 5)
    assert "together at most 20 fit" in talk.refused("b", [3], "a", most=10)
    asked = request(
        90, [3], max_new_tokens=19, session_params=SessionParams(id="s", rid="a"), sampling_seed=0
    )
    turn = talk.sessions.look(asked)
    assert turn is not None
    filled = turn.fill(asked)
    assert filled.sampling_params == SamplingParams(temperature=0.0, max_new_tokens=9, sampling_seed=0)
    assert filled.token_ids.tolist() == [1] * 5 + [2] * 5 + [3]
    with pytest.raises(SessionRefused):
        talk.sessions.look(
            request(
                91,
                [3],
                max_new_tokens=19,
                min_new_tokens=10,
                session_params=SessionParams(id="s", rid="a"),
            )
        )
