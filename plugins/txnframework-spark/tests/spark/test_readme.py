"""The program in the README runs as written, except for the path of its checkpoint and its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"


def test_the_program_prices_every_order(spark: Any, stores: Any) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert "/var/lib/pricing" in program
    assert ".start()" in program
    program = program.replace("/var/lib/pricing", str(stores.checkpoint))
    program = program.replace(".start()", ".trigger(availableNow=True).start()")
    stores.create("orders", "priced")
    stores.publish(["one", "two"], "orders")
    # Spark looks where its JVM was started, which was before this test.
    config = stores.directory / "txnframework.toml"
    config.write_text(f'[metadata]\nurl = "{stores.url}"\n')
    program = program.replace('"txnframework.toml"', repr(str(config)))
    # A new subscription begins at the latest message: so that there is something to do, it is made before.
    stores.subscribe("orders", "pricing")
    exec(compile(program, str(README), "exec"), {"__name__": "__main__"})
    assert stores.read("priced") == {"ONE": 1, "TWO": 1}
