"""One rule for each field of a request, in two tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from vidette_protocol.errors import InvalidInput
from vidette_protocol.limits import Limits
from vidette_protocol.messages.multimodal import PositionalEmbeds
from vidette_protocol.messages.sampling import SamplingParams, constraint_fault
from vidette_protocol.messages.sessions import SessionParams
from vidette_protocol.normalise.batch import Batch, Rule, typed
from vidette_protocol.values import (
    MAX_INT32,
    MAX_INT64,
    Kind,
    count_fault,
    flag,
    hex_hash,
    ids_fault,
    integers,
    key,
    media,
    name,
    one_of,
    optional,
    pair,
    prompt,
    prompt_embeds,
    prompt_ids,
    refuse,
    shown,
    text,
    text_fault,
    whole,
)


def _for_all(kind: Kind) -> Rule:
    """Return the rule of a field that has one value, for all."""

    def rule(batch: Batch, field: str, value: Any) -> None:
        batch.same[field] = kind(value, field, batch.limits)

    return rule


def _for_each(kind: Kind) -> Rule:
    """Return the rule of a field that has one value for all, or a list of one for each prompt."""

    def rule(batch: Batch, field: str, value: Any) -> None:
        if isinstance(value, list | tuple):
            batch.check_length(field, value)
            batch.each[field] = [
                kind(one, f"{field}[{place}]", batch.limits) for place, one in enumerate(value)
            ]
        else:
            batch.same[field] = kind(value, field, batch.limits)

    return rule


def _prompts(kind: Kind) -> Rule:
    """Return the rule of prompts, which are a list or not as was found before."""

    def rule(batch: Batch, field: str, value: Any) -> None:
        if batch.listed:
            batch.each[field] = [
                kind(one, f"{field}[{place}]", batch.limits) for place, one in enumerate(value)
            ]
        else:
            batch.same[field] = kind(value, field, batch.limits)

    return rule


_rid = text(lambda limits: limits.rid_chars)
_constraint_text = text(lambda limits: limits.constraint_chars)
_texts = _prompts(prompt)
_pairs = _prompts(pair)


def _texts_or_pairs(batch: Batch, field: str, value: Any) -> None:
    (_pairs if batch.pairs else _texts)(batch, field, value)


def _read_first(batch: Batch, field: str, value: Any) -> None:
    """For a field that was read already, because others depend on it."""


def _rids(batch: Batch, field: str, value: Any) -> None:
    """Give each answer its rid; where a rid has several answers it is their prefix."""
    limits = batch.limits
    if isinstance(value, list | tuple):
        batch.check_length(field, value)
        given = [_rid(one, f"{field}[{place}]", limits) for place, one in enumerate(value)]
        bare, count = batch.n == 1, batch.n
    else:
        given = [_rid(value, field, limits)]
        bare, count = batch.answers == 1 and not batch.listed, batch.answers
    if not bare:
        most = limits.rid_chars - len(f"_{count - 1}")
        for rid in given:
            if len(rid) > most:
                refuse(field, f"has {len(rid)} characters; it must have 1 to {most}, to be a prefix")
        given = [f"{rid}_{number}" for rid in given for number in range(count)]
    if len(set(given)) != len(given):
        twice = [rid for rid, count in Counter(given).items() if count > 1]
        some = ", ".join(map(shown, twice[:4])) + (", ..." if len(twice) > 4 else "")
        refuse(field, f"has {some} more than once; each answer has its own")
    batch.rids = given


def _rooms(batch: Batch, field: str, value: Any) -> None:
    """Give each answer its room, counting up."""
    first = whole(0, MAX_INT64 - batch.limits.answers)
    if isinstance(value, list | tuple):
        batch.check_length(field, value)
        starts = [first(one, f"{field}[{place}]", batch.limits) for place, one in enumerate(value)]
        count = batch.n
    else:
        starts = [first(value, field, batch.limits)]
        count = batch.answers
    rooms = [start + number for start in starts for number in range(count)]
    if len(set(rooms)) != len(rooms):
        refuse(field, f"gives {batch.answers} answers {len(set(rooms))} rooms; each needs one of its own")
    batch.rooms = rooms


def _constraint(target: str) -> Rule:
    """Return the rule of a text that constrains the output, and belongs into the sampling parameters."""

    def rule(batch: Batch, field: str, value: Any) -> None:
        known: set[str] = set()  # what is repeated is checked once

        def kind(value: object, path: str, limits: Limits) -> str:
            plain: str = _constraint_text(value, path, limits)
            if plain not in known and (fault := constraint_fault(target, plain, limits)):
                refuse(path, fault.partition(" ")[2])
            known.add(plain)
            return plain

        _for_each(optional(kind))(batch, field, value)
        batch.constraints[target] = batch.pop_column(field)

    return rule


def _no_stop_trim(batch: Batch, field: str, value: Any) -> None:
    """Read what is true if it is so here or in the sampling parameters."""
    _for_each(flag)(batch, field, value)
    batch.constraints[field] = batch.pop_column(field)


_media_of_one = _for_all(media)
_media_of_each = _for_each(media)


def _media(batch: Batch, field: str, value: Any) -> None:
    """Give each prompt its media. A list has one entry for each prompt only if the prompts are a list."""
    (_media_of_each if batch.listed else _media_of_one)(batch, field, value)


def _images(batch: Batch, field: str, value: Any) -> None:
    """Give each prompt its images, and say what they are."""
    _media(batch, field, value)
    if field in batch.each:
        batch.each["modalities"] = [_modality(images) for images in batch.each[field]]
    else:
        batch.same["modalities"] = _modality(batch.same[field])


def _modality(images: tuple[object, ...] | None) -> str | None:
    if images is None:
        return None
    return "image" if len(images) == 1 else "multi-images"


_words = _for_each(optional(one_of("image", "multi-images", "video")))


def _modalities(batch: Batch, field: str, value: Any) -> None:
    """Replace what was said of images; None leaves it."""
    derived = batch.pop_column(field)
    _words(batch, field, value)
    given = batch.pop_column(field)
    for place, word in enumerate(given):
        if word is not None and derived[place] is None:
            refuse(f"{field}[{place}]", f"is {word!r}, but there are no images")
    batch.each[field] = [word or of_images for word, of_images in zip(given, derived, strict=True)]


def _hashes(batch: Batch, field: str, value: Any) -> None:
    """Give each image its hash. A prompt's entry is a list, one for each image; or the one of one image."""
    if not isinstance(value, list | tuple):
        refuse(field, f"is {shown(value)}; it must be a list")
    entries: dict[str, Any] = {field: value}
    if batch.listed:
        batch.check_length(field, value)
        entries = {f"{field}[{place}]": entry for place, entry in enumerate(value)}
    images = batch.each.get("image_data") or [batch.same.get("image_data")] * batch.prompts
    column: list[tuple[object, ...] | None] = []
    for (path, entry), of_prompt in zip(entries.items(), images, strict=True):
        if entry is None:
            column.append(None)
            continue
        hashes = entry if isinstance(entry, list | tuple) else [entry]
        count = len(of_prompt or ())
        if len(hashes) != count:
            refuse(path, f"has {len(hashes)} hashes, but there are {count} images")
        column.append(tuple(hex_hash(one, path, batch.limits) for one in hashes) or None)
    batch.each[field] = column


