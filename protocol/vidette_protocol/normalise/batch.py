"""A request on its way: how many answers there are, and what each of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType, NoneType
from typing import Any, Final, Generic, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct

from vidette_protocol.errors import InvalidInput
from vidette_protocol.limits import Limits
from vidette_protocol.messages.sampling import (
    MAX_SEED,
    SamplingParams,
    check_sampling,
    exclusion_fault,
    normalise_sampling,
    own_sampling,
    regex_budget_fault,
)
from vidette_protocol.messages.sessions import SessionParams
from vidette_protocol.values import explain, refuse, shown

T = TypeVar("T")
S = TypeVar("S", SamplingParams, SessionParams)


class Normalised(Struct, Generic[T], frozen=True):
    """A request as items.

    Args:
        items: one for each answer, prompt-major; at least one.
        single: whether the caller gets one answer, or a list of them.
        n: answers to each prompt.
    """

    items: tuple[T, ...]
    single: bool
    n: int = 1


class Batch:
    """A request while its fields are read.

    Args:
        prompts: B.
        listed: whether the prompts came as a list.
        limits: bounds.
        vocab_size: token ids are below it; None: it is not known.
        pairs: whether prompts are pairs of texts.
    """

    __slots__ = (
        "constraints",
        "each",
        "limits",
        "listed",
        "n",
        "pairs",
        "prompts",
        "rids",
        "rooms",
        "same",
        "sampling",
        "vocab_size",
    )

    def __init__(
        self,
        prompts: int,
        listed: bool,
        limits: Limits,
        vocab_size: int | None = None,
        *,
        pairs: bool = False,
    ) -> None:
        self.prompts = prompts
        self.listed = listed
        self.limits = limits
        self.vocab_size = vocab_size
        self.pairs = pairs
        self.n = 1
        self.sampling: tuple[SamplingParams, ...] = ()
        """One for all prompts, or one for each; checked."""
        self.constraints: dict[str, list[Any]] = {}
        """What was given beside the sampling parameters, by its name there: of each prompt."""
        self.same: dict[str, Any] = {}
        """Fields of items that are the same in all."""
        self.each: dict[str, list[Any]] = {}
        """Fields of items that each prompt has of its own."""
        self.rids: list[str] | None = None
        """One for each answer."""
        self.rooms: list[int] | None = None
        """The same."""

    @property
    def answers(self) -> int:
        """How many items there will be."""
        return self.prompts * self.n

    def check_length(self, field: str, value: Sequence[Any]) -> None:
        """Refuse a list that has not one value for each prompt."""
        if len(value) != self.prompts:
            prompts = "is 1 prompt" if self.prompts == 1 else f"are {self.prompts} prompts"
            refuse(field, f"is a list of {len(value)}, but there {prompts}")

    def pop_column(self, field: str) -> list[Any]:
        """Take back what was read of a field, None if nothing was; return one value for each prompt."""
        return self.each.pop(field, None) or [self.same.pop(field, None)] * self.prompts

    def take(self, values: tuple[Any, ...], rules: Sequence[tuple[str, object, Rule]]) -> None:
        """Read all fields, in their order."""
        for value, (field, default, rule) in zip(values, rules, strict=True):
            if value is not None and value is not default:
                rule(self, field, value)

    def take_sampling(self, value: Any) -> None:
        """Read sampling parameters, which settle how many answers there are."""
        given = [("sampling_params", SamplingParams() if value is None else value)]
        if isinstance(value, list | tuple):
            self.check_length("sampling_params", value)
            given = [(f"sampling_params[{place}]", each) for place, each in enumerate(value)]
        paths = {id(each): path for path, each in reversed(given)}  # what is repeated is checked once
        known = {id(each): each for _, each in given}
        known = {key: typed(each, paths[key], SamplingParams) for key, each in known.items()}
        self._check_patterns(known.values())
        for key, params in known.items():
            _refuse_sampling(check_sampling(params, self.limits, self.vocab_size), paths[key])
            known[key] = normalise_sampling(params)
        self.sampling = tuple(known[id(each)] for _, each in given)
        self.n = self.sampling[0].n
        for key, params in known.items():
            if params.n != self.n:
                path = f"{paths[key]}.n"
                refuse(path, f"is {params.n}, but the first is {self.n}; it is the same for all prompts")
        if self.answers > self.limits.answers:
            total = f"{self.prompts} prompts have {self.answers} answers altogether"
            fault = f"n is {self.n}, and {total}; at most {self.limits.answers} are accepted"
            raise InvalidInput(fault, param="n")

    def _check_patterns(self, all_params: Iterable[SamplingParams]) -> None:
        patterns: list[str] = []
        for params in all_params:
            if isinstance(params.stop_regex, str):
                patterns.append(params.stop_regex)
            elif params.stop_regex is not None:
                patterns += params.stop_regex
        if fault := regex_budget_fault(patterns, self.limits):
            raise InvalidInput(f"stop_regex {fault}", param="stop_regex")

    def settle_sampling(self) -> Sequence[SamplingParams]:
        """Return the sampling parameters of each prompt, its constraints in them."""
        rows = list(self.sampling) * (self.prompts // len(self.sampling))
        for field, column in self.constraints.items():
            for place, wanted in enumerate(column):
                if not wanted:
                    continue
                given = msgspec.structs.asdict(rows[place])[field]
                if given and given != wanted:
                    top = "grammar" if field == "ebnf" else field
                    both = f"{top} is {shown(wanted)}, but sampling_params.{field} is {shown(given)}"
                    raise InvalidInput(f"{both}; give it in one place", param=top)
                rows[place] = msgspec.structs.replace(rows[place], **{field: wanted})
        if self.constraints:
            for params in rows:
                _refuse_sampling(exclusion_fault(params), "sampling_params")
        return rows

    def finish(
        self,
        cls: Callable[..., T],
        new_rid: Callable[[], str],
        sampling: Sequence[SamplingParams] | None = None,
    ) -> Normalised[T]:
        """Return the items."""
        session = self.same.get("session_params")
        if session is not None and "session_id" in self.same:
            given = shown(self.same["session_id"])
            refuse("session_id", f"is {given}, and session_params are given; give one of them")
        items = []
        for place in range(self.prompts):
            fields = dict(self.same)
            for field, column in self.each.items():
                fields[field] = column[place]
            for answer in range(self.n):
                number = place * self.n + answer
                fields["rid"] = new_rid() if self.rids is None else self.rids[number]
                if self.rooms is not None:
                    fields["bootstrap_room"] = self.rooms[number]
                if sampling is not None:
                    fields["sampling_params"] = _of_answer(sampling[place], answer)
                items.append(cls(**fields))
        return Normalised(tuple(items), not self.listed and self.n == 1, self.n)


Rule = Callable[[Batch, str, Any], None]
"""Reads a field: its name, and a value that is neither None nor its default."""


def _of_answer(params: SamplingParams, answer: int) -> SamplingParams:
    """Return the parameters of one of the answers to a prompt, which nothing else shares."""
    if params.n != 1:
        seed = params.sampling_seed
        seed = None if seed is None else (seed + answer) & MAX_SEED
        params = msgspec.structs.replace(params, n=1, sampling_seed=seed)
    return own_sampling(params)


def _refuse_sampling(fault: str | None, path: str) -> None:
    """Refuse sampling parameters; where there is one only, its fields need no path."""
    if fault is not None:
        prefix = "" if path == "sampling_params" else f"{path}."
        raise InvalidInput(prefix + fault, param=prefix + fault.partition(" ")[0])


def typed(value: object, path: str, cls: type[S]) -> S:
    """Return a struct, or a dict in place of one, with all types made sure of."""
    if isinstance(value, cls):
        given = msgspec.structs.asdict(value)
    elif isinstance(value, dict):
        given = {field: each for field, each in value.items() if each is not None or field in _NULLABLE[cls]}
    else:
        refuse(path, f"is {shown(value)}; it must be a {cls.__name__} or a dict")
    try:
        return msgspec.convert(given, cls, str_keys=True)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        problem, where = explain(error)
    if problem.startswith("object contains unknown field `"):
        field = problem.partition("`")[2].removesuffix("`")
        raise InvalidInput(
            f"there is no field {shown(field)} in {path}; the fields are {', '.join(cls.__struct_fields__)}",
            param=f"{path}.{field}"[:80],
            code="unknown_field",
        )
    plain = where.removeprefix(".") if path == "sampling_params" else path + where
    raise InvalidInput(f"{path}{where} is not valid: {problem}", param=plain or path)


_NULLABLE: Final = MappingProxyType(
    {
        cls: {name for name, hint in get_type_hints(cls).items() if NoneType in get_args(hint)}
        for cls in (SamplingParams, SessionParams)
    }
)
"""Fields of which null is a value of its own (`max_new_tokens`: as many as fit), not the default."""
