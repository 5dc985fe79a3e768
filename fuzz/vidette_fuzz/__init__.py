"""Fuzzers and model checkers of the protocol; they drive the machines that the engine runs.

Where to look:

- `explore`     every world up to a bound, breadth first: the shortest story that breaks a rule
- `configurations`  what is explored: a world for each part of the protocol, in three sizes
- `workers`     all of them at once, each in a process of its own, within one budget
- `walks`       worlds far beyond those bounds, at random, by Hypothesis
- `machines`    the same for requests, with a rule for each kind of action: `LifecycleMachine`
- `mutant`      what a mutant is: a machine with a known fault
- `mutants`     all of them; whatever checks the protocol has to catch every one
- `front_mutants`   faults of fronts and callers
- `back_mutants`    faults of schedulers and detokenizers
- `loop_mutants`    faults of the step loop, its prefix cache, its drafts and its sessions
- `overlap_mutants`  faults of the step loop where a device computes meanwhile
- `call_mutants`    faults of control calls and handshakes
- `credit_mutants`  faults of arenas and of bounded links
- `simulate`    the engine's own code on a clock that jumps, against an adversary
- `simulation`  the parts of that: links, clients, the world that is walked along
- `overlapping` a model that computes as a device does, while the host goes on
- `stories`     a run of the protocol, told line by line
- `tables`      the generated parts of the page about all this
- `strategies`  Hypothesis strategies for every message, and for frames that were tampered with
- `frames`      bytes against the codec: a message or a `DecodeError`, never anything else
- `samples`     hand-written messages of each kind, by name; what travels on which link
- `samples_requests`  those of requests and their media
- `samples_steps`     those of what a step says, and of what routers are told
- `samples_control`   those of links, of control messages and of their answers

Most of it needs nothing beyond the protocol; `frames` and the samples need NumPy as well, the worlds of
`stepping` and the mutants an engine, and `walks`, `machines`, `simulate` and `strategies` need Hypothesis
(`pip install vidette[fuzz]`).
"""
