"""The command `baton`. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted.

Commands import what they need when they run, so that mistakes on the command line are told at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from baton.cli import admin as admin_commands
from baton.cli import bench as bench_commands
from baton.cli import config as config_commands
from baton.cli import plan as plan_commands
from baton.cli import profile as profile_commands
from baton.cli import simulate as simulate_commands
from baton.cli.terminal import EXIT_INTERRUPTED, EXIT_USAGE, fail, told
from baton.core.errors import BatonError, InvalidArgument
from baton.runtime.config.model import Quantization as QuantizationWord

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors as plain lines, not in boxes
    help="Serve large language models with the prompt phase and the generation phase on separate machines.",
    # --max_tokens is --max-tokens, everywhere.
    context_settings={
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
    },
)

Endpoint = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The router; default: BATON_ENDPOINT, or the one running here."),
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens to make.")]
Temperature = Annotated[
    float, typer.Option(help="0: always the likeliest token; 1: as the model's probabilities are.")
]
TopP = Annotated[
    float | None, typer.Option(help="Choose among the likeliest tokens of this mass; default: all.")
]
Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same text; default: another each time.")
]
MAX_TIMEOUT_S = 1e7


def _timeout(value: float | None) -> float | None:
    if value is not None and not 0 < value <= MAX_TIMEOUT_S:  # false for NaN, too
        raise typer.BadParameter(f"must be greater than 0 and at most {MAX_TIMEOUT_S:g}")
    return value


Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", callback=_timeout, help="Seconds until the request is given up; default: never."
    ),
]


ConfigFile = Annotated[
    Path | None, typer.Option("--config", "--file", "-f", help="The deployment's YAML file.")
]
Dtype = Annotated[
    str | None, typer.Option(help="Weights that are not quantised, and KV: auto, float32, bfloat16, float16.")
]
Quantization = Annotated[
    str | None,
    typer.Option(help=f"Weights in few bits: {', '.join(get_args(QuantizationWord))}. auto: as stored."),
]
KvDtype = Annotated[
    str | None,
    typer.Option(help="Keys and values: auto (as --dtype), float32, bfloat16, float16, int8, fp8."),
]
PrefixCaching = Annotated[
    bool | None, typer.Option("--prefix-caching/--no-prefix-caching", help="Keep KV for reuse.")
]
Words = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="As for serve, one or several; default: auto.")
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting: section.key=value.")
]
AUTO = ("auto",)
LogLevel = Annotated[
    str | None, typer.Option(help="debug, info, warning or error; default: info, on a terminal warning.")
]


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(  # noqa: PLR0913 - a command has as many parameters as options
    model: Annotated[str | None, typer.Argument(help="A folder, a .gguf file, a hub name, or demo.")] = None,
    config: ConfigFile = None,
    prefill: Annotated[int | None, typer.Option(min=0, help="Prefill nodes.")] = None,
    decode: Annotated[int | None, typer.Option(min=0, help="Decode nodes.")] = None,
    both: Annotated[int | None, typer.Option(min=0, help="Nodes that do both.")] = None,
    host: Annotated[str | None, typer.Option(help="Address for clients.")] = None,
    port: Annotated[int | None, typer.Option(help="Port for clients; 0: the kernel chooses.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port for OpenAI's HTTP API; 0: likewise.")] = None,
    served_name: Annotated[str | None, typer.Option(help="Name that clients call the model by.")] = None,
    dtype: Dtype = None,
    quantization: Quantization = None,
    kv_dtype: KvDtype = None,
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of prompt and output.")] = None,
    kv_memory: Annotated[str | None, typer.Option(help="KV pool of each node, like 2GiB.")] = None,
    prefix_caching: PrefixCaching = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log level info.")] = False,
    log_level: LogLevel = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
    assignments: Assignments = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print addresses and pids as JSON once ready.")
    ] = False,
) -> None:
    """Start routers and nodes and keep them up. A flag wins over the environment, that over the file."""
    from baton.cli.settings import settings

    options = {
        "model": model,
        "prefill.count": prefill,
        "decode.count": decode,
        "both.count": both,
        "router.host": host,
        "router.port": port,
        "router.http.port": http_port,
        "served_name": served_name,
        "engine.dtype": dtype,
        "engine.quantization": quantization,
        "engine.kv_dtype": kv_dtype,
        "engine.max_model_len": max_model_len,
        "engine.kv_memory": kv_memory,
        "engine.prefix_caching": prefix_caching,
        "logging.level": log_level or ("info" if verbose else None),
        "logging.format": log_format,
    }
    found = settings(config, options, assignments or [])
    from baton.cli import serve as command

    command.serve(command.quiet_on_a_terminal(found), as_json=as_json)


@app.command()
def generate(  # noqa: PLR0913 - as above
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads standard input.")],
    chat: Annotated[bool, typer.Option("--chat", help="Ask it as a chat message.")] = False,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = None,
    seed: Seed = None,
    logprobs: Annotated[
        int | None, typer.Option(min=0, help="With --json: report so many likeliest tokens.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text.")] = None,
    timeout_s: Timeout = None,
    endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Continue a prompt; the text is printed as it is made. (The API's own default temperature is 1.)"""
    from baton.cli import generate as command
    from baton.cli.deployments import find_endpoint

    options = command.Options(max_tokens, temperature, top_p, seed, logprobs, tuple(stop or ()), timeout_s)
    text = _standard_input() if prompt == "-" else prompt
    command.generate(find_endpoint(endpoint), text, options, chat=chat, as_json=as_json)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"standard input is not UTF-8 text (byte {error.start})") from None


