"""The rules of IMetadataStore, by topic."""
