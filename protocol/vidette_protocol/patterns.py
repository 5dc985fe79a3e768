"""Patterns that are searched for in a text while it comes, in time that grows with the text alone.

`re` tries one way after the other, which for some patterns takes exponential time, and has to begin anew with
each piece of text. Here a pattern becomes an automaton that follows all ways at once (as grep does): a
character costs at most as many operations as the pattern has states, usually one look-up, and nothing is
looked at twice. What no such automaton can do (backreferences, lookaround, atomic groups) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import IntEnum

# The parser of `re` itself, so that a pattern means here what it means there. It has no public name.
from re import _constants, _parser  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any, Final

Fits = Callable[[str], bool]

MOST_REMEMBERED: Final = 1 << 15
"""Places and moves of a pattern that are remembered before all are forgotten and found anew; 2 MB or so."""

_UNSUPPORTED: Final = {
    "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a conditional group",
    "ASSERT": "a lookahead or lookbehind",
    "ASSERT_NOT": "a negative lookahead or lookbehind",
    "FAILURE": "a negative lookahead or lookbehind",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}


class PatternError(ValueError):
    """A pattern cannot be followed as the text comes; says why, as what follows "which"."""


class PatternSizeError(PatternError):
    """It needs more states than it may have."""


class _Side(IntEnum):
    """What is on one side of a place in the text, as far as `^`, `$` and `\\b` have to know."""

    EDGE = 0
    """Nothing: the text begins here, or ends."""
    LAST_NEWLINE = 1
    """A newline that the text ends with."""
    NEWLINE = 2
    OTHER = 3
    WORD = 4
    """A letter, a digit or `_`, of ASCII."""
    FOREIGN_WORD = 5
    """One beyond ASCII."""


class _State:
    """Where in the pattern the ways that are followed have got to, and what is behind them."""

    __slots__ = ("at_end", "at_newline", "before", "moves", "places")

    def __init__(self, places: frozenset[int], before: _Side) -> None:
        self.places = places
        self.before = before
        self.moves: dict[str, _State] = {}
        self.at_end: bool | None = None
        self.at_newline: bool | None = None


_FOUND: Final = _State(frozenset(), _Side.OTHER)
"""Stands for: there is a match."""


class Pattern:
    """A compiled pattern; several searches may share it, in one thread.

    Args:
        pattern: a regular expression of `re`.
        most: states it may have at most.

    Raises:
        PatternSizeError: it has more.
        PatternError: it needs what an automaton cannot do.
        re.error, OverflowError, RecursionError, Warning: as `re.compile`.
    """

    def __init__(self, pattern: str, most: int) -> None:
        self.text = pattern
        self._most = most
        self._work = 0
        self._reached: dict[int, set[int]] = {}
        self._known: dict[tuple[str, int, int], Fits] = {}
        # A node is a character (its predicate), an assertion (its code and flags) or a fork (None).
        self._tests: list[Any] = [None]
        self._outs: list[list[int]] = [[]]
        self._groups: dict[Fits, list[int]] = {}
        self._fitting: dict[str, set[int]] = {}
        self.asserts = False
        """Whether anything in it depends on what is around a match."""
        parsed = _parser.parse(pattern)
        self._entry = self._sequence(parsed, 0, parsed.state.flags)
        self._known.clear()
        self.size = len(self._tests)
        """How many states it has."""
        self._states: dict[tuple[frozenset[int], _Side], _State] = {}
        self.remembered = 0
        """Places and moves that are remembered."""

    def begin(self, before: _Side) -> _State:
        """Return the state in which no way has begun."""
        return self._state(frozenset(), before)

    def move(self, state: _State, character: str) -> _State:
        """Return where a state gets with the next character; `_FOUND` if there was a match before it."""
        side = self._side(character)
        places = self._reach(state.places, state.before, side)
        found = 0 in places
        moved = _FOUND if found else self._state(self._eat(places, character), side)
        self.remembered += 1
        if self.remembered > MOST_REMEMBERED:
            self._forget()
        state.moves[character] = moved
        return moved

    def ends(self, state: _State, previous: _State, last: str) -> bool:
        """Return whether there is a match if the text ends here.

        Args:
            state: where it has got to.
            previous: where it was before the last character.
            last: that character, "" if there is none.
        """
        if state.at_end is None:
            state.at_end = 0 in self._reach(state.places, state.before, _Side.EDGE)
        if state.at_end or last != "\n" or not self.asserts:
            return state.at_end
        # `$` also matches before a newline that the text ends with.
        if previous.at_newline is None:
            places = self._reach(previous.places, previous.before, _Side.LAST_NEWLINE)
            previous.at_newline = 0 in places or 0 in self._reach(
                self._eat(places, "\n"), _Side.NEWLINE, _Side.EDGE
            )
        return previous.at_newline

    def _state(self, places: frozenset[int], before: _Side) -> _State:
        state = self._states.get((places, before))
        if state is None:
            state = self._states[places, before] = _State(places, before)
            self.remembered += len(places) + 1
        return state

    def _forget(self) -> None:
        for state in self._states.values():  # they know each other, and would wait for the garbage collector
            state.moves.clear()
        self._states.clear()
        self._fitting.clear()
        self.remembered = 0

    def _eat(self, places: set[int], character: str) -> frozenset[int]:
        fitting = self._fitting.get(character)
        if fitting is None:
            fitting = self._fitting[character] = {
                place for fits, group in self._groups.items() if fits(character) for place in group
            }
            self.remembered += len(fitting) + 1
        outs = self._outs
        return frozenset([outs[place][0] for place in places & fitting])

    def _reach(self, places: Iterable[int], before: _Side, after: _Side) -> set[int]:
        """Return the characters that come next on some way, and 0 if one is at its end."""
        if self.asserts:
            return self._follow([*places, self._entry], before, after)  # a match may begin anywhere
        reached = set(self._known_reach(self._entry))
        for place in places:
            reached.update(self._known_reach(place))
        return reached

    def _known_reach(self, place: int) -> set[int]:
        """Return what is reached from one place, where that is always the same."""
        known = self._reached.get(place)
        if known is None:
            known = self._reached[place] = self._follow([place], _Side.OTHER, _Side.OTHER)
        return known

    def _follow(self, todo: list[int], before: _Side, after: _Side) -> set[int]:
        tests, outs = self._tests, self._outs
        seen, reached = set(todo), set()
        while todo:
            place = todo.pop()
            test = tests[place]
            if place == 0 or callable(test):
                reached.add(place)
            elif test is None or _holds(test, before, after):
                for out in outs[place]:
                    if out not in seen:
                        seen.add(out)
                        todo.append(out)
        return reached

    def _side(self, character: str) -> _Side:
        return side_of(character) if self.asserts else _Side.OTHER

    # --- from the parsed pattern to the automaton, backwards -------------------------------

    def _node(self, test: Any, *outs: int) -> int:
        if len(self._tests) >= self._most:
            raise PatternSizeError(f"needs more than {self._most} states")
        self._tests.append(test)
        self._outs.append(list(outs))
        return len(self._tests) - 1

    def _sequence(self, items: Any, then: int, flags: int) -> int:
        for operation, argument in reversed(list(items)):
            then = self._item(operation, argument, then, flags)
        return then

    def _item(self, operation: Any, argument: Any, then: int, flags: int) -> int:
        # What is repeated may be empty, so that no node is made of it: the work is counted, not the nodes.
        self._work += 1
        if self._work > 16 * self._most:
            raise PatternSizeError(f"needs more than {self._most} states")
        match str(operation):
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" as kind:
                fits = self._fits(kind, argument, flags)
                place = self._node(fits, then)
                self._groups.setdefault(fits, []).append(place)
                return place
            case "BRANCH":
                return self._node(None, *[self._sequence(each, then, flags) for each in argument[1]])
            case "SUBPATTERN":
                _, added, removed, inner = argument
                return self._sequence(inner, then, (flags | added) & ~removed)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = argument
                return self._repeat((least, most), inner, then, flags)
            case "AT":
                self.asserts = True
                return self._node((str(argument), flags), then)
            case kind:
                raise PatternError(f"has {_UNSUPPORTED.get(kind, kind)}; that is not supported")

    def _fits(self, kind: str, argument: Any, flags: int) -> Fits:
        # What is repeated comes here again and again, as the same object.
        key = (kind, id(argument), flags)
        if key not in self._known:
            self._known[key] = _fits(kind, argument, flags)
        return self._known[key]

    def _repeat(self, bounds: tuple[int, int], inner: Any, then: int, flags: int) -> int:
        least, most = bounds
        if most == _constants.MAXREPEAT:
            fork = self._node(None)
            self._outs[fork] = [self._sequence(inner, fork, flags), then]
            then = fork
        else:
            after = then
            for _ in range(most - least):
                self._work += 1
                then = self._node(None, self._sequence(inner, then, flags), after)
        for _ in range(least):
            self._work += 1
            if self._work > 16 * self._most:
                raise PatternSizeError(f"needs more than {self._most} states")
            then = self._sequence(inner, then, flags)
        return then


class Search:
    """A search for one pattern in one text.

    Args:
        pattern: what to search for.
    """

    __slots__ = ("_last", "_pattern", "_previous", "_state")

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._last = ""
        self._state = self._previous = pattern.begin(_Side.EDGE if pattern.asserts else _Side.OTHER)

    @property
    def pattern(self) -> str:
        """The pattern as it was written."""
        return self._pattern.text

    def push(self, text: str) -> bool:
        """Take the next piece of the text.

        Returns:
            Whether there is a match in the text so far, as `re.search` would find one; not to be called
            again then, unless after `restart`.
        """
        state, previous = self._state, self._previous
        for character in text:
            previous, state = state, state.moves.get(character) or self._pattern.move(state, character)
            if state is _FOUND:
                self._last = text[-1]
                return True
        if text:
            self._last = text[-1]
        self._state, self._previous = state, previous
        return self._pattern.ends(state, previous, self._last)

    def restart(self) -> None:
        """Pass over what was found: search for a match in what comes from here on."""
        last = self._last
        side = side_of(last) if last and self._pattern.asserts else self._previous.before
        self._state = self._previous = self._pattern.begin(side)
        self._last = ""


def side_of(character: str) -> _Side:
    """Return which side of a place a character makes."""
    if character == "\n":
        return _Side.NEWLINE
    if character == "_" or character.isalnum():
        return _Side.WORD if character.isascii() else _Side.FOREIGN_WORD
    return _Side.OTHER


def _holds(assertion: tuple[str, int], before: _Side, after: _Side) -> bool:
    code, flags = assertion
    several = bool(flags & re.MULTILINE)
    match code:
        case "AT_BEGINNING":
            return before is _Side.EDGE or (several and before is _Side.NEWLINE)
        case "AT_BEGINNING_STRING":
            return before is _Side.EDGE
        case "AT_END":
            return after in {_Side.EDGE, _Side.LAST_NEWLINE} or (several and after is _Side.NEWLINE)
        case "AT_END_STRING":
            return after is _Side.EDGE
    word = _Side.WORD
    within = {word} if flags & re.ASCII else {word, _Side.FOREIGN_WORD}
    return ((before in within) != (after in within)) == (code == "AT_BOUNDARY")


# --- one character -----------------------------------------------------------------------


def _fits(kind: str, argument: Any, flags: int) -> Fits:
    fold = bool(flags & re.IGNORECASE)
    match kind:
        case "LITERAL":
            return _literal(argument, fold=fold)
        case "NOT_LITERAL":
            same = _literal(argument, fold=fold)
            return lambda character: not same(character)
        case "ANY":
            return (lambda _: True) if flags & re.DOTALL else (lambda character: character != "\n")
    parts = [_part(str(name), value, flags) for name, value in argument if str(name) != "NEGATE"]
    negated = len(parts) < len(argument)
    return lambda character: any(part(character) for part in parts) is not negated


def _part(name: str, value: Any, flags: int) -> Fits:
    match name:
        case "LITERAL":
            return _literal(value, fold=bool(flags & re.IGNORECASE))
        case "RANGE":
            low, high = map(chr, value)
            if not flags & re.IGNORECASE:
                return lambda character: low <= character <= high
            return lambda character: any(
                low <= each <= high for each in (character, character.lower(), character.upper())
            )
    return _category(str(value), ascii_only=bool(flags & re.ASCII))


def _literal(code: int, *, fold: bool) -> Fits:
    wanted = chr(code)
    if not fold:
        return wanted.__eq__
    lower, upper = wanted.lower(), wanted.upper()
    return lambda character: character.lower() == lower or character.upper() == upper


def _category(name: str, *, ascii_only: bool) -> Fits:
    kind = name.removeprefix("CATEGORY_")
    tests: dict[str, Fits] = {
        "DIGIT": str.isdecimal,
        "SPACE": str.isspace,
        "WORD": lambda character: character == "_" or character.isalnum(),
    }
    test = tests[kind.removeprefix("NOT_")]
    wanted = not kind.startswith("NOT_")
    if ascii_only:
        # Four separators of ASCII are white space for Unicode alone.
        return lambda character: (
            (character.isascii() and test(character) and character not in "\x1c\x1d\x1e\x1f") is wanted
        )
    return lambda character: test(character) is wanted
