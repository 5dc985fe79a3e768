"""`World`: fronts, schedulers and detokenizers, joined by FIFO links into one value that can be explored.

A world is the protocol of requests without any process: clients that come and go, the machines of every
role, and the messages in flight between them. `enabled()` lists what can happen next, `apply()` makes it
happen in a copy. The explorer walks all of it breadth first, the random walks go far; both drive the very
machines that the engine runs.

The world observes from outside what no machine can be asked: who heard what, whom a death concerns, which
blocks are held. `vidette_protocol.invariants` judges these observations.

What is left out, and why it may be: the contents of messages (the machines never look at them), and time
(every order of events is explored instead). Control calls and the credits of an arena share no table with
requests; they have worlds of their own in `vidette_protocol.worlds`.

Where to look:

- `whole`    `World`: all of it, and how things happen in it
- `replica`  one scheduler with its device and its KV pool, and its detokenizer
- `choices`  what can happen next
- `bounds`   how large a world is, and the values it is made of
- `telling`  what an action does, in a line
"""

from vidette_protocol.world.bounds import Action as Action
from vidette_protocol.world.bounds import Ask as Ask
from vidette_protocol.world.bounds import Bounds as Bounds
from vidette_protocol.world.bounds import Stream as Stream
from vidette_protocol.world.replica import Replica as Replica
from vidette_protocol.world.whole import Parts as Parts
from vidette_protocol.world.whole import World as World
