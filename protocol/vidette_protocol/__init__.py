"""The protocol of Vidette, usable without the engine: standard library and msgspec only, and no I/O.

Where to look:

- `ids`         rid and vid
- `messages`    every message, one module per theme
- `codec`       messages to bytes and back, one closed union per link
- `schema`      what two sides must have in common to understand each other
- `bodies`      JSON objects from outside, taken for our structs
- `plain`       messages as values that JSON has
- `pydantic`    our structs as bodies of a FastAPI app; the one module that needs pydantic
- `ext`         arrays, tensors and pointers to them inside messages
- `lifecycle`   the life of a request: one pure machine for each of front, scheduler, detokenizer; and those
                beside them, of control calls, links, and an arena's credits
- `exploring`   what can be explored: a whole protocol as one value
- `world`       fronts, schedulers and detokenizers, joined by links into such a value
- `small_worlds` worlds of one part each: control calls, handshakes, an arena, a ring of bounded links
- `invariants`  what must hold in every world
- `trace`       judges what passed the links of an engine, after the fact
- `normalise`   a request as items, one for each answer
- `patterns`    regular expressions, searched for in a text as it comes
- `values`      what one value may be, and how a message about it is worded
- `limits`      every bound with its default
- `errors`      what is raised, and whose fault it is
"""

from vidette_protocol.bodies import Base64Bytes as Base64Bytes
from vidette_protocol.bodies import BodyError as BodyError
from vidette_protocol.bodies import BodyType as BodyType
from vidette_protocol.codec import Codec as Codec
from vidette_protocol.codec import front_codec as front_codec
from vidette_protocol.codec import hook_custom_types as hook_custom_types
from vidette_protocol.errors import DecodeError as DecodeError
from vidette_protocol.errors import DuplicateRid as DuplicateRid
from vidette_protocol.errors import InvalidInput as InvalidInput
from vidette_protocol.errors import LocalProtocolError as LocalProtocolError
from vidette_protocol.errors import ProtocolError as ProtocolError
from vidette_protocol.errors import RemoteProtocolError as RemoteProtocolError
from vidette_protocol.ids import Rid as Rid
from vidette_protocol.ids import Vid as Vid
from vidette_protocol.limits import Limits as Limits
from vidette_protocol.normalise import Normalised as Normalised
from vidette_protocol.normalise import by_prompt as by_prompt
from vidette_protocol.normalise import normalise_embedding as normalise_embedding
from vidette_protocol.normalise import normalise_generate as normalise_generate
from vidette_protocol.normalise import regenerate_rid as regenerate_rid
from vidette_protocol.plain import msgspec_to_builtins as msgspec_to_builtins
