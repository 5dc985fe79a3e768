"""The `vidette` command.

- `main`       the parser; the one place where errors become sentences and exit statuses
- `serve`, `generate`, `chat`, `top`   the subcommands that use a model
- `pull`, `doctor`, `demo`, `completion`   those for who gets ready to
- `build_kernels`, `bench`, `fuzz`, `wire`   those for who works on the engine
- `bench_load`   the one of `bench` that puts a server under load
- `bench_http`   those of `bench` that are about servers: what HTTP costs, and clients that leave
- `bench_model`  those of `bench` that are about a model: its steps, and its predictions
- `_parser`    what reads a command line, and how it explains itself
- `_shells`    the scripts that `completion` prints
- `_client`    a client of a service: where it is, its key, its refusals
- `_top_view`  what `top` shows, and `_screen`, where it draws that
- `_talkers`   who answers in `chat`: an engine, or a service
- `_findings`  what `doctor` looks at
- `_front_door` options that say who may use the service, and what is logged of it
- `_telemetry` where spans of requests go
- `_options`   options that several of them have
- `_run`       an async program that a signal ends in order

Importing this package imports neither torch nor a web server: `vidette --help` is quick.
"""

from vidette.cli.main import main as main
