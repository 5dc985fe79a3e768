"""The parts of the simulation; `vidette_fuzz.simulate` runs it.

- `adversary`    decides when what happens; links in its hands
- `clients`      who asks, leaves, and checks what comes
- `engine`       one engine from its start to its end
- `journal`      what happened, and what was wrong with it
- `mutants`      seeded bugs of the engine's code, each of which has to be found
- `observed`     the engine's parts, whose machines tell what they are asked
- `refinement`   the world that is walked along with the engine
- `steps`        drives the step loop, as the compute thread does
- `undisturbed`  what a request is answered if nobody disturbs it
"""
