"""Tab completion of a sweep's settings and config groups: Hydra's, made to live beside that of our own options."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from distprof.experiment.sweep.overrides import is_override

FLAGS = ("--shell-completion", "-sc")
_SHELLS = ("bash", "zsh")
# For all but `distprof sweep` what was there before is asked, such as what `distprof completion` prints.
_SCRIPT = r"""_distprof_before=$(complete -p distprof 2>/dev/null | sed -n 's/.* -F \([^ ]*\) .*/\1/p')
_distprof_sweep()
{
    local line=${COMP_LINE:0:$COMP_POINT}
    local words=($line) word=${line##* }
    if [[ ${words[1]} == sweep && $line == *sweep\ * && $word != -* ]]; then
        COMPREPLY=($(compgen -o default -W "$(COMP_LINE=$line distprof sweep -sc query=bash 2>/dev/null)" -- "$word"))
    elif [[ -n $_distprof_before && $_distprof_before != _distprof_sweep ]]; then
        "$_distprof_before" "$@"
    fi
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _distprof_sweep distprof"""
_END = "complete -r distprof; unset -f _distprof_sweep; unset _distprof_before"


def is_asked(arguments: Sequence[str]) -> bool:
    """Whether a command line is about completion."""
    return any(word.partition("=")[0] in FLAGS for word in arguments)


def main(arguments: Sequence[str], hydra: Callable[[list[str]], None]) -> int:
    """Print what installs or removes it, or complete a line that the shell gives; `hydra` runs Hydra on words."""
    asked = dict(word.split("=", 1) for word in arguments if "=" in word and not word.startswith("-"))
    for what, script in (("install", _SCRIPT), ("uninstall", _END)):
        if what in asked:
            if asked[what] not in _SHELLS:
                print(f"distprof sweep: error: completion is there for {' and '.join(_SHELLS)}", file=sys.stderr)
                return 2
            print(
                "autoload -Uz bashcompinit && bashcompinit" if asked[what] == "zsh" and what == "install" else "",
                end="",
            )
            print(f"\n{script}" if asked[what] == "zsh" else script)
            return 0
    # Hydra takes the first word for the program and all others for overrides: it is shown those, and the last word.
    line = os.environ.get("COMP_LINE", "")
    words = line.split()
    last = "" if line.endswith(" ") or not words else words.pop()
    os.environ["COMP_LINE"] = " ".join(["distprof", *filter(is_override, words), last])
    hydra(list(arguments))
    return 0
