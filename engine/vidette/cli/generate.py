"""`vidette generate`: one prompt, its text on stdout as it comes."""

from __future__ import annotations

import argparse
import itertools
import sys
import time

import anyio
import msgspec

from vidette import EngineConfig, SamplingParams, Stream, __version__, open_engine
from vidette.cli._options import add_backend_option, add_engine_options, add_model_option, engine_options
from vidette.cli._parser import explain
from vidette.cli._run import run

SPIN_SECONDS = 0.1


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette generate`."""
    defaults = SamplingParams()
    parser.add_argument("prompt", metavar="PROMPT", help="the text to go on with")
    add_model_option(parser)
    parser.add_argument("--chat", action="store_true", help="take PROMPT as a user's message to a chat model")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object at the end, and no text before"
    )
    add_backend_option(parser)
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-new-tokens",
        type=int,
        default=defaults.max_new_tokens,
        metavar="TOKENS",
        help=f"most that are generated (default: {defaults.max_new_tokens})",
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=defaults.temperature,
        metavar="T",
        help="how random the text is; 0 is greedy (default: 1)",
    )
    group.add_argument(
        "--top-p",
        type=float,
        default=defaults.top_p,
        metavar="P",
        help="how probable those tokens are together that are sampled from (default: 1, all)",
    )
    group.add_argument(
        "--top-k",
        type=int,
        default=defaults.top_k,
        metavar="K",
        help="how many of the most probable tokens are sampled from (default: -1, all)",
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="the same gives the same text (default: a random one)"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on where the model would end")
    add_engine_options(parser, topology="inline")
    explain(
        parser,
        "vidette generate 'The capital of France is' --temperature 0",
        "vidette generate --chat 'What is a vidette?' --json",
    )


def generate(options: argparse.Namespace) -> int:
    """Generate from one prompt; return the exit status."""
    return run(lambda _: _generate(options), backend=options.backend)


async def _generate(options: argparse.Namespace) -> int:
    params = SamplingParams(
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        sampling_seed=options.seed,
        ignore_eos=options.ignore_eos,
    )
    async with anyio.create_task_group() as tasks:
        loading = anyio.CancelScope()
        if sys.stderr.isatty():
            tasks.start_soon(_spin, loading)
        async with open_engine(**engine_options(options)) as engine:
            loading.cancel()
            prompt = options.prompt
            if options.chat:
                prompt = await engine.render_chat([{"role": "user", "content": prompt}])
            started = time.monotonic()
            async with engine.generate(prompt, sampling_params=params) as stream:
                async for delta in stream:
                    if not options.json:
                        print(delta.text, end="", flush=True)
            print(_report(options, stream, time.monotonic() - started) if options.json else "", flush=True)
    return 0


def _report(options: argparse.Namespace, stream: Stream, seconds: float) -> str:
    done = stream.completion()
    report = {
        "command": "generate",
        "version": __version__,
        "model": options.model or EngineConfig().model,
        "text": done.text,
        "output_ids": done.token_ids,
        "finish_reason": done.finish_reason.type,
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "seconds": round(seconds, 6),
    }
    return msgspec.json.encode(report).decode()


async def _spin(until_cancelled: anyio.CancelScope) -> None:
    """Turn a spinner on stderr, and wipe it off at the end."""
    with until_cancelled:
        try:
            for sign in itertools.cycle("|/-\\"):
                sys.stderr.write(f"\rloading the model {sign}")
                sys.stderr.flush()
                await anyio.sleep(SPIN_SECONDS)
        finally:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