@app.command()
def chat(  # noqa: PLR0913 - as above
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = None,
    seed: Seed = None,
    timeout_s: Timeout = None,
    endpoint: Endpoint = None,
) -> None:
    """Talk to the model. Ctrl-C stops an answer, Ctrl-D ends the conversation."""
    from baton.cli import chat as command
    from baton.cli.deployments import find_endpoint
    from baton.cli.generate import Options

    options = Options(max_tokens, temperature, top_p, seed, timeout_s=timeout_s)
    command.chat(find_endpoint(endpoint), options, system)


@app.command()
def demo(
    prompt: Annotated[str | None, typer.Argument(help="What to ask.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to make.")] = 96,
    model: Annotated[str, typer.Option(help="A folder, a .gguf file, a hub name, or demo.")] = "demo",
    quantization: Quantization = None,
    kv_dtype: KvDtype = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the processes' logs.")] = False,
) -> None:
    """Serve a small model with prefill and decode apart, ask it something, show where the time went."""
    from baton.cli import demo as command
    from baton.runtime.config import load_config

    if prompt is not None and not prompt.strip():
        raise InvalidArgument("the prompt is empty")
    options = {
        "model": model,
        "engine.quantization": quantization,
        "engine.kv_dtype": kv_dtype,
        "logging.level": "info" if verbose else "warning",
        "supervise.restart": False,
    }
    flags = {key: value for key, value in options.items() if value is not None}
    command.demo(load_config(flags=flags), prompt or command.PROMPT, max_tokens)


@app.command("eval")
def evaluate(  # noqa: PLR0913 - as above
    model: Annotated[str, typer.Argument(help="A folder, a .gguf file, a hub name, or demo.")] = "demo",
    text: Annotated[Path | None, typer.Option(help="A text file; default: a novel of 37,000 tokens.")] = None,
    quantization: Words = None,
    kv_dtype: Words = None,
    dtype: Words = None,
    backend: Annotated[str, typer.Option(help="auto, native, torch or triton.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda:0, ...")] = "cpu",
    threads: Annotated[int, typer.Option(min=0, help="For computing; 0: as many as there are cores.")] = 0,
    tokens: Annotated[int, typer.Option(min=2, help="Of the text, from its start.")] = 20_480,
    window: Annotated[int, typer.Option(help="Tokens that the model sees at once.")] = 1024,
    stride: Annotated[
        int | None, typer.Option(help="From one window's start to the next one's; default: half a window.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array, not a table.")] = False,
) -> None:
    """Measure perplexity on a text, and how formats of weights and KV change it.

    All combinations of --quantization, --kv-dtype and --dtype are measured; each may be given several times,
    or several words with commas between. The first combination is what the others are compared with.
    """
    from baton.cli import eval as command
    from baton.engine.config import EngineConfig
    from baton.engine.eval.perplexity import Windows

    base = EngineConfig(model, backend=backend, device=device, threads=threads)
    engines = command.combinations(base, dtype or AUTO, quantization or AUTO, kv_dtype or AUTO)
    windows = Windows(window, window // 2 if stride is None else stride)
    command.evaluate(engines, command.Sample(text, tokens, windows), as_json=as_json)


@app.command()
def version() -> None:
    """Print the version."""
    from baton import __version__

    print(__version__)


app.command("bench")(bench_commands.bench)
app.command("profile")(profile_commands.profile)
app.command("simulate")(simulate_commands.simulate)
app.command("plan")(plan_commands.plan)
app.add_typer(config_commands.app, name="config")
app.add_typer(admin_commands.app, name="admin")


def main() -> None:
    """Entry point of the command."""
    # gRPC's own notes (a peer went away, ...) say nothing that the errors do not.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app()
    except InvalidArgument as error:
        fail(told(error), EXIT_USAGE)
    except BatonError as error:
        fail(told(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
