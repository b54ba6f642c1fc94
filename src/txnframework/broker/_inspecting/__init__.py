"""Questions about a subscription, answered from the stores without dispatching it."""
