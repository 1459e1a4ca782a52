"""``lowc link``: an artifact as a shared library for C and everything that calls C.  Needs numpy alone, no linker."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "link",
        help="an artifact as a shared library with a C header",
        description="Makes a shared library and a C header of an artifact, with its weights inside; needs no linker.",
    )
    parser.add_argument("model", metavar="MODEL.lowc")
    parser.add_argument("-o", "--output", required=True, metavar="LIB.so")
    parser.add_argument("--header", default="", metavar="FILE.h", help="where to write the header; default: nowhere")
    parser.add_argument("--prefix", default="lowc", metavar="NAME", help="of the functions' names; default: lowc")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Raises LowcError for an artifact that cannot be read, and for files that cannot be written."""
    from lowc.standalone.library import write_library

    size = write_library(chosen.model, chosen.output, prefix=chosen.prefix, header_path=chosen.header)
    print(f"{chosen.output}: {size} bytes")
    return 0
