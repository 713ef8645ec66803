"""Sign and encrypt the message of a task anew, for another namespace."""

from __future__ import annotations

from msgspec.structs import replace

from nonet.base.messages.documents import are_encrypted, decrypted_arguments, encrypted_arguments
from nonet.base.messages.encryption import Cipher
from nonet.base.messages.message import encode, open_envelope
from nonet.base.messages.signing import Signer, unsigned


def resealed(
    data: bytes, id: str, here: tuple[Signer, Cipher], there: tuple[Signer, Cipher], limit: int
) -> bytes:
    """Return the message of task `id`, signed and encrypted for another namespace.

    Args:
        here, there: the signer and the cipher of each namespace.
        limit: longest message in bytes.

    Raises:
        MalformedMessageError: the message is not valid here, or this process has no key for it.

    Example:
        >>> from nonet.base.messages.message import Envelope
        >>> here, there = Signer({"k": b"k" * 32}, "main"), Signer({"k": b"k" * 32}, "a")
        >>> data = here.signed(encode(Envelope(1, "task-1", "demo:Add", {}, {}, 0.0)))
        >>> moved = resealed(data, "task-1", (here, Cipher()), (there, Cipher()), 1000)
        >>> moved != data, there.opened(moved) == here.opened(data)
        (True, True)
    """
    (signer, cipher), (other_signer, other_cipher) = here, there
    signer.check_key(data)
    content = open_envelope(data, id, signer, limit_bytes=limit)
    if not are_encrypted(content.args):
        return other_signer.signed(unsigned(data))
    args = decrypted_arguments(content.args, id, cipher)
    return other_signer.signed(
        encode(replace(content, args=encrypted_arguments(args, id, other_cipher)))
    )
