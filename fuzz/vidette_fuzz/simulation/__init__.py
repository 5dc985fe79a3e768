"""The parts of the simulation; `vidette_fuzz.simulate` runs it.

- `adversary`    decides when what happens; links in its hands
- `clients`      who asks, leaves, and checks what comes
- `conversations` what a client does with a session
- `engine`       one engine from its start to its end
- `guesses`      drafts that are right as often as an adversary pleases
- `journal`      what happened, and what was wrong with it
- `mutants`      seeded bugs of the engine's code, each of which has to be found
- `observed`     the engine's parts, whose machines tell what they are asked
- `refinement`   the world that is walked along with the engine
- `steps`        drives the step loop, as the compute thread does
- `undisturbed`  what a request is answered if nobody disturbs it
"""
