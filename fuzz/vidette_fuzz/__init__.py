"""Fuzzers and model checkers of the protocol; they drive the machines that the engine runs.

Where to look:

- `explore`     every world up to a bound, breadth first: the shortest story that breaks a rule
- `machines`    worlds far beyond those bounds, at random: `LifecycleMachine`, a Hypothesis state machine
- `mutants`     machines with a known fault each; whatever checks the protocol has to catch them all
- `stories`     a run of the protocol, told line by line
- `strategies`  Hypothesis strategies for every message, and for frames that were tampered with
- `frames`      bytes against the codec: a message or a `DecodeError`, never anything else
- `samples`     hand-written messages of each kind, by name; what travels on which link
- `samples_requests`  those of requests and their media
- `samples_steps`     those of what a step says, and of what routers are told
- `samples_control`   those of links, of control messages and of their answers

`explore`, `mutants` and `stories` need nothing beyond the protocol; `frames` and the samples need NumPy as
well; `machines` and `strategies` need Hypothesis (`pip install vidette[fuzz]`).
"""
