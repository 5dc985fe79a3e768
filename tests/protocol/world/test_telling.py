from __future__ import annotations

from vidette_protocol.ids import Vid, make_vid
from vidette_protocol.world import Action, Bounds, World
from vidette_protocol.world.choices import rid_of

A, B, C = Vid(0), Vid(1), Vid(2)
OTHER = make_vid(1, 0)


def told(bounds: Bounds, *actions: str | Action) -> list[str]:
    """Return a line for each action; a bare name is the first enabled action of that name."""
    world, lines = World(bounds=bounds), []
    for action in actions:
        chosen = next(each for each in world.enabled() if action in {each, each.name})
        after = world.apply(chosen)
        lines.append(world.tell(chosen, after))
        world = after
    return lines


def test_a_life_is_told() -> None:
    life = ("submit", "send", "request arrives", "launch", "land", "row arrives", "text arrives")
    assert told(
        Bounds(tokens=2), *life, "launch", Action("land", (A,)), "row arrives", "text arrives", "leave"
    ) == [
        "a client submits r1, which is vid 0",
        "the front sends the request of vid 0",
        "the request of vid 0 reaches the scheduler",
        "a batch of vid 0 is launched",
        "the batch of vid 0 lands at the scheduler, which says token 0 of vid 0",
        "token 0 of vid 0 reaches the detokenizer",
        "token 0 of vid 0 reaches the front; the caller of vid 0 hears it",
        "a batch of vid 0 is launched",
        "the batch of vid 0 lands at the scheduler, which says the end of vid 0 (finish, token 1)",
        "the end of vid 0 (finish, token 1) reaches the detokenizer",
        "the end of vid 0 (finish, token 1) reaches the front; the caller of vid 0 hears it",
        "the caller of vid 0 leaves",
    ]


def test_aborts_and_refusals_are_told() -> None:
    lines = told(
        Bounds(split_senders=True),
        *("submit", "submit", Action("send", (A,)), Action("send", (B,)), Action("leave", (A,))),
        *("overtaking abort arrives", "request arrives", "request arrives", "reject"),
        *("row arrives", "text arrives"),
    )
    assert lines[4:] == [
        "the caller of vid 0 leaves; an abort is sent",
        "the abort of vid 0 takes its own link to the scheduler",
        "the request of vid 0 reaches the scheduler, which says the end of vid 0 (abort)",
        "the request of vid 1 reaches the scheduler",
        "vid 1 cannot be served by the scheduler, which says the end of vid 1 (finish)",
        "the end of vid 0 (abort) reaches the detokenizer",
        "the end of vid 0 (abort) reaches the front; nobody hears it",
    ]


def test_an_abort_that_keeps_its_place_is_told() -> None:
    lines = told(Bounds(), "submit", "send", "leave", "request arrives", "abort arrives")
    assert lines[-1] == "the abort of vid 0 reaches the scheduler, which says the end of vid 0 (abort)"


def test_deadlines_and_retractions_are_told() -> None:
    lines = told(
        Bounds(tokens=3, deadlines=True, retractions=1),
        *("submit", "send", "request arrives", "launch", "land", "retract", "expire"),
    )
    assert lines[-2:] == [
        "vid 0 has to give its blocks up at the scheduler",
        "the deadline of vid 0 passes at the scheduler, which says the end of vid 0 (finish)",
    ]


def test_groups_are_told() -> None:
    bounds = Bounds(rids=3, uses=3, group=2)
    assert told(bounds, "submit group", "send", "send", "group is refused", "leave") == [
        "a client submits r1, r12 together, which are vid 0, vid 1",
        "the front sends the request of vid 0",
        "the front sends the request of vid 1",
        "a client submits r123, r1 together, of which one lives; the group is refused",
        "the caller of vid 0, vid 1 leaves; 2 aborts are sent",
    ]


def test_aborting_all_is_told() -> None:
    bounds = Bounds(uses=2, abort_all=True)
    assert told(bounds, "submit", "submit", "send", "abort all", "request arrives", "abort arrives")[3:] == [
        "all requests of the front are aborted; told: vid 0, vid 1; an abort is sent",
        "the request of vid 0 reaches the scheduler",
        "the abort of all up to vid 0 reaches the scheduler, which says the end of vid 0 (abort)",
    ]


def test_replacing_is_told() -> None:
    bounds = Bounds(rids=1, replace=True)
    assert told(bounds, "submit", "replace", Action("send", (B,)), "replace")[1::2] == [
        "a client submits r1 in place of what has it, which is vid 1; told: vid 0",
        "a client submits r1 in place of what has it, which is vid 2; told: vid 1; an abort is sent",
    ]


def test_a_death_is_told() -> None:
    lines = told(Bounds(losses=1), "submit", "send", "replica is lost", "loss is noticed")
    assert lines[2:] == [
        "the scheduler and its detokenizer die",
        "the front finds out that the scheduler has died; told: vid 0",
    ]
    assert told(Bounds(losses=1), "replica is lost", "loss is noticed")[-1] == (
        "the front finds out that the scheduler has died"
    )


def test_what_goes_on_elsewhere_is_told() -> None:
    lines = told(
        Bounds(rids=1, uses=1, tokens=4, losses=1, resume=True),
        *("submit", "send", "request arrives"),
        *("launch", "land", "row arrives", "text arrives") * 2,
        *("replica is lost", "loss is noticed", "send", "request arrives", "row arrives", "text arrives"),
    )
    assert lines[-5:] == [
        "the front finds out that the scheduler has died; vid 0 goes on as vid 1",
        "the front sends the request of vid 1, with the 2 tokens that its caller has heard",
        "the request of vid 1 reaches the scheduler, which says tokens 0 to 1 of vid 1",
        "tokens 0 to 1 of vid 1 reach the detokenizer",
        "tokens 0 to 1 of vid 1 reach the front; nobody hears it",
    ]


def test_several_fronts_and_schedulers_are_told_apart() -> None:
    lines = told(
        Bounds(rids=1, uses=2, tokens=1, fronts=2, replicas=2, losses=1),
        *(
            "submit",
            "send",
            Action("submit", rids=(rid_of(0),), front=1),
            Action("send", (OTHER,), replica=1),
        ),
        *(Action("request arrives", front=1, replica=1), "launch", "land", "row arrives", "text arrives"),
        *(Action("replica is lost", replica=1), Action("loss is noticed", front=1, replica=1)),
    )
    assert lines[1:] == [
        "front 0 sends the request of vid 0 to scheduler 0",
        "a client submits r1, which is vid 1:0",
        "front 1 sends the request of vid 1:0 to scheduler 1",
        "the request of vid 1:0 reaches scheduler 1",
        "a batch of vid 1:0 is launched at scheduler 1",
        "the batch of vid 1:0 lands at scheduler 1, which says the end of vid 1:0 (finish, token 0)",
        "the end of vid 1:0 (finish, token 0) reaches the detokenizer",
        "the end of vid 1:0 (finish, token 0) reaches front 1; the caller of vid 1:0 hears it",
        "scheduler 1 and its detokenizer die",
        "front 1 finds out that scheduler 1 has died",
    ]
