"""The schema's history, applied by Alembic."""
