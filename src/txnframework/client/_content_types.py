"""Type variables for the contents of messages; their default is bytes, the content without a serializer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker knows typing_extensions, which need not be installed
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes)
    T_co = TypeVar("T_co", default=bytes, covariant=True)
    T_contra = TypeVar("T_contra", default=bytes, contravariant=True)
else:
    from typing import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    T_contra = TypeVar("T_contra", contravariant=True)