def _logprob_ids(batch: Batch, field: str, value: Any) -> None:
    """Read token ids: one, a list for all, or a list of one list for each prompt."""
    if not isinstance(value, list | tuple):
        value = [value]
    if value and (value[0] is None or isinstance(value[0], list | tuple)):
        batch.check_length(field, value)
        batch.each[field] = [
            None if ids is None else _ids(batch, f"{field}[{place}]", ids) for place, ids in enumerate(value)
        ]
    else:
        batch.same[field] = _ids(batch, field, value)


def _ids(batch: Batch, path: str, value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple):
        refuse(path, f"is {shown(value)}; it must be a list of token ids")
    if fault := count_fault(len(value), batch.limits.token_ids_logprob):
        refuse(path, fault)
    ids = integers(value, path)
    if fault := ids_fault(ids, batch.vocab_size):
        raise InvalidInput(path + fault, param=path + fault.partition(" ")[0])
    if len(set(ids)) < len(ids):
        refuse(path, f"has {next(one for place, one in enumerate(ids) if one in ids[:place])} twice")
    return ids or None


def _session(batch: Batch, field: str, value: Any) -> None:
    """Read where to go on; what says nothing is as if it were not there."""
    session = typed(value, field, SessionParams)
    if session == SessionParams():
        return
    if session.id is None:
        refuse(f"{field}.id", "is missing; the others of session_params say nothing without it")
    for part, given in ((".id", session.id), (".rid", session.rid)):
        if given is not None and (fault := text_fault(given, batch.limits.rid_chars)):
            refuse(field + part, fault)
    batch.same[field] = session


