"""The family's records in the metadata store: ``views`` says what they mean (pure), ``operations`` puts and finds."""
