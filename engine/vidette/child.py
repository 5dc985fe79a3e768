"""`run_child`: the main module of an engine's children, when they have to know messages of a user's own.

Such a module is named by `open_engine(child="my_app.child")`, is started as `python -m my_app.child`, and is:

    from my_app.messages import CODEC, HANDLERS
    from vidette.child import run_child

    if __name__ == "__main__":
        run_child(codec=CODEC, handlers=HANDLERS)

Its name goes over the command line, from the process that owns the child; nothing on a link names a module.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from vidette._child import main
from vidette._custom import Handlers, check_codec, check_handlers
from vidette_protocol.codec import Codec


def run_child(*, codec: Codec, handlers: Handlers) -> NoReturn:
    """Run the role that the command line names, and exit with its status.

    Args:
        codec: the same as in the process that opens the engine; else they refuse each other and say why.
        handlers: who answers which kind of question, in the scheduler.

    Raises:
        UsageError: the codec lacks messages of ours, or a handler would never be asked.
    """
    check_codec(codec)
    check_handlers(handlers, codec)
    sys.exit(main(sys.argv[1:], codec=codec, handlers=handlers))
