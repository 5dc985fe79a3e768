"""A request in, items out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from vidette_protocol.errors import InvalidInput
from vidette_protocol.limits import Limits
from vidette_protocol.messages.inputs import (
    EmbeddingItem,
    EmbeddingReqInput,
    GenerateItem,
    GenerateReqInput,
)
from vidette_protocol.normalise.batch import Batch, Normalised
from vidette_protocol.normalise.rules import EMBEDDING, GENERATE, in_order
from vidette_protocol.values import refuse

T = TypeVar("T")
R = TypeVar("R", GenerateReqInput, EmbeddingReqInput)

_GENERATE = in_order(GenerateReqInput, GENERATE)
_EMBEDDING = in_order(EmbeddingReqInput, EMBEDDING)


def normalise_generate(
    request: GenerateReqInput,
    *,
    new_rid: Callable[[], str],
    limits: Limits = Limits(),  # noqa: B008  immutable
    vocab_size: int | None = None,
) -> Normalised[GenerateItem]:
    """Return a request as items, checked in all that needs no tokenizer.

    Args:
        request: as it came; whoever builds one in Python may have put anything into it. A dict may stand for
            SamplingParams and SessionParams.
        new_rid: makes a rid that nobody else has.
        limits: bounds on what may be asked for, held before anything proportional is built.
        vocab_size: token ids are below it; None: it is not known here. Those of prompts are not looked at.

    Raises:
        InvalidInput: it cannot be honoured; with the field and the value at fault.
    """
    prompts, listed = _count_prompts(
        (
            ("text", request.text, isinstance(request.text, list | tuple)),
            ("input_ids", request.input_ids, _holds_lists(request.input_ids)),
            ("input_embeds", request.input_embeds, _holds_matrices(request.input_embeds)),
        ),
        limits,
    )
    batch = Batch(prompts, listed, limits, vocab_size)
    batch.take_sampling(request.sampling_params)
    batch.take(msgspec.structs.astuple(request), _GENERATE)
    return batch.finish(GenerateItem, new_rid, batch.settle_sampling())


def normalise_embedding(
    request: EmbeddingReqInput,
    *,
    new_rid: Callable[[], str],
    limits: Limits = Limits(),  # noqa: B008  immutable
) -> Normalised[EmbeddingItem]:
    """Return a request to embed or score as items; as `normalise_generate`, with one answer to each prompt.

    A request of media alone is one: all of them together make one embedding.
    """
    pairs = request.is_cross_encoder_request is True
    alone = request.text is None and request.input_ids is None
    if pairs and request.input_ids is not None:
        refuse("input_ids", "cannot be given for a cross-encoder; give text, a pair or a list of pairs")
    prompts, listed = 1, False
    if not alone:
        texts = _holds_lists(request.text) if pairs else isinstance(request.text, list | tuple)
        prompts, listed = _count_prompts(
            (
                ("text", request.text, texts),
                ("input_ids", request.input_ids, _holds_lists(request.input_ids)),
            ),
            limits,
        )
    batch = Batch(prompts, listed, limits, pairs=pairs)
    batch.take(msgspec.structs.astuple(request), _EMBEDDING)
    media = any(batch.same.get(field) for field in ("image_data", "video_data", "audio_data"))
    if alone and (pairs or not media):
        raise InvalidInput("nothing is given of text, input_ids and media; give one of them", param="text")
    return batch.finish(EmbeddingItem, new_rid)


def regenerate_rid(request: R, new_rid: Callable[[], str]) -> R:
    """Return a request under new rids: as many as it has, and one if it has none."""
    given = request.rid
    new = [new_rid() for _ in given] if isinstance(given, list | tuple) else new_rid()
    return msgspec.structs.replace(request, rid=new)


def by_prompt(outputs: Sequence[T], n: int) -> list[list[T]]:
    """Return what came of items as a list for each prompt, of its `n` answers.

    Raises:
        ValueError: the outputs are not n for each prompt.
    """
    if n < 1 or len(outputs) % n:
        raise ValueError(f"{len(outputs)} outputs are not {n} for each prompt")
    return [list(outputs[first : first + n]) for first in range(0, len(outputs), n)]


def _count_prompts(fields: tuple[tuple[str, Any, bool], ...], limits: Limits) -> tuple[int, bool]:
    """Return how many prompts there are, and whether they came as a list.

    Args:
        fields: of each kind of prompt its field, its value, and whether that is a list of prompts.
        limits: bounds on their number.
    """
    given = [each for each in fields if each[1] is not None]
    if len(given) != 1:
        names = [each[0] for each in fields]
        what = f"{given[0][0]} and {given[1][0]} are both given" if given else "no prompt is given"
        raise InvalidInput(
            f"{what}; give just one of {', '.join(names[:-1])} and {names[-1]}",
            param=given[0][0] if given else names[0],
        )
    ((field, value, listed),) = given
    if not listed:
        return 1, False
    if not value:
        refuse(field, "is an empty list; give at least one prompt")
    if len(value) > limits.answers:
        refuse(field, f"has {len(value)} prompts; at most {limits.answers} are accepted")
    return len(value), True


def _holds_lists(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], list | tuple)


def _holds_matrices(value: Any) -> bool:
    return _holds_lists(value) and _holds_lists(value[0])
