"""Normalisation: what a caller asks for becomes items, one for each answer; pure functions.

- `requests`  the functions: a request in, items out
- `batch`     a request on its way: how many answers there are, and what each has
- `rules`     one rule for each field, in two tables

A request has B prompts and asks for `n` answers to each. Its items are *prompt-major*: item k belongs to
prompt k // n.

- A single value holds for all answers. A list has B values, one for each prompt, and a prompt's value goes to
  all of its answers. None is the default of every field.
- No two items share anything that can be changed: lists become tuples, and sampling parameters are copied.
  Media and PositionalEmbeds are passed on as they are, and nobody changes them.
- The answer is single if the prompt is no list and `n` is 1; else it is a list.

Where SGLang does otherwise:

- It takes `text` and `input_ids` together and uses the ids; here just one kind of prompt is given.
- It checks the length of few lists, and refuses some if `n` > 1; here all are checked, and all accepted.
- It makes new rids for a list of them with `n` > 1; here the answers to a prompt are `rid_0`, `rid_1`, ...
- It lets all answers to a prompt have one seed, and so one text; here the seeds are s, s + 1, ...
- It repeats a list of rooms for `n` > 1; here each counts up, and no two answers may have the same.
- It reads nested lists by their first entry; here each entry of `image_data` is read by itself.
- It accepts what is empty, such as no prompts or an empty stop; here it is refused if it could mean anything.
"""

from vidette_protocol.normalise.batch import Normalised as Normalised
from vidette_protocol.normalise.requests import by_prompt as by_prompt
from vidette_protocol.normalise.requests import normalise_embedding as normalise_embedding
from vidette_protocol.normalise.requests import normalise_generate as normalise_generate
from vidette_protocol.normalise.requests import regenerate_rid as regenerate_rid
