"""
Models of rules of the protocol: small enough that every order of their steps can be walked through.

Each module has the rules as an enumeration ``Rule``; ``HARM``, what goes wrong without each of them; ``STATES_MIN``,
how many states there are at least with all of them; and ``explored(without)``, which leaves one of them out, or none.
"""
