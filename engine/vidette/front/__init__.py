"""The front: where requests are admitted, tokenised and routed, and where their scopes end.

- `manager`    TokenizerManager: the front's machine, the routes to callers, the links to the ring
- `stream`     what a caller holds: one merged delta and the pieces already taken
- `logprobs`   log probabilities of a request, packed until somebody looks
- `route`      a request that was sent, its stream, and how it is sent again
- `pulse`      whether the ring turns, told by what comes round it
- `shards`     what the detokenizers have said, each of its share of the requests
- `questions`  what was asked of the ring and waits for its answer
- `calls`      heartbeats, collections of garbage and control messages, for callers
- `sessions`   opening and closing sessions, for callers
- `observer`   how long requests take, in histograms
- `kv_events`  what the prefix cache holds, for whoever routes
- `drain`      whether anything new is taken, and what is told to whom it could not wait for
- `living`     what lives now, request by request, for people
- `aborts`     ends requests from outside, one by its name or all
- `offload`    blocking calls in threads, a few at a time
- `prompts`    texts to token ids, conversations to texts, in time
- `admission`  whether one request more may live
- `totals`     what has become of requests, counted
- `checks`     what makes a request acceptable, as pure functions
- `support`    which fields are not supported yet
"""
