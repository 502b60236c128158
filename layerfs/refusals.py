"""What the operating system refused, as one of our errors.

Owns the mapping from ``errno`` to error classes for whatever no module caught with more to say. A number that can only
come from a mistake of our own (a bad descriptor, a bad address) is no refusal: it stays an exception with a traceback.
"""

from __future__ import annotations

import errno

from layerfs.errors import LayerfsError, NoSpace, NotFound, Refused, StoreIoFailed, Unable, quote


def explain_oserror(error: OSError) -> LayerfsError | None:
    """Return the one-line error for a refusal by the operating system; None if it can only be our own mistake."""
    subject = error.filename if isinstance(error.filename, (str, bytes)) else None
    message = reason(error) if subject is None else f"{quote(subject)}: {reason(error)}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return NoSpace(message, "free some space and run the command again")
        case errno.EIO | errno.EROFS:
            return StoreIoFailed(message)
        case errno.EACCES | errno.EPERM:
            return Refused(message, "run as the owner of the store and of the files")
        case errno.ENOENT | errno.ENOTDIR:
            return NotFound(message)
        case errno.EBADF | errno.EFAULT | errno.EINVAL | None:
            return None
    return Unable(message)


def reason(error: OSError) -> str:
    """Return the system's words for an error, as we write them."""
    return (error.strerror or "unknown error").lower()
