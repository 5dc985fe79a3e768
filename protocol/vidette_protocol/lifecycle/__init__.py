"""The life of a request: one pure machine per role.

Theory of operation
-------------------
A request is one *vid*. Three processes hold state for it, and three links join them in a ring:

    front --request, abort--> scheduler --rows--> detokenizer --rows--> front

Each role has one machine here. A machine is values in, values out: no clock, no randomness, no I/O, no
`async`, no logging. Its state changes in one synchronous call that returns what to do; the shell around it
(a process, a simulation, a test) does it afterwards. So a cancellation between the two loses nothing.

More machines stand beside these: `CallMachine`, for control calls and their answers; `LinkMachine`, for what
may come when at one end of a link; `CreditMachine` and `BorrowMachine`, for who holds which extent of an
arena (`Extents` says which stretches of it are free); `PendingDelta`, for what a slow caller has not taken.

What fits in a table is in the table at the top of each file; what does not is code below it.

A request ends by one *ending row*, made by the scheduler, which travels the rest of the ring in-band. The
order of the links proves that nothing of that vid is behind it. An abort is answered the same way, so
`end is not None` is the one and only rule for letting go: the scheduler frees the blocks of a vid when it
makes its ending row, the detokenizer drops its state when it passes it on, the front closes the vid when it
arrives. There is no second path by which anything is freed.

Illegal input is loud and sided: `LocalProtocolError` when this side did it, `RemoteProtocolError` when the
other side did. Any other exception is a bug of the machine.
"""

from vidette_protocol.lifecycle.control import CallId as CallId
from vidette_protocol.lifecycle.control import CallMachine as CallMachine
from vidette_protocol.lifecycle.control import CallState as CallState
from vidette_protocol.lifecycle.credits import BorrowMachine as BorrowMachine
from vidette_protocol.lifecycle.credits import BorrowState as BorrowState
from vidette_protocol.lifecycle.credits import CreditMachine as CreditMachine
from vidette_protocol.lifecycle.credits import CreditState as CreditState
from vidette_protocol.lifecycle.credits import Extent as Extent
from vidette_protocol.lifecycle.detokenizer import DetokenizerMachine as DetokenizerMachine
from vidette_protocol.lifecycle.front import AbortedAll as AbortedAll
from vidette_protocol.lifecycle.front import FrontMachine as FrontMachine
from vidette_protocol.lifecycle.front import FrontState as FrontState
from vidette_protocol.lifecycle.front import How as How
from vidette_protocol.lifecycle.front import Move as Move
from vidette_protocol.lifecycle.front import Replaced as Replaced
from vidette_protocol.lifecycle.link import LinkEvent as LinkEvent
from vidette_protocol.lifecycle.link import LinkMachine as LinkMachine
from vidette_protocol.lifecycle.link import LinkState as LinkState
from vidette_protocol.lifecycle.pending import PendingDelta as PendingDelta
from vidette_protocol.lifecycle.rows import End as End
from vidette_protocol.lifecycle.rows import Row as Row
from vidette_protocol.lifecycle.rows import end_of as end_of
from vidette_protocol.lifecycle.rows import unheard as unheard
from vidette_protocol.lifecycle.scheduler import SchedulerMachine as SchedulerMachine
from vidette_protocol.lifecycle.scheduler import SchedulerState as SchedulerState
