"""Benchmarks: what the `vidette bench` commands measure. Only they import this, inside the command.

Every number comes with an honest baseline, measured in the same run, in turns with ours.

- `wire`        the codec and how messages and tensors get to another process
- `interleave`  timing in turns
- `results`     what is found, by name
- `samples`     a request and a step in our form
- `documented`  the same in the form of our source documents
- `baselines`   pickle, and the documented form under msgspec: the codecs to beat
- `codecs`      codecs compared, in one process
- `messages`    what only the benchmark sends
- `peer`, `_peer`  the process at the other side
- `zeromq`      ZeroMQ as others use it
- `trips`       messages there and back, and many of them one way
- `handover`    a tensor for another process
- `idle`        CPU time of an engine that has nothing to do
- `scheduler`   what a step costs beside the model
- `overhead`    what processes and HTTP cost beside it
- `served`, `_bare`  servers as processes: ours, and the least there can be
- `abort`       how soon what a client leaves behind is free
- `prefix`      what a shared prefix saves
- `serve`       a server under load, seen by its clients
- `load`        when requests are sent
- `client`      the client that sends them
- `prompts`     what they ask
- `latency`     the definitions of what is measured of answers
- `model`       steps of a model, against the floor and against llama.cpp
- `steps`       what these steps are
- `looped`      the same through the scheduler's loop
- `bandwidth`   how fast memory is read
- `others`      what other programs took of the machine meanwhile
- `llama_cpp`   llama.cpp's own benchmark
- `profile`     where the time of a step goes, as a table and a picture
- `quality`     predictions against those of float32
- `plot`        latency against load, as a picture
"""
