"""The rules of IMetadataStore, by what they speak of."""
