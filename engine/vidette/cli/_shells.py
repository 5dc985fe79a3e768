"""Scripts that complete a command line, for bash, zsh and fish, made from what the parser knows."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from vidette.cli._parser import commands_of, metavar_of, options_of

Kind = Literal["none", "choices", "model", "file", "folder"]
"""What values an option or an argument has, as far as a shell can offer them."""


class Option(NamedTuple):
    """An option, or an argument, which has no flags.

    Args:
        flags: as they are written.
        text: what it is for.
        takes: what stands for its value; empty if it takes none.
        kind: of its values.
        choices: its values, if they are few.
    """

    flags: tuple[str, ...]
    text: str
    takes: str
    kind: Kind
    choices: tuple[str, ...]


class Command(NamedTuple):
    """A command.

    Args:
        path: its name, with those of the commands above it; empty for the program.
        text: what it is for.
        options: those with flags.
        places: those without.
        children: the commands below it.
    """

    path: tuple[str, ...]
    text: str
    options: tuple[Option, ...]
    places: tuple[Option, ...]
    children: tuple[Command, ...]

    @property
    def words(self) -> str:
        """What can be written next: options and commands."""
        flags = [flag for option in self.options for flag in option.flags]
        return " ".join([*(child.path[-1] for child in self.children), *flags])

    def all(self) -> Iterator[Command]:
        """Yield it, and all below it."""
        yield self
        for child in self.children:
            yield from child.all()


def describe(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), text: str = "") -> Command:
    """Return what a parser knows.

    Args:
        parser: of the program, or of a command.
        path: as in `Command`.
        text: as in `Command`.
    """
    options = [_option(action) for _, action in options_of(parser)]
    return Command(
        path,
        text,
        tuple(option for option in options if option.flags),
        tuple(option for option in options if not option.flags),
        tuple(describe(child, (*path, name), text) for name, text, child in commands_of(parser)),
    )


def _option(action: argparse.Action) -> Option:
    takes = metavar_of(action)
    kind: Kind = "none"
    if action.choices is not None:
        kind = "choices"
    elif action.dest == "model" or takes == "MODEL":
        kind = "model"
    elif takes in ("FILE", "PATH", "PNG"):
        kind = "file"
    elif takes == "DIR":
        kind = "folder"
    text = " ".join((action.help or "").split())
    return Option(tuple(action.option_strings), text, takes, kind, tuple(map(str, action.choices or ())))


# --- bash ---------------------------------------------------------------------------

_BASH = """\
# bash completion of vidette
_vidette() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} path= each words=
    # `--option=value` comes as three words.
    if [[ $word == = ]]; then word=
    elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$path $each" in
            {paths}) path="$path $each" ;;
        esac
    done
    COMPREPLY=()
    case "$path:$before" in
{values}
    esac
    if [[ $word != -* ]]; then
        case "$path" in
{places}
        esac
    fi
    case "$path" in
{words}
    esac
    mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -W "$words" -- "$word")
}}
_vidette_models() {{
    local each
    # Not `compgen -W`, which runs what is in a name; what is inserted is quoted.
    while IFS= read -r each; do
        [[ $each == "$1"* ]] && COMPREPLY+=("$each")
    done < <("${{COMP_WORDS[0]}}" completion models 2>/dev/null)
    mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -f -- "$1")
    (( ${{#COMPREPLY[@]}} )) && mapfile -t COMPREPLY < <(printf '%q\\n' "${{COMPREPLY[@]}}")
}}
_vidette_files() {{
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}}
complete -F _vidette vidette
"""


def bash(program: Command) -> str:
    """Return the script for bash."""
    values, places, words = [], [], []
    for command in program.all():
        path = _spaced(command)
        for option in command.options:
            if option.takes:
                cases = "|".join(shlex.quote(f"{path}:{flag}") for flag in option.flags)
                values.append(f"        {cases}) {_bash_values(option)}return ;;")
        told = (place for place in command.places if place.kind != "none")
        places += [f"            {shlex.quote(path)}) {_bash_values(place)}return ;;" for place in told]
        words.append(f"        {shlex.quote(path)}) words={shlex.quote(command.words)} ;;")
    return _BASH.format(
        paths="|".join(shlex.quote(_spaced(command)) for command in program.all() if command.path),
        values="\n".join(values),
        places="\n".join(places),
        words="\n".join(words),
    )


def _bash_values(option: Option) -> str:
    if option.kind == "choices":
        return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(option.choices))} -- "$word"); '
    if option.kind == "model":
        return '_vidette_models "$word"; '
    if option.kind == "none":
        return ""
    return f'_vidette_files {"-f" if option.kind == "file" else "-d"} "$word"; '


def _spaced(command: Command) -> str:
    return "".join(f" {name}" for name in command.path)


# --- zsh ----------------------------------------------------------------------------

_ZSH = """\
#compdef vidette
# zsh completion of vidette
_vidette_models() {{
    local -a names=(${{(f)"$(vidette completion models 2>/dev/null)"}})
    compadd -a names
    _files
}}
{functions}
if [[ $funcstack[1] == _vidette ]]; then
    _vidette "$@"
else
    compdef _vidette vidette
fi
"""


def zsh(program: Command) -> str:
    """Return the script for zsh."""
    return _ZSH.format(functions="\n".join(_zsh_function(command) for command in program.all()))


def _zsh_function(command: Command) -> str:
    specs = []
    for option in command.options:
        text = _zsh_text(option.text)
        value = f":{_zsh_text(option.takes)}:{_zsh_values(option)}" if option.takes else ""
        specs += [shlex.quote(f"{flag}[{text}]{value}") for flag in option.flags]
    specs += [shlex.quote(f":{_zsh_text(place.takes)}:{_zsh_values(place)}") for place in command.places]
    name = _zsh_name(command)
    if not command.children:
        return _zsh_body(name, [f"    _arguments {_continued(specs)}"])
    specs += ["'1: :->command'", "'*:: :->rest'"]
    commands = [shlex.quote(f"{child.path[-1]}:{_zsh_text(child.text)}") for child in command.children]
    cases = [f"            {child.path[-1]}) {_zsh_name(child)} ;;" for child in command.children]
    return _zsh_body(
        name,
        [
            "    local context state state_descr line",
            "    typeset -A opt_args",
            f"    _arguments -C {_continued(specs)}",
            "    case $state in",
            f"        command) local -a commands=({_continued(commands)}); _describe command commands ;;",
            "        rest) case $line[1] in",
            *cases,
            "        esac ;;",
            "    esac",
        ],
    )


def _zsh_body(name: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{name}() {{", *lines, "}"])


def _zsh_name(command: Command) -> str:
    return "_".join(["_vidette", *command.path]).replace("-", "_")


def _zsh_text(text: str) -> str:
    for sign in "\\[]:":
        text = text.replace(sign, f"\\{sign}")
    return text


def _zsh_values(option: Option) -> str:
    if option.kind == "choices":
        return f"({' '.join(option.choices)})"
    return {"model": "_vidette_models", "file": "_files", "folder": "_files -/", "none": " "}[option.kind]


def _continued(words: Sequence[str]) -> str:
    return " \\\n        ".join(["", *words]).lstrip(" ")


# --- fish ---------------------------------------------------------------------------

_FISH = """\
# fish completion of vidette
function __vidette_at
    set -l words (commandline -opc)
    set -l path ''
    for word in $words[2..-1]
        switch "$path $word"
            case {paths}
                set path "$path $word"
        end
    end
    test "$path" = "$argv[1]"
end
complete -c vidette -f
{rules}
"""


def fish(program: Command) -> str:
    """Return the script for fish."""
    rules = []
    for command in program.all():
        here = f"complete -c vidette -n {_fish_quote(f'__vidette_at {_fish_quote(_spaced(command))}')}"
        rules += [f"{here} -a {child.path[-1]} -d {_fish_quote(child.text)}" for child in command.children]
        for option in command.options:
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
            )
            value = f" -r {_fish_values(option)}" if option.takes else ""
            rules.append(f"{here} {flags}{value} -d {_fish_quote(option.text)}")
        rules += [f"{here} {_fish_values(place)}" for place in command.places if place.kind != "none"]
    paths = " ".join(_fish_quote(_spaced(command)) for command in program.all() if command.path)
    return _FISH.format(paths=paths, rules="\n".join(rules))


def _fish_values(option: Option) -> str:
    if option.kind == "choices":
        return f"-f -a {_fish_quote(' '.join(option.choices))}"
    if option.kind == "model":
        return "-F -a '(vidette completion models 2>/dev/null)'"
    if option.kind == "folder":
        return "-f -a '(__fish_complete_directories)'"
    return "-F" if option.kind == "file" else "-f"


def _fish_quote(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
