"""Small worlds: one part of the protocol each, as a value that can be explored.

Each drives the very machines that the engine runs, and observes from outside what no machine can be asked.

- `model`      what they have in common
- `calls`      control calls: fronts, replicas that answer and die, callers that leave
- `handshake`  the two ends of a link, which may close at any moment
- `credits`    an arena: messages that take extents, views that die in any order, ends that die
- `ring`       bounded links in a ring, and callers who are slow
"""
