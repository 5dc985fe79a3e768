"""The scheduler: which request computes when, and with which memory.

- `blocks`   pure: who holds which blocks of the KV pool
- `policy`   pure: what the next step computes
- `sampler`  logits to tokens, over all rows at once
- `deadlines`  pure: which requests have to end when
- `support`  which fields of a request are honoured
- `loop`     `StepLoop.step(commands, now) -> effects`: machine, blocks and batch have this one owner
- `build`    from a configuration to a step loop: loads the model
- `compute`  the thread that drives the loop and sends what it makes
- `handlers` questions of a user's own, each answered in a task
- `process`  the AnyIO shell: link to the front, one lifetime task per request
"""
