"""
Looks for hostile input by what it makes a decoder do: a fuzzer that is led by coverage, run on request.

``python tests/fuzz/coverage_guided.py entry -max_total_time=60``, with atheris installed, goes on from the decoder's
examples; further options are libFuzzer's. It ends at the first input that is answered by anything but an error of ours,
and keeps it in a file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["txnframework", "txnframework_legacy", "txnframework_zookeeper"]):
    from decoders import DECODERS, Decoder
    from test_decoders import decoded


def main(name: str, options: list[str]) -> None:
    """Fuzz one decoder until libFuzzer's options end it."""
    decoder = _named(name)
    with tempfile.TemporaryDirectory() as corpus:
        for number, example in enumerate(decoder.examples):
            (Path(corpus) / str(number)).write_bytes(example)
        atheris.Setup([sys.argv[0], *options, corpus], lambda data: _try(decoder, data))
        atheris.Fuzz()


def _try(decoder: Decoder, data: bytes) -> None:
    decoded(decoder, data)
    if decoder.repair is not None:
        decoded(decoder, decoder.repair(data))


def _named(name: str) -> Decoder:
    for decoder in DECODERS:
        if decoder.name == name:
            return decoder
    raise SystemExit(f"there is no decoder {name!r}; there are {', '.join(map(str, DECODERS))}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
