"""`weir submit PROGRAM --tfjob FILE`: what is said on the command line beside a TFJob, and what its
reader is told.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from services.cli.parsing import apart
from services.cli.request_file import Fields
from services.cli.text_file import text_in
from services.cli.tfjob import WISHES, Asked, manifest, translated
from services.cli.trouble import WRONG_USE, Trouble
from shared.text import single_line

ABOUT = """\
Taken are a TFJob's name, namespace, replicas (the start; 1 is the least),
resources, image, claims and grace. Its command is not run: the program has
model(), dataset() and so on. What no TFJob says is given here, or annotated
in it (weir.dev/epochs: "10"). What Weir has nothing like is named, and
nothing is asked for until that is gone or left out."""
NO_PROGRAM = """program: a TFJob's command is not run. Weir trains a Python file with model(), optimizer(), loss(),
    examples() and dataset() (README, Write a training program): weir submit PROGRAM --tfjob {file}"""
WAY_OUT = "Do what each line says, or leave all of it out with --leave-out."
NUMBERS = {
    "epochs": "how often every example is trained on",
    "batch": "examples of one update, by one worker",
    "max-ps": "how far ps may grow (default: PS' replicas)",
    "max-workers": "how far workers may grow (default: Worker's replicas)",
    "priority": "the larger, the earlier (default: 0)",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    said = "ask for what a Kubeflow TFJob asks for, with the program FILE"
    parser.add_argument("--tfjob", type=Path, metavar="FILE", help=said)
    said = "what of it is taken, and its own options"
    own = apart(parser, "tfjob", "beside --tfjob FILE", ABOUT, said)
    for name, said in NUMBERS.items():
        own.add_argument(f"--{name}", type=int, metavar="N", help=said)
    own.add_argument("--policy", metavar="NAME", help="how the job grows (default: the cluster's)")
    own.add_argument("--image", metavar="IMAGE", help="instead of the TFJob's; '': the cluster's")
    own.add_argument(
        "--leave-out", action="store_true", help="go on without what Weir has nothing like"
    )


def unused(args: argparse.Namespace) -> None:
    """Raises `Trouble` for what would be passed over in silence without a TFJob."""
    given = [f"--{name}" for name, value in _wishes(args).items() if value is not None]
    if given or args.leave_out:
        told = ", ".join([*given, *(["--leave-out"] if args.leave_out else [])])
        raise Trouble(f"{told} goes with --tfjob; a job's own file says all of it", WRONG_USE)


def asked(args: argparse.Namespace) -> tuple[Fields, Path]:
    """The request's fields, and where its program is; raises `Trouble` with everything that is in
    the way.
    """
    file: Path = args.tfjob
    raw, beside = manifest(text_in(file, "give the file of a TFJob"), file.name)
    found = translated(raw, _wishes(args), beside)
    program = args.file or (file.parent / found.program if found.program else None)
    _tell(file, found)
    wrong = [*([] if program else [NO_PROGRAM.format(file=file)]), *found.told("wrong")]
    lost = [] if args.leave_out else found.told("lost")
    if wrong or lost or program is None:
        raise Trouble(
            "\n".join([*_listed(f"{file} cannot be asked for:", wrong), *_lost(file, lost)]),
            WRONG_USE,
        )
    return found.fields, program


def _wishes(args: argparse.Namespace) -> Fields:
    return {name: getattr(args, name.replace("-", "_")) for name in WISHES}


def _tell(file: Path, found: Asked) -> None:
    """What is done in another way than the file says, so that nobody is surprised."""
    for line in _listed(f"of {file}, Weir does in its own way:", found.told("moot")):
        print(line, file=sys.stderr)


def _lost(file: Path, lost: list[str]) -> list[str]:
    return (
        [*_listed(f"{file} has what a job of Weir's cannot have:", lost), WAY_OUT] if lost else []
    )


def _listed(head: str, lines: list[str]) -> list[str]:
    return (
        [
            head,
            *(
                f"  - {line if line.startswith('program: ') else single_line(line)}"
                for line in lines
            ),
        ]
        if lines
        else []
    )
