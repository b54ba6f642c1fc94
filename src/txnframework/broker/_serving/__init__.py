"""Opening stores, segments and subscriptions with the plugins that serve their domain, or plainly without any."""
