import pytest

from swarmd.gossip.transport import (
    MAX_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
    MessageTooLargeError,
    check_message_size,
    check_record_size,
)


def test_sizes_at_the_limit_pass_and_above_it_raise() -> None:
    check_message_size(bytes(MAX_MESSAGE_BYTES))
    check_record_size(bytes(MAX_RECORD_BYTES))
    with pytest.raises(MessageTooLargeError, match=str(MAX_MESSAGE_BYTES)):
        check_message_size(bytes(MAX_MESSAGE_BYTES + 1))
    with pytest.raises(MessageTooLargeError, match=str(MAX_RECORD_BYTES)):
        check_record_size(bytes(MAX_RECORD_BYTES + 1))
