"""What keeps topics small and whole: trimming by retention, and finishing what was begun and left."""
