"""The protocol of Vidette, usable without the engine: standard library and msgspec only, and no I/O.

Where to look:

- `ids`         rid and vid
- `messages`    every message, one module per theme
- `codec`       messages to bytes and back, one closed union per link
- `ext`         arrays, tensors and pointers to them inside messages
- `lifecycle`   the life of a request: one pure machine for each of front, scheduler, detokenizer; and those
                beside them, of control calls, links, and an arena's credits
- `exploring`   what can be explored: a whole protocol as one value
- `world`       fronts, schedulers and detokenizers, joined by links into such a value
- `small_worlds` worlds of one part each: control calls, handshakes, an arena, a ring of bounded links
- `invariants`  what must hold in every world
- `limits`      every bound with its default
- `errors`      what is raised, and whose fault it is
"""

from vidette_protocol.codec import Codec as Codec
from vidette_protocol.codec import fingerprint as fingerprint
from vidette_protocol.errors import DecodeError as DecodeError
from vidette_protocol.errors import DuplicateRid as DuplicateRid
from vidette_protocol.errors import LocalProtocolError as LocalProtocolError
from vidette_protocol.errors import ProtocolError as ProtocolError
from vidette_protocol.errors import RemoteProtocolError as RemoteProtocolError
from vidette_protocol.ids import Rid as Rid
from vidette_protocol.ids import Vid as Vid
from vidette_protocol.limits import Limits as Limits
