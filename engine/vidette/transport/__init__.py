"""How frames get from one process or thread to another; nothing here knows what a frame means.

- `framing`  pure: bytes to frames and frames to bytes
- `channel`  `Channel`, frames over a socket; the interface every channel has
- `memory`   the same over memory, between two tasks of one loop
- `mailbox`  `Mailbox`, objects from any thread to a loop, and `Bell`, which wakes a thread
- `link`     `Link`, messages over a channel, and the handshake that opens it
- `bulk`     how a link carries large arrays and tensors
- `arena`    memory for them that both processes share
- `sink`     how the compute thread sends by itself
- `capture`  what passed a link, in a file
- `shm_pointer`, `cuda_ipc`  tensors that a message only points at
- `spawn`    starting, guarding and watching child processes
"""
