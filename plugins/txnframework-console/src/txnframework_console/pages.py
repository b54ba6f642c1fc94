"""HTML of views and pages, from templates that escape everything."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from txnframework.cli.output import position_of
from txnframework_console import texts
from txnframework_console.views.overview import OverviewView, reason_of
from txnframework_console.views.processes import ProcessesView
from txnframework_console.views.subscriptions import SubscriptionsView, SubscriptionView
from txnframework_console.views.topics import TopicsView, TopicView
from txnframework_console.views.transactions import TransactionsView, TransactionView

TEMPLATES: dict[type, str] = {
    OverviewView: "overview.html",
    TopicsView: "topics.html",
    TopicView: "topic.html",
    SubscriptionsView: "subscriptions.html",
    SubscriptionView: "subscription.html",
    TransactionsView: "transactions.html",
    TransactionView: "transaction.html",
    ProcessesView: "processes.html",
}


class Pages:
    """Renders views and whole pages; ``allows_changes``: whether pages link to actions."""

    def __init__(self, *, allows_changes: bool) -> None:
        self._templates = Environment(
            loader=PackageLoader("txnframework_console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        # Every text from data is made visible, also where a template prints it without a filter.
        self._templates.finalize = _shown
        self._templates.filters |= {
            "number": texts.number,
            "position": lambda position: position_of(str(position)),
            "duration": texts.duration,
            "moment": texts.moment,
            "clock": texts.clock,
            "short": texts.short_topic,
            "query": lambda path, **fields: f"{path}?{urlencode(fields)}",
        }
        self._templates.globals |= {"allows_changes": allows_changes, "reason_of": reason_of}

    def compile(self) -> None:
        """Compile all templates now, so that no request has to."""
        for name in self._templates.list_templates():
            self._templates.get_template(name)

    def view(self, view: object) -> str:
        """Return the HTML of a view, without the page around it."""
        return self._templates.get_template(TEMPLATES[type(view)]).render(view=view)

    def page(self, template: str, **names: Any) -> str:
        """Return a whole page."""
        return self._templates.get_template(template).render(**names)


def _shown(found: object) -> object:
    return found if isinstance(found, Markup | int | float) else texts.visible(found)
