"""The front: where requests are admitted, tokenised and routed, and where their scopes end.

- `manager`    TokenizerManager: the front's machine, the routes to callers, the links to the ring
- `stream`     what a caller holds: one merged delta and the pieces already taken
- `route`      a request that was sent, its stream, and how it is sent again
- `questions`  what was asked of the ring and waits for its answer
- `offload`    blocking calls in threads, a few at a time
- `totals`     what has become of requests, counted
- `checks`     what makes a request acceptable, as pure functions
- `support`    which fields are not supported yet
"""
