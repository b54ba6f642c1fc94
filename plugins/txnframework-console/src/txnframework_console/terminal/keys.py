"""Keys of a terminal, one by one; on systems without ``termios`` there are none."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = {
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[5~": "up",
    b"\x1b[6~": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
}
READ_BYTES = 64


def keys_of(data: bytes) -> list[str]:
    """Return the keys that one read from the terminal holds; sequences that are not known are left out."""
    if data in NAMES:
        return [NAMES[data]]
    if data.startswith(b"\x1b"):
        return []
    found = []
    for character in data.decode("utf-8", "ignore"):
        name = NAMES.get(character.encode())
        if name is not None or character.isprintable():
            found.append(name or character)
    return found


@contextmanager
def pressed_keys(keys: asyncio.Queue[str]) -> Iterator[None]:
    """Put each key that is pressed during the block into a queue; without a terminal for input, none."""
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in keys_of(os.read(file, READ_BYTES)):
            keys.put_nowait(key)

    tty.setcbreak(file)
    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
