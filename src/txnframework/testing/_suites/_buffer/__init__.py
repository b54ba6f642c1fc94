"""The rules of ITransactionBuffer, by what they speak of."""
