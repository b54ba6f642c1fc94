"""The core's own commands, as a click group that the documentation can walk through without loading plugins."""

from __future__ import annotations

import click

from txnframework.cli._app import make_group

group = click.Group("txnframework", commands=list(make_group().load_own()))