_rank = whole(0, MAX_INT32)


def _former_rank(batch: Batch, field: str, value: Any) -> None:
    """Read the former name of a field, which may be given besides if it says the same."""
    rank = _rank(value, field, batch.limits)
    named = batch.same.setdefault("routed_dp_rank", rank)
    if named != rank:
        refuse(field, f"is {rank}, but routed_dp_rank, its newer name, is {named}; give one of them")


def _top_logprobs(value: object, path: str, limits: Limits) -> int:
    count: int = whole(0, limits.top_logprobs)(value, path, limits)
    return count


def _overrides(value: object, path: str, limits: Limits) -> PositionalEmbeds:
    del limits
    if not isinstance(value, PositionalEmbeds):
        refuse(path, f"is {shown(value)}; it must be PositionalEmbeds")
    return value


def _unused(batch: Batch, field: str, value: Any) -> None:
    """Accept what has no use here, if it could have been meant."""
    del batch
    if not isinstance(value, Mapping | SamplingParams):
        refuse(field, f"is {shown(value)}; it must be an object")


_flag = _for_all(flag)
_name = _for_each(optional(name))
_key = _for_each(key)
_priority = _for_each(optional(whole(-MAX_INT32 - 1, MAX_INT32)))

GENERATE: Final = MappingProxyType[str, Rule](
    {
        "rid": _rids,
        "text": _texts,
        "input_ids": _prompts(prompt_ids),
        "sampling_params": _read_first,
        "stream": _flag,
        "input_embeds": _prompts(prompt_embeds),
        "image_data": _images,
        "video_data": _media,
        "audio_data": _media,
        "mm_hashes": _hashes,
        "modalities": _modalities,
        "regex": _constraint("regex"),
        "json_schema": _constraint("json_schema"),
        "grammar": _constraint("ebnf"),
        "no_stop_trim": _no_stop_trim,
        "return_logprob": _for_each(flag),
        "logprob_start_len": _for_each(whole(-1, MAX_INT32)),
        "top_logprobs_num": _for_each(_top_logprobs),
        "token_ids_logprob": _logprob_ids,
        "return_text_in_logprobs": _flag,
        "log_metrics": _flag,
        "session_params": _session,
        "session_id": _for_all(name),
        "lora_path": _name,
        "custom_logit_processor": _name,
        "positional_embed_overrides": _for_each(optional(_overrides)),
        "bootstrap_host": _name,
        "bootstrap_port": _for_each(optional(whole(1, 65535))),
        "bootstrap_room": _rooms,
        "routed_dp_rank": _for_all(_rank),
        "data_parallel_rank": _former_rank,
        "routing_key": _for_all(name),
        "priority": _priority,
        "extra_key": _key,
        "cache_salt": _key,
        "background": _flag,
    }
)
"""The rule of each field of GenerateReqInput."""

EMBEDDING: Final = MappingProxyType[str, Rule](
    {
        "rid": _rids,
        "text": _texts_or_pairs,
        "input_ids": _prompts(prompt_ids),
        "image_data": _images,
        "video_data": _media,
        "audio_data": _media,
        "sampling_params": _unused,
        "is_cross_encoder_request": _flag,
        "modalities": _modalities,
        "log_metrics": _flag,
        "lora_path": _name,
        "positional_embed_overrides": _for_each(optional(_overrides)),
        "routing_key": _for_all(name),
        "priority": _priority,
        "dimensions": _for_all(whole(1, MAX_INT32)),
        "background": _flag,
    }
)
"""The rule of each field of EmbeddingReqInput."""


def in_order(cls: type[Struct], rules: Mapping[str, Rule]) -> tuple[tuple[str, object, Rule], ...]:
    """Return name, default and rule of each field, in the order of the class."""
    return tuple((field.name, field.default, rules[field.name]) for field in msgspec.structs.fields(cls))
