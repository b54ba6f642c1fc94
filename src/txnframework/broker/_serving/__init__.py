"""Opening of stores, segments and subscriptions with the plugins of their domain, or without transactions."""
