"""A world whose scheduler is the engine's own step loop, blocks, prefix cache, drafts and sessions included.

`vidette_protocol.world` has one token a row and nothing to compute it from. Here the front, the links and the
detokenizer are as there, and each action of the scheduler is one of `StepLoop`'s. Only two parts are the
world's: what a step takes along, and what the model says, so that every choice of both is explored. A batch
is launched and lands in one action, since it does so in the loop: commands are applied between batches. But
where the model overlaps, a batch lands by an action of its own, and all else goes on meanwhile.

- `bounds`  how large it is
- `cloning` copies of what an engine holds
- `loop`    the step loop, driven by choices; what it computes is watched block by block
- `overlapped`  the world of a loop whose model computes as a device does, while all else goes on
- `pool`    who holds which block, and what was computed into it
- `turns`   a session as a list of turns, to compare the real one with
- `world`   all of it together
"""
