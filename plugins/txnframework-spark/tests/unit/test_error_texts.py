"""What errors say to a person."""

from __future__ import annotations

import pytest

from txnframework_spark.errors import TopicLost, TopicMissing

ORDERS = "topic://public/default/orders"


@pytest.mark.parametrize("error", [TopicLost(ORDERS), TopicLost(ORDERS, again=True), TopicMissing(ORDERS)])
def test_a_full_name_says_by_itself_that_it_is_a_topic(error: Exception) -> None:
    """The sentence begins with the name, and does not say 'topic topic://...'."""
    assert str(error).startswith(f"{ORDERS} ")
