"""``txnframework top``: ``keys`` reads keys, ``state`` says what a key changes, ``screen`` draws, ``loop`` runs."""
